"""What tests with `distdoctor.equivalence` found out about a training step."""

from __future__ import annotations

from distdoctor.model.events import Observation
from distdoctor.model.values import value

ACCUMULATION, RANKS, PRECISION = "accumulation", "ranks", "precision"
CHECKPOINTING, RESUMING, COMPILING = "checkpointing", "resuming", "compiling"
"""Properties by their names."""


@value(frozen=True, slots=True, kw_only=True)
class Property(Observation):
    """A property of a step was tried on some examples.

    The place is the line that made the step of the optimizer, in the smallest example
    for which it does not hold.
    """

    name: str = ACCUMULATION
    held: bool = False  # for all examples
    example: str = ""  # the smallest for which it does not, in words
    parameter: str = ""  # with the largest error; "": the steps' numbers differ
    factor: float = 0.0  # by which all gradients are wrong; 0.0: by none
    excess: float = 0.0  # the error, in units of what rounding can explain
    why: str = ""  # in words


KINDS = (Property,)
