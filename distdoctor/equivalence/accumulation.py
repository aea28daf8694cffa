"""Property: accumulating over micro-batches equals one step on the whole batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import torch

from distdoctor.equivalence.batches import Batches, Example, share_of
from distdoctor.equivalence.capturing import Tensors, Trial
from distdoctor.equivalence.comparing import (
    Difference,
    Reference,
    gradient_difference,
    reference,
)
from distdoctor.equivalence.gradient_factors import (
    alike,
    common_factor,
    factor_in_words,
    flat,
    reason,
    weights_of,
)
from distdoctor.equivalence.inseparable import refuse, refuse_inseparable
from distdoctor.equivalence.property_reports import PropertyReport, broken
from distdoctor.equivalence.searching import search, undisturbed
from distdoctor.equivalence.step import Step, first_model
from distdoctor.equivalence.step_runner import Runner, windows_of
from distdoctor.errors import StepUnusable
from distdoctor.model.observations.equivalence import ACCUMULATION

_CLAIM = "accumulation over micro-batches"
_ROUNDING_SHARE = 1e-3
"""Of a bound: an error that is less than this in float64 came of rounding alone."""
_APART = 1e-6
"""Of the largest gradient: what is left where parts make up the whole."""


def assert_accumulates(
    step: Step,
    batches: Batches,
    *,
    least: int | None = None,
    most: int = 4,
    examples: int = 12,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> PropertyReport:
    """Fail unless micro-batches give the same gradients as one batch of them all.

    What the optimizer is handed is compared with what it is handed by the same step
    for all samples in a single micro-batch, or with the gradient of `step.loss`. The
    step is called twice in a row, so gradients that nothing clears are found as well.
    The weights stay as they are all the time, autocast is off, and a GradScaler is
    disabled.

    Args:
        step: The user's step.
        batches: What micro-batches look like.
        least: Micro-batches of an example, at least; by default 2, or 1 if the step has
            a `loss` of its own.
        most: At most; windows of accumulation are `step.window` of them.
        examples: How many are tried.
        dtype: Dtype of the weights. Low precision hides what is to be found.
        device: Where it runs.

    Returns:
        How far the worst example was from failing.

    Raises:
        EquivalenceBroken: They do not; with the smallest example and the factor.
        NotEquivalentByNature: The model or the loss couples the samples of a batch.
        StepUnusable: The step makes no step of its optimizer, or clears the gradients
            before it.
    """
    __tracebackhide__ = True
    least = least or (1 if step.loss else 2)
    with undisturbed():
        runner = Runner(step, first_model(step), device)
        tried, report = _Accumulation(runner, dtype), PropertyReport(ACCUMULATION)

        def attempt(example: Example) -> Difference | None:
            found = tried.difference(example)
            if found.excess <= 1 or not tried.is_confirmed(example):
                report.add(found)
                return None
            return found

        worst = search(batches.examples(least, max(least, most)), attempt, examples)
        if worst is not None:
            tried.fail(*worst)
    return report.held()


class _Accumulation:
    def __init__(self, runner: Runner, dtype: torch.dtype) -> None:
        self._runner, self._dtype = runner, dtype
        self._last: tuple[Example, Reference] | None = None

    def difference(self, example: Example) -> Difference:
        """The difference in gradients in the requested precision."""
        parts = example.micro_batches()
        expected = self._reference(example)
        try:
            trial = self._trial(example, parts, self._dtype)
        except ValueError:  # batch normalization of a single sample
            refuse(expected.trial, expected.random, _CLAIM)
            raise
        found = gradient_difference(trial, expected, repeats=2)
        if found.excess > 1:
            refuse(expected.trial, expected.random, _CLAIM)
        return found

    def is_confirmed(self, example: Example) -> bool:
        """Whether the difference is found in float64, too, without rounding errors.

        A ReLU's input that is zero but for rounding can take another branch.
        """
        trial = self._trial(example, example.micro_batches(), torch.float64)
        found = gradient_difference(
            trial, self._reference(example), share=_ROUNDING_SHARE, repeats=2
        )
        return found.excess > 1

    def fail(self, example: Example, found: Difference) -> NoReturn:
        """Fail with an explanation for the smallest example."""
        __tracebackhide__ = True
        expected = self._reference(example).trial
        trial = self._trial(example, example.micro_batches(), torch.float64)
        why, factor = self._reason(example, found, trial, expected)
        broken(
            ACCUMULATION,
            f"{_CLAIM} is not equivalent to one batch",
            found,
            example=str(example),
            why=why,
            factor=factor,
            site=trial.site,
            where=self._runner.step.where,
        )

    # --- runs ---

    def _reference(self, example: Example) -> Reference:
        if self._last is None or self._last[0] != example:
            self._last = (example, self._computed(example))
        return self._last[1]

    def _computed(self, example: Example) -> Reference:
        step, join = self._runner.step, example.batches.join
        wholes = [[join(window)] for window in windows_of(step, example)]

        def run(around: AbstractContextManager[object]) -> Trial:
            return self._runner.run(
                wholes,
                torch.float64,
                seed=example.seed,
                frozen=True,
                by_loss=step.loss is not None,
                around=around,
            )

        expected = reference(run, self._dtype, more=len(example.rows))
        if not expected.trial.gradients:
            raise StepUnusable(
                "the step made no optimizer step for a single micro-batch: it is to "
                "make one for the micro-batches it is given, and to clear gradients"
            )
        if not any(map(_is_there, expected.trial.gradients)):
            raise StepUnusable(
                "the step hands its optimizer no gradients for a single micro-batch: "
                "they are to be cleared behind the optimizer's step, or before backward"
            )
        return expected

    def _trial(
        self, example: Example, parts: Sequence[Any], dtype: torch.dtype
    ) -> Trial:
        return self._runner.run([parts] * 2, dtype, seed=example.seed, frozen=True)

    # --- reasons, in float64 ---

    def _reason(
        self, example: Example, found: Difference, trial: Trial, expected: Trial
    ) -> tuple[str, float]:
        windows = windows_of(self._runner.step, example)
        if found.words and len(trial.gradients) != 2 * len(windows):
            return _of_steps(len(trial.gradients) / 2, windows), 0.0
        number = found.step - 1
        position = number % len(windows)
        here, there = trial.gradients[number], expected.gradients[position]
        factor = common_factor(here, there)
        if number >= len(windows):
            return _of_second(factor, trial, position), factor
        window = windows[position]
        size = self._runner.step.window or len(window)
        if factor:
            known = _known(len(window), size, example)
            because = reason(factor, known)
            return (
                f"gradients are {factor_in_words(factor)}"
                f"{': ' * bool(because)}{because}",
                factor,
            )
        first = sum(len(one) for one in windows[:position])
        counts = example.counts[first : first + len(window)]
        return self._of_parts(window, counts, here, there, trial, expected), 0.0

    def _of_parts(
        self,
        window: Sequence[Any],
        counts: Sequence[int],
        here: Tensors,
        there: Tensors,
        trial: Trial,
        expected: Trial,
    ) -> str:
        """How micro-batches enter what the optimizer got, and how they should."""
        runner, by_loss = self._runner, self._runner.step.loss is not None
        alone = [
            runner.run([[one]], torch.float64, frozen=True, by_loss=by_loss).gradients[
                0
            ]
            for one in window
        ]
        parts = [flat(one, there) for one in alone]
        mine, theirs = flat(here, there), flat(there, here)
        if mine is None or theirs is None or any(one is None for one in parts):
            return "gradients have other shapes"
        rows = [one for one in parts if one is not None]
        if not math.isfinite(float(mine.abs().max())):
            return "gradients are not finite"
        wanted, rest = weights_of(theirs, rows)
        if rest > _APART:
            refuse_inseparable(_CLAIM)
        given, rest = weights_of(mine, rows)
        count = len(window)
        if len(trial.clips) > len(expected.clips) * 2:
            return (
                f"gradients are clipped {len(trial.clips) // 2} times for one step: "
                "once for each micro-batch, and not once for their sum"
            )
        if rest > _APART:
            return "gradients are no sum of those of the micro-batches"
        lost = [
            k for k in range(count) if abs(given[k]) <= _APART * max(map(abs, given))
        ]
        if lost == list(range(count - 1)):
            return (
                "only the last micro-batch counts: gradients are cleared between two "
                "micro-batches"
            )
        if lost:
            numbers = ", ".join(str(k + 1) for k in lost)
            return f"micro-batch {numbers} of {count} does not count"
        shares = [a / b if b else math.inf for a, b in zip(given, wanted, strict=True)]
        weights_clause = (
            f"the micro-batches weigh {_weights(given)} where {_weights(wanted)} is "
            "right"
        )
        if alike(wanted, share_of(counts)) and alike(shares[:1] * count, shares):
            return f"gradients are {factor_in_words(shares[0])}"
        if len(set(counts)) > 1 and alike(given, given[:1] * count):
            scale = "" if abs(given[0] * count - 1) < _APART else ", and not divided"
            return (
                f"a mean of means: {weights_clause}, because they have "
                f"{' and '.join(map(str, counts))} samples that count{scale}"
            )
        return weights_clause


def _is_there(gradients: Tensors) -> bool:
    return any(one is not None and bool(one.any()) for one in gradients.values())


def _known(count: int, size: int, example: Example) -> dict[str, float]:
    """Factors that a slip makes, for a window of so many micro-batches."""
    total = float(sum(example.counts))
    known = {
        f"the loss is not divided by {count}": float(count),
        f"the loss is divided by {count} twice": 1 / count,
    }
    if count != size:
        known |= {
            f"the {_left(count)} divided by the {size} of a full window": count / size,
        }
    known |= {
        f"the loss is a sum over {total:g} samples, and not their mean": total,
        f"the loss is divided by all {total:g} samples once too often": 1 / total,
    }
    return known


def _of_steps(made: float, windows: Sequence[Sequence[Any]]) -> str:
    sizes = [len(one) for one in windows]
    want = len(windows)
    if made == 0:
        return "the step makes no optimizer step for these micro-batches"
    if made == want - 1 and sizes[-1] < sizes[0]:
        return (
            f"no step is made with what is left: the {_left(sizes[-1])} dropped behind "
            f"full windows of {sizes[0]}, or leaks into the next one"
        )
    return f"the step makes {made:g} optimizer steps where {want} are right"


def _of_second(factor: float, trial: Trial, position: int) -> str:
    """The step is made a second time with the same micro-batches, and gives another."""
    again = common_factor(trial.gradients[-1], trial.gradients[position])
    much = f" {factor_in_words(factor)}" if factor else " others"
    return (
        f"the first step is right, and the same step made again gets gradients{much}: "
        "nothing clears the gradients of the step before"
        if abs(again - 1) > _APART
        else f"gradients are{much}"
    )


def _left(count: int) -> str:
    if count == 1:
        return "1 micro-batch that is left is"
    return f"{count} micro-batches that are left are"


def _weights(values: Sequence[float]) -> str:
    return " : ".join(f"{value:.3g}" for value in values)
