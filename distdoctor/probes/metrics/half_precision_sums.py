"""Finds sums that the user's code accumulates in half precision over batches.

A number of 8 or 11 digits takes up nothing any more of what is much smaller: in
bfloat16, 256 and 1 make 256. The variables of the innermost functions are looked at
when an evaluation gets a batch, and when an optimizer has made a step; seldom, where
none of them is such a sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from distdoctor.model.observations.metrics import Tallied
from distdoctor.probes.call_sites import call_site, users_frames
from distdoctor.probes.fingerprints.sampled import is_capturing
from distdoctor.probes.harmless import harmless
from distdoctor.probes.memory.graph_holders import line_that_fills, variables_of
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_DIGITS = {torch.bfloat16: 8, torch.float16: 11}
"""Binary ones, with the one that is not kept. Source: IEEE 754; torch.finfo."""

_MOST_ABOVE = 2  # the user's functions that are looked at
_MOST_TALLIES = 16
_MOST_TOLD = 32

_EARLY = 8
"""Additions by which it is known what is added each time."""

_GROWING = 4  # additions, from which on a variable is looked at each time

_FEWEST_LOOKS = 32  # after a beginning

_LEAST_STILL = 8  # looks at a sum that stands, where each one before it grew

_FAR = 0.01
"""Difference from what was added, relative, from which on a sum is told to be wrong."""

_COARSE = 4.0
"""How many times half of what it can tell apart is added, up to which it is told of."""


_ROUGH, _WRONG = 1, 2


class _Tally:
    """A variable that may be a running sum, and its values so far."""

    def __init__(self, name: str, digits: int, dtype: str, value: float) -> None:
        self.name, self.digits, self.dtype = name, digits, dtype
        self.value = value
        self.additions = self.still = self._longest = 0
        self._added: list[float] = []
        self._exact = 0.0  # what would stand there; NaN: not the same is added
        self.reported = 0

    def see(self, value: float) -> bool:
        """Note the present value; whether it can still be the same sum."""
        change = value - self.value
        if change < 0.0:
            return False
        if change == 0.0:
            self.still += 1
            if len(self._added) < _EARLY:
                return True
        else:
            self._longest = max(self._longest, self.still)
            self.still = 0
        if len(self._added) < _EARLY:
            self._added.append(change)
        self.additions += 1
        same = self.rounded(self.value + self._added[0]) == value
        if not same or self._added.count(self._added[0]) < len(self._added):
            self._exact = math.nan
        elif self.additions == 1:
            self._exact = value
        else:
            self._exact += self._added[0]
        self.value = value
        return True

    def rounded(self, value: float) -> float:
        """A value rounded to the sum's dtype."""
        part, exponent = math.frexp(value)
        whole = 1 << self.digits
        return math.ldexp(round(part * whole) / whole, exponent)

    @property
    def step(self) -> float:
        """The median of what is added each time."""
        return median(self._added) if self._added else 0.0

    @property
    def exact(self) -> float:
        """The exact value of the sum, if that is known; else 0.0."""
        return 0.0 if math.isnan(self._exact) else self._exact

    @property
    def stands(self) -> bool:
        """Whether the sum has stopped growing for lack of precision."""
        enough = max(_LEAST_STILL, 4 * self._longest + 1)
        lost = self.rounded(self.value + self.step) == self.value
        return self.still >= enough and lost and len(self._added) >= _EARLY

    @property
    def state(self) -> int:
        """Whether the sum is `_ROUGH` or `_WRONG`; 0 if neither."""
        if len(self._added) < _EARLY or self.value <= 0.0:
            return 0
        differs = abs(self.exact - self.value) >= _FAR * self.exact
        if self.stands or (self.exact and differs):
            return _WRONG
        apart = math.ldexp(1.0, math.frexp(self.value)[1] - self.digits)
        rough = self.step <= _COARSE * apart / 2 and self.step < self.value
        return _ROUGH if rough else 0


class Tallies:
    """Finds and follows the running sums of this process in half precision."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all state: the process starts to play in another run."""
        self._tallies: dict[tuple[Any, str], _Tally] = {}
        self._reported = self._idle = 0

    def begin(self) -> None:
        """Called when an evaluation begins or ends."""
        self._idle = 0

    @harmless
    def look(self, *, last: bool = False) -> None:
        """Called at each batch of an evaluation and each step; on the hot path.

        Args:
            last: None follows: the evaluation is over, or ranks combine numbers.
        """
        if last:
            if not self._tallies:
                return
        elif self._idle >= _FEWEST_LOOKS:
            self._idle += 1
            if self._idle & (self._idle - 1):
                return
        if RECORDER.writer is None or is_capturing():
            return
        growing = False
        for frame in users_frames(_MOST_ABOVE):
            for name, value in _halves(frame):
                self._see(frame, name, value, last)
                tally = self._tallies.get((frame.f_code, name))
                growing |= tally is not None and tally.additions >= _GROWING
        if not last:
            self._idle = 0 if growing else self._idle + 1

    def _see(self, frame: FrameType, name: str, tensor: Tensor, last: bool) -> None:
        value = float(tensor.detach())
        key = frame.f_code, name
        tally = self._tallies.get(key)
        if not math.isfinite(value):
            self._tallies.pop(key, None)
            return
        again = last and tally is not None and tally.value == value
        if not again and (tally is None or not tally.see(value)):
            if tally is None and len(self._tallies) >= _MOST_TALLIES:
                return
            dtype = str(tensor.dtype).removeprefix("torch.")
            digits = _DIGITS[tensor.dtype]
            self._tallies[key] = _Tally(name, digits, dtype, value)
            return
        assert tally is not None
        anew = tally.state > tally.reported or (last and tally.reported == _WRONG)
        if anew and self._reported < _MOST_TOLD:
            self._reported += 1
            tally.reported = tally.state
            site = line_that_fills(frame, name)
            if not site and tally.state < _WRONG:
                return  # it may be made anew each time, and only grow
            observation = Tallied(
                name=tally.name,
                dtype=tally.dtype,
                additions=tally.additions,
                value=tally.value,
                step=tally.step,
                exact=tally.exact,
                still=tally.still if tally.stands else 0,
                wrong=tally.state == _WRONG,
            )
            RECORDER.observe(observation, site or call_site(4))


def _halves(frame: FrameType) -> Iterator[tuple[str, Tensor]]:
    for name, value in variables_of(frame):
        if (
            type(value) is Tensor
            and value.dtype in _DIGITS
            and value.numel() == 1
            and value.is_cpu
        ):
            yield name, value


TALLIES = Tallies()


PROBE = Probe(reset=TALLIES.reset)
