"""What a rank made of its evaluations: numbers it put together with others', or told.

An evaluation is a pass over a loader, to its end, in which backward never ran. What
comes behind it, up to the next backward pass, is about its outcome.
"""

from __future__ import annotations

from distdoctor.model.events import Observation
from distdoctor.model.values import value


@value(frozen=True, slots=True, kw_only=True)
class Contributed(Observation):
    """The rank gave something to an operation of communication, the last one before."""

    passes: tuple[int, ...] = ()  # `Read.number` of the evaluations before it
    values: tuple[float, ...] = ()  # none if they are many, or no floating-point ones
    total: float = 0.0  # of all it gave, also of a matrix of counts; 0.0: not known


@value(frozen=True, slots=True, kw_only=True)
class Reported(Observation):
    """The rank wrote text with numbers in it to its output or to a log."""

    passes: tuple[int, ...] = ()  # as in `Contributed`
    fraction: bool = False  # there was one with a decimal point or a percent sign


@value(frozen=True, slots=True, kw_only=True)
class AddedUp(Observation):
    """The rank gave a few numbers to an operation that reduces, the last one before.

    At any time, while `Contributed` is about evaluations alone.
    """

    values: tuple[float, ...] = ()
    loss: float = 0.0  # mean of what backward ran on since the `AddedUp` before
    losses: int = 0  # how many these are; 0: not known to be means of samples' losses


@value(frozen=True, slots=True, kw_only=True)
class Shown(Observation):
    """The rank wrote numbers with decimal points, not long after an `AddedUp`."""

    numbers: tuple[float, ...] = ()
    decimals: tuple[int, ...] = ()  # digits behind the point, of each
    labels: tuple[str, ...] = ()  # "average", "loss", "accuracy", "total", joined by -


@value(frozen=True, slots=True, kw_only=True)
class Tallied(Observation):
    """A variable adds up, in half precision, what is small for it by now.

    The place is the line that adds to it.
    """

    name: str = ""  # of the variable
    dtype: str = "bfloat16"
    additions: int = 0  # so far, those that have changed nothing as well
    value: float = 0.0  # that they have come to
    step: float = 0.0  # what is added each time, in the middle of the first ones
    exact: float = 0.0  # what they come to, if it is always the same; 0.0: not known
    still: int = 0  # of the last additions, those that have changed nothing
    wrong: bool = False  # it is known to be, and not only coarse


KINDS = (Contributed, Reported, AddedUp, Shown, Tallied)
