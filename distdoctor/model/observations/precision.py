"""In which precision a rank computes and keeps its weights."""

from __future__ import annotations

from dataclasses import dataclass

from distdoctor.model.events import Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredBackward(Observation):
    """A line of the user's called backward where autocast was on, for the first time.

    What a library calls is not told, nor what runs inside of another backward pass.
    """

    device: str = "cuda"  # type of the device that autocast was on for
    dtype: str = "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleCast(Observation):
    """Backward ran through a copy of a parameter that autocast made before a step.

    The parameter had been changed since backward ran through that very copy before.
    The place is the line of backward.
    """

    passes: int = 0  # under autocast, when that was seen
    names: tuple[str, ...] = ()  # of such parameters, some of them


@dataclass(frozen=True, slots=True, kw_only=True)
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


KINDS = (LoweredBackward, StaleCast, HalfStep)
