"""Gradients that are scaled for half precision, and steps that are left out for it.

A round is a backward pass whose gradients ranks are to average: within accumulation,
the last one of each window. Rounds count from 1, and alike on all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from distdoctor.model.events import Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Stride(Observation):
    """An optimizer made steps evenly, one in every so many rounds.

    Its place is the line of the first of these steps. Another `Stride` of the optimizer
    follows where that ends.
    """

    optimizer: int = 0  # as in `Holds`
    kind: str = ""  # name of its class
    first: int = 1  # round of the first step
    every: int = 1  # rounds from one to the next
    count: int = 1  # steps
    until: int = 0  # rounds there had been when this was told


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflow(Observation):
    """A step was left out in a round, because something was Inf or NaN.

    A GradScaler left it out, at the place; or, with `loss`, nobody stepped after a
    backward pass of a loss that was not finite, which the place began.
    """

    optimizer: int = 0  # not told with `loss`
    round: int = 0
    scale: float = 0.0  # of the GradScaler, that it found too large; 0: none
    loss: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept(Observation):
    """The state of a GradScaler was asked for, by which it can be saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling(Observation):
    """A GradScaler multiplied a loss for the first time."""

    kind: str = ""  # name of its class
    scale: float = 0.0  # that it was made with


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRead(Observation):
    """A line asked a GradScaler for its scale, behind backward of a scaled loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limited(Observation):
    """One of torch's functions clipped gradients that were still scaled.

    Told are the first time, and the first time that it made some of them smaller.
    """

    optimizer: int = 0
    how: str = ""  # "norm" or "value"
    limit: float = 0.0  # that the function was given
    found: float = 0.0  # norm, or largest magnitude, before; NaN is told as 0
    scale: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed(Observation):
    """Gradients were changed while they were scaled, and given to `GradScaler.step`."""

    optimizer: int = 0
    norm: float = 0.0
    largest: float = 0.0  # magnitude
    scale: float = 0.0


STEPPED, UNSCALED, UNUSED, EARLY = "stepped", "unscaled", "unused", "early"
EMPTY = "empty"  # no parameter of the optimizer had a gradient
"""Why a GradScaler raises: it has made a step since its last update; it has divided
these gradients; it never scaled a loss; its update has nothing to go by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Observation):
    """A method of a GradScaler raised, because it was called out of turn."""

    optimizer: int = 0
    method: str = ""
    why: str = ""
    words: tuple[str, ...] = ()  # as in `Cycle`, since the last step before


KINDS = (*(Stride, Overflow, Kept, Scaling, ScaleRead, Limited, Handed, Refused),)
