"""Replicas whose weights part: who they are, where they part, what explains it."""

from dataclasses import replace

import pytest

from distdoctor.analysis.replicas.replica_divergence import (
    DivergenceCause,
    replica_divergences,
)
from distdoctor.analysis.replicas.replica_findings import findings, require_explained
from distdoctor.analysis.replicas.replica_sets import replicas
from distdoctor.errors import CauseUnknown
from distdoctor.model.drawing import sketch
from distdoctor.model.findings import Severity
from distdoctor.model.run import Run

BY_HAND = "trained(names=w+b,numels=6+2)"
WRAPPED = "trained(names=w,numels=6,wrapped)  weights(prints=1)"


def of_two(first: str, second: str, model: str = WRAPPED) -> Run:
    """A run of two ranks that train one model."""
    return sketch(f"rank 0 | {model}  {first}\nrank 1 | {model}  {second}")


def causes(run: Run) -> list[DivergenceCause]:
    return [parting.cause for parting in replica_divergences(run)]


def test_ranks_that_step_with_one_gradient_are_replicas() -> None:
    step = "all_reduce(8)  weights(step=1,prints=1+2,gradients=3+4)"
    assert replicas(of_two(step, step, BY_HAND)) == ((0, 1),)


def test_messages_and_lists_average_as_well() -> None:
    ring = "send(6,peer=1)  recv(2,peer=1)  weights(step=1,prints=1+2,gradients=3+4)"
    back = "recv(6,peer=0)  send(2,peer=0)  weights(step=1,prints=1+2,gradients=3+4)"
    assert replicas(of_two(ring, back, BY_HAND)) == ((0, 1),)


def test_ranks_that_compute_the_same_for_themselves_are_no_replicas() -> None:
    step = "all_reduce(1)  weights(step=1,prints=1+2,gradients=3+4)"
    assert replicas(of_two(step, step, BY_HAND)) == ()


def test_a_gradient_of_zeros_says_nothing() -> None:
    step = "all_reduce(8)  weights(step=1,prints=1+2,gradients=0+0)"
    assert replicas(of_two(step, step, BY_HAND)) == ()


def test_a_gradient_that_never_changes_says_nothing() -> None:
    steps = "  ".join(
        f"all_reduce(8)  weights(step={n},prints=1+2,gradients={{}})" for n in (1, 2)
    )
    same, other = steps.format("3+4", "3+4"), steps.format("3+4", "5+6")
    assert replicas(of_two(same, same, BY_HAND)) == ()
    assert replicas(of_two(other, other, BY_HAND)) == ((0, 1),)


def test_ranks_whose_backward_gave_the_same_need_no_averaging() -> None:
    step = (
        "all_reduce(8)  weights(step=2,prints=1+2,gradients=3+4)  gradients(step=2,{})"
    )
    same, other = step.format("own=1.0+2.0"), step.format("own=1.0+3.0")
    assert replicas(of_two(same, same, BY_HAND)) == ()
    assert replicas(of_two(same, other, BY_HAND)) == ((0, 1),)


def test_ranks_of_other_models_are_no_replicas() -> None:
    step = "all_reduce(8)  weights(step=1,prints=1+2,gradients=3+4)"
    run = sketch(
        f"rank 0 | {BY_HAND}  {step}\nrank 1 | trained(names=w+c,numels=6+2)  {step}"
    )
    assert replicas(run) == ()


def test_ranks_whose_weights_come_together_are_replicas() -> None:
    run = of_two(
        "trail(before=1+2+9,gradients=3-5,after=2+4+6)",
        "trail(before=1+3+9,gradients=6-8,after=3+5+7)",
        BY_HAND,
    )
    assert replicas(run) == ((0, 1),)
    assert not causes(run)


def test_replicas_are_pairs_where_gradients_are() -> None:
    def rank(number: int, gradient: int) -> str:
        step = (
            f"all_reduce(6)/g{gradient}  weights(step=1,prints=1,gradients={gradient})"
        )
        return f"rank {number} | trained(names=w,numels=6)  {step}"

    run = sketch("\n".join(rank(n, 5 + n % 2) for n in range(4)))
    assert replicas(run) == ((0, 2), (1, 3))


def test_other_gradients_are_left_to_others() -> None:
    run = of_two(
        "trail(before=1+2,gradients=5+6,after=2+3)",
        "trail(before=1+4,gradients=7+8,after=4+5)",
    )
    assert causes(run) == [DivergenceCause.GRADIENTS]
    assert not list(
        findings(
            run, DivergenceCause.STEP, DivergenceCause.UNSEEN, DivergenceCause.SKIPPED
        )
    )
    with pytest.raises(CauseUnknown, match="step with different gradients"):
        require_explained(run)


def test_what_rounding_makes_of_gradients_needs_no_explanation() -> None:
    step = "weights(step={},prints={},gradients={},samples=1.0+1.0+{})"
    first = step.format(1, 1, 5, 1.0)
    run = of_two(
        f"{first}  {step.format(2, 2, 6, 1.0)}",
        f"{first}  {step.format(2, 3, 7, 1.0000001)}",
    )
    assert causes(run) == [DivergenceCause.GRADIENTS]
    require_explained(run)


def test_other_hyperparameters_are_left_to_others() -> None:
    run = of_two(
        "weights(step=1,prints=1,gradients=5,settings=1)  "
        "trail(before=1,gradients=5,after=2)",
        "weights(step=1,prints=1,gradients=5,settings=2)  "
        "trail(before=1,gradients=5,after=3)",
    )
    assert causes(run) == [DivergenceCause.SETTINGS]


def test_the_changing_rank_is_blamed_among_two() -> None:
    run = of_two(
        "trail(before=1+9,gradients=5+6,after=2+3)",
        "trail(before=1+2,gradients=5+6,after=2+4)",
    )
    (parting,) = replica_divergences(run)
    assert (parting.cause, parting.culprits) == (DivergenceCause.OUTSIDE_SOME, (0,))
    assert parting.step == 2


def test_the_minority_is_blamed_where_all_change() -> None:
    ranks = [
        f"rank {n} | {WRAPPED}  trail(before=1+{9 if n == 2 else 8},gradients=5+6,"
        f"after=2+{3 + n})"
        for n in range(4)
    ]
    (parting,) = replica_divergences(sketch("\n".join(ranks)))
    assert (parting.cause, parting.culprits) == (DivergenceCause.OUTSIDE_ALL, (2,))


def test_a_tensor_that_no_trail_follows_is_found_later() -> None:
    model = "trained(names=w+b,numels=6+2,wrapped)  weights(prints=1+2)"
    trail = "trail(before=1-3,gradients=5-7,after=2-4)"
    first = "weights(step=1,prints=1+2,gradients=5+6)"
    run = of_two(
        f"{first}  weights(step=2,prints=3+4,gradients=7+8)  {trail}",
        f"{first}  weights(step=2,prints=3+9,gradients=7+8)  {trail}",
        model,
    )
    (parting,) = replica_divergences(run)
    assert (parting.cause, parting.names) == (DivergenceCause.UNSEEN, ("b",))


def test_what_averaging_mends_is_no_parting() -> None:
    run = of_two(
        "trail(before=1+9+4,gradients=5-7,after=2+3+5)",
        "trail(before=1+2+4,gradients=5-7,after=2+6+5)",
    )
    assert not replica_divergences(run)


def test_parts_that_each_rank_steps_and_sends_are_no_parting() -> None:
    first = "trail(before=1+9,gradients=5+6,after=2+3)"
    second = "trail(before=1+9,gradients=5+6,after=4+7)"
    assert not replica_divergences(of_two(first, second))
    last = "trail(before=1,gradients=5,after={})"  # the job ends before it sends
    assert not replica_divergences(of_two(last.format(2), last.format(3)))


def test_differences_of_rounding_are_only_warned_of() -> None:
    drawing = (
        "weights(step=1,prints={0},gradients=5,samples=1.0+0.5+{1})  "
        "trail(before={0},gradients=5,after={0})"
    )
    (finding,) = findings(
        of_two(drawing.format(2, "0.25"), drawing.format(3, "0.2500001")),
        DivergenceCause.START,
    )
    assert finding.severity is Severity.WARNING


def test_the_largest_difference_is_told_with_its_parameter() -> None:
    model = "trained(names=w+b,numels=6+2,wrapped)"
    run = of_two(
        "weights(step=1,prints=1+2,samples=0.0+0.5+0.1+3.0+0.0+0.0)",
        "weights(step=1,prints=3+4,samples=0.0+0.6+0.1+1.0+0.0+0.0)",
        model,
    )
    (finding,) = findings(run, DivergenceCause.START)
    assert "by up to 2 in the elements looked at (b)" in finding.message


def test_several_models_are_one_finding() -> None:
    models = "  ".join(
        f"trained(model={n},names=w,numels=6,wrapped)  weights(model={n},step=1,"
        "prints={0})"
        for n in range(3)
    )
    run = sketch(f"rank 0 | {models.format(1)}\nrank 1 | {models.format(2)}")
    (finding,) = findings(run, DivergenceCause.START)
    assert "2 more of the job's models likewise" in finding.message


@pytest.mark.parametrize(("others", "lines"), [(3, [5]), (4, [])])
def test_a_broadcast_that_left_some_parameters_out_is_located(
    others: int, lines: list[int]
) -> None:
    drawing = (
        "rank {{}} | trained(names=w+b,numels=6+2)  broadcast(6)@t.py:5  "
        "all_reduce(8)@t.py:7  weights(step=1,prints={{}}+{},gradients=8+9)@t.py:8"
    ).format
    first, second = drawing(1).format(0, 3), drawing(2).format(1, others)
    (finding,) = findings(sketch(f"{first}\n{second}"), DivergenceCause.START)
    broadcasting = [one for one in finding.locations if "broadcasts" in one.remark]
    assert [one.place.line for one in broadcasting] == lines


def test_thousands_of_ranks_are_compared() -> None:
    odd = 1234
    ranks = [
        f"rank {n} | {WRAPPED}  trail(before=1+{7 if n == odd else 2},gradients=5+6,"
        "after=2+3)"
        for n in range(2000)
    ]
    (parting,) = replica_divergences(sketch("\n".join(ranks)))
    assert parting.culprits == (odd,)


def test_a_step_that_one_rank_made_more_is_its_fault() -> None:
    ranks = [
        f"rank {n} | {WRAPPED}  "
        + (
            "trail(before=1+2+9,gradients=5+5+6,after=2+9+8)"
            if n == 1
            else "trail(before=1+2+3,gradients=5-7,after=2-4)"
        )
        for n in range(3)
    ]
    (parting,) = replica_divergences(sketch("\n".join(ranks)))
    assert (parting.cause, parting.culprits) == (DivergenceCause.ADDED, (1,))


def test_ranks_may_load_on_different_lines() -> None:
    run = of_two(
        "loaded()@t.py:5  weights(step=1,prints=9,gradients=5)",
        "loaded()@t.py:7  weights(step=1,prints=9,gradients=5)",
    )
    assert not replica_divergences(run)


def test_a_later_load_of_one_rank_is_told_though_all_loaded_before() -> None:
    run = of_two(
        "loaded()@t.py:5  loaded(steps=1)@t.py:9  "
        "trail(before=1+7,gradients=5+6,after=2+8)",
        "loaded()@t.py:5  trail(before=1+2,gradients=5+6,after=2+3)",
    )
    (finding,) = findings(run, DivergenceCause.LOADED)
    assert finding.culprits == (0,)
    assert [location.place.line for location in finding.locations] == [9]


def test_weights_put_back_before_the_next_step_were_not_changed() -> None:
    run = of_two(
        "loaded(steps=1)@t.py:9  loaded(steps=1)@t.py:11  "
        "trail(before=1+2,gradients=5+6,after=2+3)",
        "trail(before=1+2,gradients=5+6,after=2+3)",
    )
    assert not replica_divergences(run)


def test_a_rank_that_catches_up_after_uneven_inputs_has_not_parted() -> None:
    run = of_two(
        "trail(before=1-6,gradients=3-8,after=2-7)",
        "trail(before=1+2+5+6,gradients=3+4+7+8,after=2+3+6+7)",
    )
    assert not replica_divergences(run)


def test_a_step_that_overtook_a_call_explains_why_replicas_part() -> None:
    step = "weights(step=1,prints=1,gradients=5)  "
    mine = step + "trail(before=1+2,gradients=5+6,after=2+3)"
    other = step + "trail(before=1+2,gradients=5+7,after=2+4)"
    assert causes(of_two(mine, other)) == [DivergenceCause.GRADIENTS]
    overtaken = "stepped=t.py:7@t.py:9  " + other
    assert causes(of_two(mine, overtaken)) == [DivergenceCause.RACED]


def test_a_start_is_no_race() -> None:
    first, second = "weights(prints=1)", "stepped=t.py:7@t.py:9  weights(prints=2)"
    run = of_two(first, second, "trained(names=w,numels=6,wrapped)")
    assert causes(run) == [DivergenceCause.START]


def of_experts(first: str, second: str) -> Run:
    """Two ranks with a shared layer, and an expert of each rank's own."""
    model = "trained(names=s+e,numels=40+6)"
    return of_two(first, second, model)


def experts(shared: int, own: int, grown: int, elements: int = 40) -> str:
    """Two steps that average the gradient of the shared layer, and not of the other."""
    return "  ".join(
        f"all_reduce({elements})  "
        f"weights(step={n},prints={weights}+{own},gradients={n + 2}+{own})"
        for n, weights in ((1, shared), (2, grown))
    )


def test_a_shared_layer_that_differs_from_the_start_is_seen_beside_experts() -> None:
    run = of_experts(experts(1, 5, 2), experts(7, 6, 8))
    (parting,) = replica_divergences(run)
    assert (parting.cause, parting.names) == (DivergenceCause.START, ("s",))


def test_experts_of_ranks_with_a_shared_layer_are_well() -> None:
    assert not replica_divergences(of_experts(experts(1, 5, 2), experts(1, 6, 2)))


def test_a_shared_layer_that_drifts_is_seen_beside_experts() -> None:
    (parting,) = replica_divergences(of_experts(experts(1, 5, 2), experts(1, 6, 8)))
    assert (parting.cause, parting.step) == (DivergenceCause.UNSEEN, 2)


def test_who_changed_a_shared_layer_is_named() -> None:
    changed = experts(1, 6, 8).replace(
        "  all_reduce(40)  weights(step=2",
        "  changed(step=2,names=s)@t.py:11  all_reduce(40)  weights(step=2",
    )
    (parting,) = replica_divergences(of_experts(experts(1, 5, 2), changed))
    assert (parting.cause, parting.culprits) == (DivergenceCause.OUTSIDE_SOME, (1,))


def test_equal_gradients_of_layers_that_nobody_sends_make_no_replicas() -> None:
    assert not replica_divergences(of_experts(experts(1, 5, 2, 2), experts(7, 6, 8, 2)))


def test_layers_whose_gradients_each_rank_computes_alike_are_not_averaged() -> None:
    alike = "holds(names=s+e)  {}  gradients(step=2,probed=0+1,own=1.5+{})"
    first = alike.format(experts(1, 5, 2), 2.0)
    second = alike.format(experts(7, 6, 8), 3.0)
    assert not replica_divergences(of_experts(first, second))


def test_gradients_that_differ_when_weights_do_explain_it() -> None:
    steps = (
        "weights(step=1,prints=1,gradients=0)  weights(step=2,prints={},gradients={})"
    )
    late = of_two(steps.format(2, 5), steps.format(3, 6))
    drawn = of_two(steps.format(2, 5), steps.format(3, 5))
    assert causes(late) == [DivergenceCause.GRADIENTS]
    assert causes(drawn) == [DivergenceCause.UNSEEN]


def scaled(after: int, own: str, moved: str) -> str:
    """A step on averaged gradients whose length may follow those of the rank's own."""
    return (
        "trained(names=a+b,numels=40+8,wrapped)  weights(prints=1+2)  "
        "holds(names=a+b,sizes=40+8)@t.py:4  gradients(step=1,prints=5+6,weights=7+8)  "
        f"sent(step=1,positions=0-1,own={own},sent={own},moved={moved})@t.py:9  "
        "weights(step=1,prints=1+2,gradients=5+6)  "
        f"trail(before=1,gradients=5,after={after})"
    )


def test_trust_ratios_of_the_ranks_own_gradients_explain_a_step() -> None:
    later = "  trail(first=2,before={},gradients=7,after={})"
    one = scaled(2, "4.0+.5", ".06+.2") + later.format(2, 4)
    other = scaled(3, "6.0+.4", ".04+.25") + later.format(3, 5)
    alike = scaled(3, "4.0+.5", ".06+.2") + later.format(3, 5)
    assert causes(sketch(f"rank 0 | {one}\nrank 1 | {other}")) == [
        DivergenceCause.TRUST
    ]
    assert causes(sketch(f"rank 0 | {one}\nrank 1 | {alike}")) == [DivergenceCause.STEP]


def blamed_for_state(first: str, later: str, step: int = 1) -> list[int]:
    """Of three ranks, of which rank 0 alone has a state, those that are blamed.

    Args:
        first: What rank 0 did before the step.
        later: What the others did.
        step: Which one.
    """
    rank = (
        f"{WRAPPED}  {{}}  weights(step={step},prints=1,gradients=5,states={{}})"
        f"  weights(step={step + 1},prints={{}},gradients=6,states=7)"
        f"  trail(first={step},before=1+{{}},gradients=5+6,after={{}}+3)"
    )
    ranks = [rank.format(first, 8, 2, 2, 2), *2 * [rank.format(later, 0, 4, 4, 4)]]
    run = sketch("\n".join(f"rank {n} | {words}" for n, words in enumerate(ranks)))
    (parting,) = replica_divergences(run)
    assert parting.cause is DivergenceCause.STATE
    (finding,) = findings(run, DivergenceCause.STATE)
    assert finding.culprits == parting.culprits
    return list(parting.culprits)


def test_ranks_without_the_state_that_one_has_loaded_are_blamed() -> None:
    assert blamed_for_state("loaded(state)@t.py:6", ".") == [1, 2]
    assert blamed_for_state(".", ".", step=2) == [1, 2]


def test_a_state_that_comes_from_nowhere_is_blamed_on_who_has_it() -> None:
    assert blamed_for_state("loaded()@t.py:6", ".") == [0]


SEEDED = (
    "seeded(seed={0},stream=torch)@t.py:3  trained(names=w+b,numels=6+2)@t.py:4  "
    "all_reduce(8)  weights(step=1,prints={1}+2,gradients=8+9)@t.py:5"
)


@pytest.mark.parametrize(("other", "lines"), [(7, [4, 5]), (8, [4, 3, 5])])
def test_seeds_of_models_that_differ_are_located(other: int, lines: list[int]) -> None:
    """Where they are alike, something else made the models differ."""
    first, second = SEEDED.format(7, 1), SEEDED.format(other, 3)
    (finding,) = findings(
        sketch(f"rank 0 | {first}\nrank 1 | {second}"), DivergenceCause.START
    )
    assert [one.place.line for one in finding.locations] == lines


def test_of_which_model_backward_gave_the_same_on_all_ranks_is_told_apart() -> None:
    """One is sharded, and its twin is trained whole on each rank, to compare with."""
    sharded = (
        "trained(names=t+b,numels=8+2)  holds(names=t+b,sizes=8+2)  "
        "gradients(step=2,own={}.0)"
    )
    twin = (
        "trained(model=1,names=w+b,numels=6+2)  "
        "holds(optimizer=1,names=w+b,sizes=6+2)  all_reduce(8)  "
        "weights(model=1,step=2,prints=1+2,gradients=3+4)  "
        "gradients(optimizer=1,step=2,own={}.0)"
    )

    def ranks(first: int, second: int) -> tuple[tuple[int, ...], ...]:
        drawn = [
            f"rank {rank} | {sharded.format(rank)}  {twin.format(own)}"
            for rank, own in enumerate((first, second))
        ]
        return replicas(sketch("\n".join(drawn)))

    assert ranks(5, 5) == ()
    assert ranks(5, 6) == ((0, 1),)


def test_noise_that_an_optimizer_of_the_users_adds_in_its_step_parts_replicas() -> None:
    """What the step is begun with is the same on all ranks; torch's step is inside."""
    source = """
class Noisy(SGD):
    def step(self):
        self.grad.add_(randn_like(self.grad))
        super().step()
"""
    drawn = (
        "trained(names=w,numels=6,wrapped)  holds(names=w,sizes=6,kind=Noisy)@t.py:9  "
        "weights(prints=1)  "
        "gradients(step=1,prints=5)@t.py:7  weights(step=1,prints=1,gradients=5)  "
        "gradients(step=2,prints=6)@t.py:7  weights(step=2,prints=2,gradients={0})  "
        "gradients(step=3,prints=7)@t.py:7  weights(step=3,prints={0},gradients={0})"
    )
    run = of_two(drawn.format(8), drawn.format(9), "")
    run = replace(run, sources={"t.py": source})
    assert causes(run) == [DivergenceCause.STEP]
    (finding,) = findings(run, DivergenceCause.STEP)
    assert 4 in [one.place.line for one in finding.locations]
