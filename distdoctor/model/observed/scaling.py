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


KINDS = (Stride, Overflow, Kept)
