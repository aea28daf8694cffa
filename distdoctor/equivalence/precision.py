"""Property: mixed precision, with or without GradScaler, equals full precision."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import NoReturn

import torch

from distdoctor.equivalence.batches import Batches, cast
from distdoctor.equivalence.capturing import (
    Trial,
    autocast_off,
    autocast_seen,
    capturing,
)
from distdoctor.equivalence.comparing import (
    Difference,
    Reference,
    gradient_difference,
    reference,
)
from distdoctor.equivalence.gradient_factors import (
    common_factor,
    factor_in_words,
    near,
    reason,
)
from distdoctor.equivalence.property_reports import PropertyReport, broken
from distdoctor.equivalence.rounding import unit_roundoff
from distdoctor.equivalence.scaler_model import (
    Expected,
    overflowing,
    scaler_of,
    scalers_word,
)
from distdoctor.equivalence.scaler_runs import ScalerRun, Seen, behaviour, scaler_runs
from distdoctor.equivalence.searching import search, undisturbed
from distdoctor.equivalence.step import Step, build, first_model
from distdoctor.equivalence.step_runner import Runner, forget
from distdoctor.errors import StepUnusable
from distdoctor.model.observations.equivalence import PRECISION
from distdoctor.probes.harmless import paused

_TRIALS = 4
_MANY_TRIALS = 32
"""Of rounding, where a difference was found: in low precision, inputs of a ReLU change
their sign, and not seldom, so that a whole row of a gradient comes or goes. A unit that
did so is near zero, and does so in about every third trial."""
_CLEAR = 1e3
"""Excess of a difference that no change of branch explains."""
_CLOSE = 0.25
"""Relative difference of factors that low precision may make."""
_EXACT = 1e-3


@dataclass(frozen=True, slots=True)
class _Worst:
    found: Difference
    seen: Seen
    expected: Reference
    close: float  # relative difference of factors that are the same


def assert_amp(
    step: Step,
    batches: Batches,
    *,
    most: int = 2,
    examples: int = 8,
    dtype: torch.dtype | None = None,
    device: str = "cpu",
) -> PropertyReport:
    """Fail unless a step in mixed precision equals the step in full precision.

    The step holds its own `torch.autocast`, and is given a GradScaler if it has a
    parameter `scaler`. What the optimizer is handed, unscaled, is compared with what
    the same step hands it in float64, without autocast and scaling, from the same
    weights. Several steps are made in a row: in some, gradients are made to overflow,
    which must leave the optimizer's step out and lower the scale; after good ones it
    must grow.
    With a scaler, all is done once more in float32: scaling and clipping must then be
    right but for the rounding of float32.

    Args:
        step: The user's step.
        batches: What micro-batches look like.
        most: Micro-batches of a step, at most.
        examples: How many are tried.
        dtype: The lower precision, where the step does not say it by autocast.
        device: Where it runs.

    Returns:
        How far the worst example was from failing.

    Raises:
        EquivalenceBroken: It is not; with the smallest example and the factor.
        StepUnusable: There is no lower precision in the step.
    """
    __tracebackhide__ = True
    with undisturbed():
        runner = Runner(step, first_model(step), device)
        tried, report = _Precision(runner, dtype), PropertyReport(PRECISION)

        def attempt(course: ScalerRun) -> Difference | None:
            found = tried.difference(course).found
            if 1 < found.excess < _CLEAR:
                found = tried.difference(course, _MANY_TRIALS).found
            if found.excess > 1:
                return found
            report.add(found)
            return None

        worst = search(scaler_runs(batches, step, most), attempt, examples)
        if worst is not None:
            tried.fail(worst[0])
    return report.held()


class _Precision:
    def __init__(self, runner: Runner, dtype: torch.dtype | None) -> None:
        self._runner, self._dtype = runner, dtype

    def difference(self, course: ScalerRun, trials: int = _TRIALS) -> _Worst:
        """The largest difference in all steps of an example, in either precision."""
        seen = self._steps(course, low=True)
        low = self._low(seen)
        found = [self._worst(course, seen, low, trials)]
        if self._runner.step.takes("scaler"):
            plain = self._steps(course, low=False)
            found.append(self._worst(course, plain, None, trials))
        # In float32, figures are exact: if both are wrong, they tell more.
        return max(reversed(found), key=lambda one: one.found.excess)

    def _worst(
        self,
        course: ScalerRun,
        seen: Sequence[Seen],
        low: torch.dtype | None,
        trials: int,
    ) -> _Worst:
        expected = self._reference(course, low, trials)
        half = low is torch.float16
        close = _EXACT if low is None else _CLOSE
        found = [_Worst(behaviour(one, half), one, expected, close) for one in seen]
        for number, one in enumerate(seen, start=1):
            if not one.overflowed and one.trial.gradients:
                apart = gradient_difference(one.trial, expected)
                apart = replace(apart, step=number)
                found.append(_Worst(apart, one, expected, close))
        return max(found, key=lambda one: one.found.excess)

    def fail(self, course: ScalerRun) -> NoReturn:
        """Fail with an explanation for the smallest example."""
        __tracebackhide__ = True
        worst = self.difference(course)
        if worst.found.excess < _CLEAR:
            worst = self.difference(course, _MANY_TRIALS)
        found, seen = worst.found, worst.seen
        why, factor = found.words, 0.0
        if not why:
            why, factor = self._reason(course, worst)
        broken(
            PRECISION,
            "the step in mixed precision is not equivalent to full precision",
            found,
            example=course.in_words(self._runner.step.takes("scaler")),
            why=why,
            factor=factor,
            site=seen.trial.site,
            where=self._runner.step.where,
        )

    # --- runs ---

    def _steps(self, course: ScalerRun, *, low: bool) -> list[Seen]:
        """Make the steps, each with the same weights and micro-batches.

        Args:
            course: What happens in them.
            low: With autocast, if the step enters it.
        """
        runner = self._runner
        seen: list[Seen] = []
        scaler = scaler_of(runner.step, runner.device, 2.0**course.exponent)
        right = None if scaler is None else Expected(scaler)
        with paused():
            trainee = build(runner.step, runner.start, torch.float32, scaler=scaler)
            parts = course.example.micro_batches()
            parts = cast(parts, torch.float32, runner.device)
            for overflows in course.overflows:
                trial, refused = Trial(), ""
                before = 1.0 if scaler is None else float(scaler.get_scale())
                torch.manual_seed(course.example.seed)
                with ExitStack() as stack:
                    stack.enter_context(capturing(trainee, trial, frozen=True))
                    about = autocast_seen(trial.autocast) if low else autocast_off()
                    stack.enter_context(about)
                    stack.enter_context(overflowing(trainee.model, overflows))
                    try:
                        trainee.call(runner.step, parts)
                    except (RuntimeError, AssertionError, ValueError) as error:
                        refused = scalers_word(error)
                        if not refused:
                            raise
                after = 1.0 if scaler is None else float(scaler.get_scale())
                natural = not trial.gradients and after < before
                wanted = 1.0
                if right is not None:
                    wanted = right.stepped(overflows or natural)
                    right.scale = after  # what is wrong is told once
                facts = (trial, overflows, before, after, wanted, refused)
                seen.append(Seen(*facts, len(seen) + 1))
                if refused:
                    break
            forget(trainee, seen[-1].trial)
        return seen

    def _reference(
        self, course: ScalerRun, low: torch.dtype | None, trials: int
    ) -> Reference:
        parts = course.example.micro_batches()

        def run(around: AbstractContextManager[object]) -> Trial:
            return self._runner.run(
                [parts],
                torch.float64,
                seed=course.example.seed,
                frozen=True,
                around=around,
            )

        expected = reference(
            run, torch.float32, more=len(parts), storage=low, trials=trials
        )
        if not expected.trial.gradients:
            raise StepUnusable(
                "the step made no optimizer step in full precision: it is to make one"
            )
        return expected

    def _low(self, seen: Sequence[Seen]) -> torch.dtype:
        """The lowest precision of a step.

        Raises:
            StepUnusable: There is none but float32.
        """
        known = set() if self._dtype is None else {self._dtype}
        for one in seen:
            known |= one.trial.autocast
        if not known:
            raise StepUnusable(
                "the step never enters torch.autocast, so there is nothing to compare: "
                "give assert_amp the lower precision, as dtype=torch.bfloat16"
            )
        return max(known, key=unit_roundoff)

    # --- reasons ---

    def _reason(self, course: ScalerRun, worst: _Worst) -> tuple[str, float]:
        seen, expected, close = worst.seen, worst.expected.trial, worst.close
        factor = common_factor(
            seen.trial.gradients[0], expected.gradients[0], close=close
        )
        for mine, right in zip(seen.trial.clips, expected.clips, strict=False):
            if seen.before > 1 and near(mine, right * seen.before, _CLOSE):
                return (
                    f"gradients are clipped while they are still scaled by "
                    f"{seen.before:g}: their norm seemed to be {mine:.3g} and is "
                    f"{right:.3g}; unscale_ belongs before clip_grad_norm_"
                ), factor
        if not factor:
            return "gradients are no multiple of the right ones", 0.0
        count = len(course.example.rows)
        known = {
            f"they are still scaled by {seen.before:g}": seen.before,
            f"they are divided by the scale {seen.before:g} twice": 1 / seen.before,
            f"they are multiplied by the scale {seen.before:g} twice": seen.before**2,
        }
        if count > 1:
            known[f"the loss is not divided by {count}"] = float(count)
        because = reason(factor, known, close)
        return (
            f"gradients are {factor_in_words(factor)}{': ' * bool(because)}{because}",
            factor,
        )
