"""Sequences of steps with a GradScaler, and what each step did."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from distdoctor.equivalence.batches import Batches, Example
from distdoctor.equivalence.capturing import Trial
from distdoctor.equivalence.comparing import Difference
from distdoctor.equivalence.step import Step

_SCALES = (3, 10)
"""Powers of two that are drawn for the scale."""


@dataclass(frozen=True)
class ScalerRun:
    """One example: micro-batches, an initial scale, and the steps that overflow."""

    example: Example
    exponent: int
    overflows: tuple[bool, ...]

    def in_words(self, scaled: bool) -> str:
        """The example in words, with the scale if there is one."""
        if not scaled:
            return str(self.example)
        steps = [str(n) for n, bad in enumerate(self.overflows, start=1) if bad]
        bad = f", gradients overflow in step {' and '.join(steps)}" if steps else ""
        return f"{self.example}, scale {2**self.exponent}{bad}"


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of one call of the step, and the scale before and after it."""

    trial: Trial  # of this call alone
    overflowed: bool
    before: float  # scale
    after: float
    right: float  # that it should have behind the step
    refused: str = ""  # by the scaler
    number: int = 1  # of the call, from 1


def scaler_runs(
    batches: Batches, step: Step, most: int
) -> st.SearchStrategy[ScalerRun]:
    """A strategy for examples; with overflows only if the step takes a scaler."""
    good = st.just((False,))
    if step.takes("scaler"):
        one_bad = [(False, True, False, False), (True, False, False), (False,) * 3]
        good = st.sampled_from([(False,), *one_bad])
    return st.builds(ScalerRun, batches.examples(1, most), st.integers(*_SCALES), good)


def behaviour(seen: Seen, half: bool) -> Difference:
    """What is wrong with a step and its scale, apart from the gradients."""
    return Difference("gradient", words=_words(seen, half))


def _words(seen: Seen, half: bool) -> str:
    made = len(seen.trial.gradients)
    if seen.refused and seen.number > 1:
        return (
            "`update` is missing: the GradScaler refused the step behind the first: "
            f"{seen.refused}"
        )
    if seen.refused:
        return f"the GradScaler refused: {seen.refused}"
    if seen.overflowed and seen.before > 1 and made:
        return (
            "gradients overflowed, and the optimizer made its step with them: the "
            "GradScaler, which would have left it out, is by-passed"
        )
    if not seen.overflowed and made != 1 and not (half and seen.after < seen.before):
        return f"{made} optimizer steps were made where 1 is right"
    if seen.after != seen.right:
        happened = "an overflow" if seen.overflowed else "a good step"
        return (
            f"the scale is {seen.after:g} behind {happened}, and {seen.right:g} is "
            f"right (it was {seen.before:g}): `update` is missing or called too often"
        )
    return ""
