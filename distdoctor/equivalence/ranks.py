"""Property: a step by several ranks equals a step by one, on all their batches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, NoReturn

import torch

from distdoctor.equivalence.batches import Batches, Example
from distdoctor.equivalence.capturing import Trial
from distdoctor.equivalence.comparing import (
    Difference,
    Reference,
    gradient_difference,
    reference,
    weight_difference,
)
from distdoctor.equivalence.gradient_factors import (
    common_factor,
    factor_in_words,
    reason,
)
from distdoctor.equivalence.inseparable import refuse
from distdoctor.equivalence.lone_group import (
    alone,
    alone_group,
    broadcast_from_first,
    gather_from_all,
    rank_and_size,
)
from distdoctor.equivalence.property_reports import PropertyReport, broken
from distdoctor.equivalence.searching import search, undisturbed
from distdoctor.equivalence.step import Step, first_model
from distdoctor.equivalence.step_runner import Runner
from distdoctor.errors import StepUnusable
from distdoctor.model.observations.equivalence import RANKS

_CLAIM = "a step made by several ranks"
_SLACK = 16.0
"""Of the unit round-off: ranks add up in another order than one does."""


def assert_ranks(
    step: Step,
    batches: Batches,
    *,
    most: int = 2,
    steps: int = 2,
    examples: int = 6,
    communicated: torch.dtype | None = None,
    device: str = "cpu",
) -> PropertyReport:
    """Fail unless ranks make the same step as one rank with the batches of all.

    All ranks are to call it. Each runs the step on its own micro-batches, with the
    model wrapped by `step.wrap`; one rank alone, with the model bare, on the batch of
    them all. The weights that come of some steps in a row are compared, in float64,
    and what the optimizers were handed tells why they differ.

    Args:
        step: The user's step.
        batches: What micro-batches look like.
        most: Micro-batches of a rank, at most.
        steps: How many are made in a row, so that the optimizer's state counts.
        examples: How many are tried.
        communicated: The precision in which gradients are exchanged, if it is lower
            than theirs.
        device: Where it runs.

    Returns:
        How far the worst example was from failing.

    Raises:
        EquivalenceBroken: They do not; on all ranks, with the same text.
        NotEquivalentByNature: The model couples the samples of a batch.
        StepUnusable: There are no ranks, or the step makes no step of its optimizer.
    """
    __tracebackhide__ = True
    rank, size = rank_and_size()
    with undisturbed():
        start = first_model(step)
        start.load_state_dict(broadcast_from_first(start.state_dict()))
        runner = Runner(step, start, device)
        tried = _Ranks(runner, rank, alone_group(), steps, communicated)
        report = PropertyReport(RANKS)

        errors: list[Exception] = []

        def attempt(example: Example) -> Difference | None:
            try:
                found = tried.difference(example)
            except Exception as error:  # noqa: BLE001 - raised when ranks are together
                errors.append(error)
                return None
            if found.excess <= 1:
                report.add(found)
                return None
            return found

        def leading(example: Example) -> Difference | None:
            if errors:  # nothing is tried any more
                return None
            tried.lead(example)
            return attempt(example)

        worst = None
        if rank == 0:
            strategy = batches.examples(1, most, ranks=size)
            worst = search(strategy, leading, examples)
            tried.lead(None)
        else:
            tried.follow(batches, attempt)
        worst = tried.recall(batches, worst)
        if errors:
            raise errors[0]
        if worst is not None:
            tried.fail(*worst)
    return report.held()


class _Ranks:
    def __init__(
        self,
        runner: Runner,
        rank: int,
        group: Any,
        steps: int,
        communicated: torch.dtype | None,
    ) -> None:
        self._runner, self._rank, self._group = runner, rank, group
        self._steps, self._communicated = steps, communicated

    # --- the same example everywhere ---

    def lead(self, example: Example | None) -> None:
        """On rank 0: send the next example to the other ranks; None: no more."""
        broadcast_from_first(None if example is None else _packed(example))

    def follow(
        self, batches: Batches, attempt: Callable[[Example], Difference | None]
    ) -> None:
        """On other ranks: try the examples that rank 0 sends."""
        while (packed := broadcast_from_first(None)) is not None:
            attempt(Example(batches, *packed))

    def recall(
        self, batches: Batches, worst: tuple[Example, Difference] | None
    ) -> tuple[Example, Difference] | None:
        """The failing example that rank 0 found, on every rank."""
        packed = None if worst is None else (_packed(worst[0]), worst[1])
        packed = broadcast_from_first(packed)
        return None if packed is None else (Example(batches, *packed[0]), packed[1])

    # --- one example ---

    def difference(self, example: Example) -> Difference:
        """The largest difference on any rank; all ranks return the same."""
        expected = self._reference(example)
        trial = self._trial(example)
        found = weight_difference(trial, expected)
        if found.excess > 1:  # which gradient tells why
            gradients = gradient_difference(trial, expected)
            if gradients.excess > 1:
                found = gradients
        everywhere: list[Difference] = gather_from_all(found)
        found = max(everywhere, key=lambda one: one.excess)
        if found.excess > 1:
            refuse(expected.trial, expected.random, _CLAIM)
        return found

    def fail(self, example: Example, found: Difference) -> NoReturn:
        """Fail with an explanation for the smallest example, alike on all ranks."""
        __tracebackhide__ = True
        expected = self._reference(example).trial
        trial = self._trial(example)
        factors = gather_from_all(self._factor(found, trial, expected))
        same = gather_from_all(
            self._is_same(trial, broadcast_from_first(trial.weights))
        )
        factor = factors[0] if _all_near(factors) else 0.0
        broken(
            RANKS,
            f"a step of {example.ranks} ranks is not equivalent to one rank's",
            found,
            example=str(example),
            why=_why(example, found, factors, all(same)),
            factor=factor,
            site=trial.site,
            where=self._runner.step.where,
        )

    def _reference(self, example: Example) -> Reference:
        whole = example.batches.join(example.micro_batches())

        def run(around: AbstractContextManager[object]) -> Trial:
            with ExitStack() as stack:
                stack.enter_context(alone(self._group))
                return self._runner.run(
                    [[whole]] * self._steps,
                    torch.float64,
                    seed=example.seed,
                    by_loss=self._runner.step.loss is not None,
                    around=around,
                )

        expected = reference(
            run,
            torch.float64,
            more=len(example.rows),
            storage=self._communicated,
            slack=_SLACK,
        )
        if not expected.trial.gradients:
            raise StepUnusable(
                "the step made no optimizer step for one micro-batch: it is to make one"
            )
        return expected

    def _trial(self, example: Example) -> Trial:
        mine = example.share(example.micro_batches(), self._rank)
        return self._runner.run(
            [mine] * self._steps,
            torch.float64,
            seed=example.seed,
            wrap=self._runner.step.wrap,
        )

    def _factor(self, found: Difference, trial: Trial, expected: Trial) -> float:
        number = found.step - 1
        if found.what != "gradient" or found.words:
            return 0.0
        return common_factor(trial.gradients[number], expected.gradients[number])

    def _is_same(self, trial: Trial, first: Any) -> bool:
        apart = (
            one is not None and other is not None and not torch.equal(one, other)
            for one, other in zip(trial.weights.values(), first.values(), strict=True)
        )
        return not any(apart)


def _packed(example: Example) -> tuple[Any, ...]:
    return example.rows, example.lengths, example.seed, example.ranks


def _all_near(factors: list[float]) -> bool:
    return max(factors) - min(factors) <= 1e-3 * max(map(abs, factors))


def _why(example: Example, found: Difference, factors: list[float], same: bool) -> str:
    ranks, count = example.ranks, len(example.rows)
    apart = (
        ""
        if same
        else "; ranks come to different weights, so gradients are not averaged"
    )
    if found.words:
        return found.words
    if found.what == "weight":
        return (
            "the optimizer is handed the right gradients, and makes another update of "
            f"them than on one rank{apart}"
        )
    factor = factors[0] if _all_near(factors) else 0.0
    if factor:
        each = count // ranks
        known = {
            f"they are summed over {ranks} ranks, and not averaged": float(ranks),
            f"they are divided by {ranks} ranks twice": 1 / ranks,
            f"the loss is not divided by {each} micro-batches": float(each),
            "the loss is divided neither by ranks nor by micro-batches": float(count),
            f"the loss is divided by all {count} micro-batches once too often": 1
            / count,
        }
        because = reason(factor, known)
        return (
            f"gradients are {factor_in_words(factor)}"
            f"{': ' * bool(because)}{because}{apart}"
        )
    if len(set(example.counts)) > 1 and same:
        per_rank = [sum(example.share(example.counts, rank)) for rank in range(ranks)]
        return (
            "gradients are no multiple of the right ones: a mean of means, if each "
            f"rank divides by its own {' and '.join(map(str, per_rank))} samples that "
            "count"
        )
    return f"gradients are no multiple of the right ones{apart}"
