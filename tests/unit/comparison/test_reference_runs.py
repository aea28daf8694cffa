"""A job is compared with its reference: what departs, how, and what is not compared."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from distdoctor.analysis.comparison.departed_tensors import in_words
from distdoctor.analysis.comparison.parting_ways import ways_in_words
from distdoctor.analysis.comparison.reference_runs import Told, departures
from distdoctor.model.events import Place
from distdoctor.model.observations.collectives import step_text
from distdoctor.model.observations.comparison import (
    NOT_FINITE,
    OTHERWISE,
    PART_OF_SUM,
    TIMES,
    UNCHANGED,
    BackwardCompared,
    Compared,
    Departed,
)
from distdoctor.model.run import Run
from distdoctor.model.step_values import ModuleOutput, StepValues

EPS = float(np.finfo(np.float32).eps)
LINE = Place("train.py", 9, "train")
MADE = Place("train.py", 3, "build")


def random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


BATCH = random(8, 3, seed=5)


def reference(steps: int = 2) -> list[StepValues]:
    """A job with two weights, of which the first is cut by rows on two ranks."""
    return [
        StepValues(
            step=n + 1,
            weights={"up.weight": random(4, 3, seed=n), "norm": random(3, seed=20 + n)},
            gradients={
                "up.weight": random(4, 3, seed=40 + n),
                "norm": random(3, seed=60 + n),
            },
            held=frozenset({"up.weight", "norm"}),
            given=(BATCH + n,),
            precision={"up.weight": EPS, "norm": EPS},
            lines={"norm": MADE},
            line=LINE,
        )
        for n in range(steps)
    ]


def moved(steps: Sequence[StepValues]) -> list[StepValues]:
    return [
        replace(
            one,
            weights={name: here * (1 + EPS) for name, here in one.weights.items()},
            gradients={name: here * (1 + EPS) for name, here in one.gradients.items()},
        )
        for one in steps
    ]


def cut(one: StepValues, rank: int) -> StepValues:
    """What one of two ranks has: half of the rows, and half of the batch."""
    rows = slice(2 * rank, 2 * rank + 2)
    return replace(
        one,
        weights={**one.weights, "up.weight": one.weights["up.weight"][rows]},
        gradients={**one.gradients, "up.weight": one.gradients["up.weight"][rows]},
        given=tuple(given[4 * rank : 4 * rank + 4] for given in one.given),
    )


Change = Callable[[StepValues, int], StepValues]


def compared(
    change: Change = lambda one, _: one,
    of_reference: Callable[[StepValues], StepValues] = lambda one: one,
    exchanged: float = 0.0,
) -> tuple[Compared, list[Departed]]:
    """Compare a job, in which something was changed, with its reference."""
    result, told = all_told(change, of_reference, exchanged)
    return result, [one for one in told if isinstance(one, Departed)]


def all_told(
    change: Change = lambda one, _: one,
    of_reference: Callable[[StepValues], StepValues] = lambda one: one,
    exchanged: float = 0.0,
) -> tuple[Compared, list[Told]]:
    """As `compared`, with what led to it."""
    whole = [of_reference(one) for one in reference()]
    ranks = {
        rank: [change(cut(one, rank), rank) for one in reference()] for rank in (0, 1)
    }
    return departures(ranks, whole, moved(whole), [(0, 1)], exchanged=exchanged)


def behind(one: StepValues, **changed: Any) -> StepValues:
    """With gradients as the backward pass left them."""
    return replace(one, behind_backward={**one.gradients, **changed})


def backward_told(change: Change) -> list[BackwardCompared]:
    _, told = all_told(change, behind)
    return [one for one in told if isinstance(one, BackwardCompared)]


def test_gradients_that_were_right_behind_the_backward_pass_are_told_so() -> None:
    """As where ranks clip by the norm of their own part."""
    told = backward_told(
        lambda one, rank: gradient(
            behind(one), norm=one.gradients["norm"] * (1.5 + rank)
        )
    )
    assert [(one.right, one.terms, one.wrong) for one in told] == [
        (True, False, False)
    ] * 2


def test_what_is_yet_to_be_divided_by_the_number_of_ranks_is_no_error() -> None:
    def change(one: StepValues, _: int) -> StepValues:
        norm = one.gradients["norm"]
        return gradient(behind(one, norm=norm * 2), norm=norm * 4)

    told = backward_told(change)
    assert {(one.right, one.terms, one.wrong) for one in told} == {(False, True, False)}


def test_terms_that_were_right_and_are_added_up_wrongly_are_told_so() -> None:
    def change(one: StepValues, rank: int) -> StepValues:
        part = random(3, seed=one.step)
        parts = part, one.gradients["norm"] - part
        return gradient(behind(one, norm=parts[rank]), norm=one.gradients["norm"] / 2)

    told = backward_told(change)
    assert [(one.right, one.terms, one.wrong) for one in told] == [
        (False, True, False)
    ] * 2


def test_gradients_that_were_wrong_already_are_told_so() -> None:
    def change(one: StepValues, rank: int) -> StepValues:
        wrong = one.gradients["norm"] + random(3, seed=70 + rank)
        return gradient(behind(one, norm=wrong), norm=wrong)

    told = backward_told(change)
    assert [(one.right, one.terms, one.wrong) for one in told] == [
        (False, False, True)
    ] * 2


def test_weights_that_another_rank_steps_are_compared_and_their_gradients_not() -> None:
    """As of ZeRO by hand, of which one rank never gets what another has stepped."""

    def change(one: StepValues, rank: int) -> StepValues:
        if rank == 0:
            return one
        stale = {**one.weights, "norm": reference()[0].weights["norm"]}
        one = gradient(one, norm=random(3, seed=77))
        return replace(one, weights=stale, held=frozenset({"up.weight"}))

    result, found = compared(change)
    assert result.steps == 2
    assert [(one.rank, one.step, one.what, one.name, one.kind) for one in found] == [
        (1, 2, "weights", "norm", UNCHANGED)
    ]
    assert "as before the step" in in_words(found)


def test_ranks_that_average_weights_on_purpose_are_not_judged() -> None:
    whole = reference()
    ranks = {
        rank: [gradient(cut(one, rank), norm=random(3, seed=rank)) for one in whole]
        for rank in (0, 1)
    }
    result, found = departures(ranks, whole, moved(whole), [(0, 1)], meet_again=True)
    assert not found
    assert "they average weights and not gradients" in result.why


def test_models_of_several_optimizers_are_placed_when_they_are_first_seen() -> None:
    """As of a GAN: each step has the tensors of one of two models."""
    other = {"critic": random(5, 4, seed=33)}
    whole = reference()
    whole[1] = replace(
        whole[1], weights=other, gradients=other, held=frozenset(other), precision={}
    )
    ranks = {
        0: whole,
        1: [whole[0], replace(whole[1], gradients={"critic": other["critic"] * 2})],
    }
    result, found = departures(ranks, whole, moved(whole), [(0, 1)])
    assert result.steps == 2
    assert [
        (one.rank, one.step, one.name, one.factor)
        for one in found
        if isinstance(one, Departed)
    ] == [(1, 2, "critic", 2.0)]


@pytest.mark.parametrize(("size", "departs"), [(1e-9, False), (1.0, True)])
def test_what_is_made_of_gradients_that_are_roundings_tells_nothing(
    size: float, departs: bool
) -> None:
    """As by Adam, which makes a whole step of the smallest gradient."""
    small = np.array([1, 1, size], np.float32)

    def change(one: StepValues, _: int) -> StepValues:
        one = gradient(one, norm=one.gradients["norm"] * small)
        if one.step == 1:
            return one
        weight = one.weights["norm"] + np.array([0, 0, 0.1], np.float32)
        return replace(one, weights={**one.weights, "norm": weight})

    def of_reference(one: StepValues) -> StepValues:
        return gradient(one, norm=one.gradients["norm"] * small)

    _, found = compared(change, of_reference)
    assert bool(found) is departs


def test_a_gradient_that_is_there_as_a_whole_is_cut_as_its_weight() -> None:
    def change(one: StepValues, _: int) -> StepValues:
        whole = reference()[one.step - 1].gradients["up.weight"]
        return gradient(one, **{"up.weight": whole})

    result, found = compared(change)
    assert (result.steps, result.why, found) == (2, "", [])


def begun_apart(name: str, **more: Any) -> list[Told]:
    """What is told if rank 1 draws a tensor anew that rank 0 has as the reference."""
    drawn = {name: random(3, 3, seed=50), **more}
    whole = [replace(one, weights={**one.weights, **drawn}) for one in reference(1)]
    ranks = {rank: [cut(one, rank) for one in whole] for rank in (0, 1)}
    anew = {**ranks[1][0].weights, name: random(3, 3, seed=51)}
    for other in more:
        anew.pop(other)
    ranks[1] = [replace(ranks[1][0], weights=anew)]
    _, found = departures(ranks, whole, moved(whole), [(0, 1)])
    return found


def test_what_a_rank_draws_for_itself_is_told() -> None:
    """As a layer that is outside of the plan of tensor parallelism."""
    (found,) = begun_apart("head.weight")
    assert isinstance(found, Departed)
    assert (found.rank, found.step, found.what) == (1, 1, "weights")
    assert "weights part before any step" in in_words([found])
    assert "on all ranks, or broadcast" in ways_in_words(
        Run.of_events({0: []}), [found]
    )


def test_experts_of_each_rank_may_be_drawn_by_each() -> None:
    """They are numbered anew: that with the same number is another one."""
    assert not begun_apart("experts.0", **{"experts.1": random(3, 3, seed=52)})


def test_terms_that_are_multiples_of_their_sum_are_terms() -> None:
    """As of a bias before one output, whose gradients on all ranks are parallel."""

    def change(one: StepValues, rank: int) -> StepValues:
        norm = one.gradients["norm"] * (1.88, 0.12)[rank]
        return gradient(behind(one, norm=norm), norm=norm)

    _, told = all_told(change, behind)
    found = [one for one in told if isinstance(one, Departed)]
    assert {(one.kind, one.factor, one.among) for one in found} == {
        (PART_OF_SUM, 2.0, (0, 1))
    }
    assert all(one.terms for one in told if isinstance(one, BackwardCompared))


def outputs(*names: str) -> tuple[ModuleOutput, ...]:
    return tuple(ModuleOutput(name) for name in names)


def test_the_module_behind_which_gradients_are_right_is_named() -> None:
    def change(one: StepValues, _: int) -> StepValues:
        one = replace(one, outputs=outputs("norm", "up"))
        weights = {
            "norm.weight": one.weights["norm"],
            "up.weight": one.weights["up.weight"],
        }
        gradients = {
            "norm.weight": one.gradients["norm"] * 2,
            "up.weight": one.gradients["up.weight"],
        }
        held = frozenset(weights)
        return replace(one, weights=weights, gradients=gradients, held=held)

    def named(one: StepValues) -> StepValues:
        return change(gradient(one, norm=one.gradients["norm"] / 2), 0)

    _, told = all_told(change, named)
    (first, _) = [one for one in told if isinstance(one, BackwardCompared)]
    assert first.right_behind == "norm"


@pytest.mark.parametrize(("error", "departs"), [(0.004, False), (0.5, True)])
def test_gradients_sent_in_few_bits_may_differ_by_as_much(
    error: float, departs: bool
) -> None:
    result, found = compared(
        lambda one, _: gradient(one, norm=one.gradients["norm"] * (1 + error)),
        exchanged=2.0**-7,
    )
    assert bool(found) is departs
    assert result.steps == 1  # what comes of it later is not known


def test_a_hook_that_sends_less_is_not_judged() -> None:
    result, found = compared(
        lambda one, _: gradient(
            replace(one, lossy=("powerSGD_hook",)), norm=one.gradients["norm"] * 2
        )
    )
    assert not found
    assert "powerSGD_hook sends less" in result.why


def gradient(one: StepValues, **changed: Any) -> StepValues:
    return replace(one, gradients={**one.gradients, **changed})


def test_a_job_that_is_its_reference_departs_nowhere() -> None:
    result, found = compared()
    assert (result.steps, result.why, found) == (2, "", [])


def test_what_roundings_come_to_is_no_departure() -> None:
    noise = random(3, seed=99) * EPS
    _, found = compared(
        lambda one, _: gradient(one, norm=one.gradients["norm"] + noise)
    )
    assert not found


@pytest.mark.parametrize("divided", [1, 2])
def test_a_sum_that_is_missing_is_told_with_its_group(divided: int) -> None:
    def change(one: StepValues, rank: int) -> StepValues:
        part = random(3, seed=one.step)
        parts = part, one.gradients["norm"] * divided - part
        return gradient(one, norm=parts[rank])

    result, found = compared(change)
    assert result.steps == 1
    assert [(one.rank, one.step, one.name) for one in found] == [
        (0, 1, "norm"),
        (1, 1, "norm"),
    ]
    for one in found:
        assert (one.kind, one.factor, one.among) == (PART_OF_SUM, divided, (0, 1))
        assert (one.place, one.stepped, one.of) == (MADE, step_text(LINE), 2)
        assert one.excess > 10
    assert ("divided by their number" in in_words(found)) is (divided == 2)


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (2, "exactly 2 times"),
        (0.5, "exactly 1/2 of"),
        (0.37, "0.37 times"),
        (0, "zero"),
    ],
)
def test_a_factor_is_told(factor: float, words: str) -> None:
    name = "up.weight"
    _, found = compared(
        lambda one, _: gradient(one, **{name: one.gradients[name] * factor})
    )
    assert {(one.kind, one.name) for one in found} == {(TIMES, name)}
    assert found[0].factor == pytest.approx(factor)
    assert words in in_words(found)


@pytest.mark.parametrize("reduce_op", ["sum", "avg"])
def test_what_dtensor_has_yet_to_reduce_is_reduced(reduce_op: str) -> None:
    def change(one: StepValues, rank: int) -> StepValues:
        part = random(3, seed=one.step)
        whole = one.gradients["norm"] * (2 if reduce_op == "avg" else 1)
        left = {"norm": (reduce_op, (0, 1))}
        parts = part, whole - part
        return replace(gradient(one, norm=parts[rank]), partial=left)

    result, found = compared(change)
    assert (result.steps, found) == (2, [])


def test_what_cannot_be_reduced_is_left_out_and_told() -> None:
    left = {"norm": ("max", (0, 1))}

    def change(one: StepValues, rank: int) -> StepValues:
        return replace(gradient(one, norm=random(3, seed=rank)), partial=left)

    result, found = compared(change)
    assert not found
    assert "1 parameter (norm) could not be compared" in result.why


def test_a_parameter_that_is_not_found_is_told() -> None:
    def change(one: StepValues, _: int) -> StepValues:
        return replace(one, weights={**one.weights, "norm": np.zeros(3, np.float32)})

    result, found = compared(change)
    assert (result.steps, found) == (2, [])
    assert "1 parameter (norm) could not be compared" in result.why


def test_what_is_not_finite_departs() -> None:
    _, found = compared(lambda one, _: gradient(one, norm=np.full(3, np.inf)))
    assert {(one.name, one.kind) for one in found} == {("norm", NOT_FINITE)}
    assert "norm on ranks {0-1}: not finite" in in_words(found)
    assert all(one.excess > 1e200 for one in found)


def test_what_is_not_finite_in_the_reference_either_does_not() -> None:
    def broken(one: StepValues) -> StepValues:
        return gradient(one, norm=np.full(3, np.nan))

    result, found = compared(lambda one, _: broken(one), broken)
    assert (result.steps, found) == (2, [])


def test_what_is_another_thing_is_told_as_that() -> None:
    _, found = compared(lambda one, rank: gradient(one, norm=random(3, seed=rank + 7)))
    assert {one.kind for one in found} == {OTHERWISE}


def test_a_gradient_that_is_absent_counts_as_zero() -> None:
    def change(one: StepValues, _: int) -> StepValues:
        return replace(one, gradients={"up.weight": one.gradients["up.weight"]})

    _, found = compared(change)
    assert {(one.name, one.factor) for one in found} == {("norm", 0.0)}


def test_weights_that_part_though_gradients_do_not_are_told() -> None:
    def change(one: StepValues, _: int) -> StepValues:
        if one.step == 1:
            return one
        return replace(one, weights={**one.weights, "norm": one.weights["norm"] * 1.01})

    result, found = compared(change)
    assert result.steps == 2
    assert {(one.step, one.what, one.name) for one in found} == {(2, "weights", "norm")}
    assert "after 1 step" in in_words(found)


def other_samples(one: StepValues, rank: int) -> StepValues:
    return replace(one, given=(random(4, 3, seed=rank),))


def twice_as_many(one: StepValues, rank: int) -> StepValues:
    return replace(one, given=(BATCH if rank else BATCH[::-1] + 1,))


def unseen(one: StepValues, _: int) -> StepValues:
    return replace(one, given=())


def other_weights(one: StepValues, _: int) -> StepValues:
    return replace(one, weights={"up.weight": random(4, 3, seed=77)})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (other_samples, "other samples in step 1"),
        (twice_as_many, "other samples in step 1"),
        (unseen, "was not seen on any rank"),
        (
            lambda one, _: replace(one, weights={"a": random(9, seed=77)}),
            "other weights",
        ),
        (lambda one, _: replace(one, too_large=True), "too many to be written"),
        (
            lambda one, _: gradient(replace(one, random=("Net",)), norm=-BATCH[0]),
            "random",
        ),
        (lambda one, _: gradient(replace(one, of_batch=("BN",)), norm=-BATCH[0]), "BN"),
    ],
)
def test_what_cannot_be_compared_is_not(change: Change, why: str) -> None:
    result, found = compared(change)
    assert not found
    assert not result.steps
    assert why in result.why


def test_random_layers_do_no_harm_where_all_is_equal() -> None:
    result, found = compared(lambda one, _: replace(one, random=("Net",)))
    assert (result.steps, found) == (2, [])


def test_all_ranks_may_have_the_whole_batch() -> None:
    result, found = compared(
        lambda one, _: replace(one, given=(BATCH + (one.step - 1),))
    )
    assert (result.steps, found) == (2, [])


def test_parts_of_the_batch_may_overlap() -> None:
    def change(one: StepValues, rank: int) -> StepValues:
        batch = BATCH + (one.step - 1)
        return replace(one, given=(batch[:5] if rank == 0 else batch[3:],))

    result, found = compared(change)
    assert (result.steps, found) == (2, [])


def test_a_reference_without_steps_is_none() -> None:
    assert "made no step" in departures({0: []}, reference(), reference(), [])[0].why
    ranks = {0: [cut(reference()[0], 0)]}
    assert "made no step" in departures(ranks, [], [], [])[0].why


def test_noise_that_is_large_hides_what_is_within_it() -> None:
    whole = reference()
    shaken = [
        replace(one, gradients={n: g * 1.1 for n, g in one.gradients.items()})
        for one in whole
    ]
    ranks = {
        rank: [
            gradient(cut(one, rank), norm=one.gradients["norm"] * 1.3) for one in whole
        ]
        for rank in (0, 1)
    }
    assert not departures(ranks, whole, shaken, [])[1]
