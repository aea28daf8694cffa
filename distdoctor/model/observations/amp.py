"""Mixed precision: scaled gradients, steps left out for it, weights in half precision.

A round is a backward pass whose gradients ranks are to average: within accumulation,
the last one of each window. Rounds count from 1, and alike on all ranks.
"""

from __future__ import annotations

from distdoctor.model.events import Observation
from distdoctor.model.values import value


@value(frozen=True, slots=True, kw_only=True)
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


@value(frozen=True, slots=True, kw_only=True)
class Overflow(Observation):
    """A step was left out in a round, because something was Inf or NaN.

    A GradScaler left it out, at the place; or, with `loss`, nobody stepped after a
    backward pass of a loss that was not finite, which the place began.
    """

    optimizer: int = 0  # not told with `loss`
    round: int = 0
    scale: float = 0.0  # of the GradScaler, that it found too large; 0: none
    loss: bool = False


@value(frozen=True, slots=True, kw_only=True)
class Kept(Observation):
    """The state of a GradScaler was asked for, by which it can be saved."""


@value(frozen=True, slots=True, kw_only=True)
class Scaling(Observation):
    """A GradScaler multiplied a loss for the first time."""

    kind: str = ""  # name of its class
    scale: float = 0.0  # that it was made with


@value(frozen=True, slots=True, kw_only=True)
class ScaleRead(Observation):
    """A line asked a GradScaler for its scale, behind backward of a scaled loss."""


@value(frozen=True, slots=True, kw_only=True)
class Limited(Observation):
    """One of torch's functions clipped gradients that were still scaled.

    Told are the first time, and the first time that it made some of them smaller.
    """

    optimizer: int = 0
    how: str = ""  # "norm" or "value"
    limit: float = 0.0  # that the function was given
    found: float = 0.0  # norm, or largest magnitude, before; NaN is told as 0
    scale: float = 0.0


@value(frozen=True, slots=True, kw_only=True)
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


@value(frozen=True, slots=True, kw_only=True)
class Refused(Observation):
    """A method of a GradScaler raised, because it was called out of turn."""

    optimizer: int = 0
    method: str = ""
    why: str = ""
    words: tuple[str, ...] = ()  # as in `Cycle`, since the last step before


@value(frozen=True, slots=True, kw_only=True)
class LoweredBackward(Observation):
    """A line of the user's called backward where autocast was on, for the first time.

    What a library calls is not told, nor what runs inside of another backward pass.
    """

    device: str = "cuda"  # type of the device that autocast was on for
    dtype: str = "bfloat16"


@value(frozen=True, slots=True, kw_only=True)
class StaleCast(Observation):
    """Backward ran through a copy of a parameter that autocast made before a step.

    The parameter had been changed since backward ran through that very copy before.
    The place is the line of backward.
    """

    passes: int = 0  # under autocast, when that was seen
    names: tuple[str, ...] = ()  # of such parameters, some of them


@value(frozen=True, slots=True, kw_only=True)
class HalfStep(Observation):
    """A step of an optimizer on parameters that it holds in float16 or bfloat16.

    Some elements of some parameters were looked at before and after the step; `given`
    are those of them that had a gradient other than 0. Those that stayed had one at all
    steps that were looked at since an earlier one, a few steps at the least, and none
    of those moved them. The place is the line of the step.
    """

    optimizer: int = 0  # as in `Holds`
    step: int = 1  # as in `Gradients`
    dtype: str = "float16"  # of these parameters
    count: int = 1  # parameters of that dtype that had a gradient
    rate: float = 0.0  # largest learning rate of their groups
    epsilon: float = 0.0  # smallest of their groups; 0.0: they have none
    own: bool = False  # its step is not one of torch's
    stateful: bool = False  # it keeps tensors of that dtype for them
    compensated: bool = False  # it keeps what rounding takes away, or rounds by chance
    given: int = 0  # elements
    lost: int = 0  # of them, those that the step left as they were
    since: int = 0  # an earlier step that was looked at; 0: none
    stayed: int = 0  # of those lost, such as have the value that this one left, too
    faded: int = 0  # of them, those with a 0 in a tensor that the optimizer keeps


KINDS = (
    *(Stride, Overflow, Kept, Scaling, ScaleRead, Limited, Handed, Refused),
    LoweredBackward,
    StaleCast,
    HalfStep,
)
