"""What a rank's models weigh: fingerprints of parameters, gradients and buffers.

Ranks are compared at the same step of the same model: an optimizer's step that is the
`step`-th one, from 1, for a model that is the `model`-th that the rank came to know.
"""

from __future__ import annotations

from distdoctor.model.events import Observation
from distdoctor.model.values import value


@value(frozen=True, slots=True, kw_only=True)
class Trained(Observation):
    """A model that the rank trains was met for the first time; its place: the model's.

    Told are the parameters that the rank holds whole. What is sharded, or what DDP was
    told to leave alone, is not among them.
    """

    model: int = 0
    names: tuple[str, ...] = ()
    numels: tuple[int, ...] = ()
    frozen: tuple[str, ...] = ()  # those that need no gradient
    ranks: tuple[int, ...] = ()  # that share it; none: all, or nobody knows
    wrapped: bool = False  # in DistributedDataParallel


@value(frozen=True, slots=True, kw_only=True)
class Registered(Observation):
    """Parameters and modules came into a model by one line, which is the place.

    Told before the model is wrapped in DistributedDataParallel. The names are qualified
    and those of parameters, or of what parameters are in.
    """

    names: tuple[str, ...] = ()


@value(frozen=True, slots=True, kw_only=True)
class Optimised(Observation):
    """An optimizer made its first step; its place: where it was made."""

    model: int = 0
    kind: str = ""  # name of its class


@value(frozen=True, slots=True, kw_only=True)
class Weights(Observation):
    """Fingerprints before a step, one for each name of `Trained`; its place: the step.

    Taken at steps that are the same on all ranks; step 0 is the moment after the model
    was wrapped.
    """

    model: int = 0
    step: int = 0
    prints: tuple[int, ...] = ()
    gradients: tuple[int, ...] = ()  # that it used; 0: none, or nothing but zeros
    states: tuple[int, ...] = ()  # of the optimizer, before it; 0: none
    settings: int = 0  # fingerprint of the optimizer's hyperparameters
    samples: tuple[float, ...] = ()  # first, middle and last element of each


@value(frozen=True, slots=True, kw_only=True)
class Trail(Observation):
    """Cheap fingerprints at each of several steps on end: of the first bytes alone."""

    model: int = 0
    first: int = 1  # step of the first entry
    before: tuple[int, ...] = ()
    gradients: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


@value(frozen=True, slots=True, kw_only=True)
class Changed(Observation):
    """Parameters changed outside of an optimizer's step; its place: the line before."""

    model: int = 0
    step: int = 0  # the one that came next
    names: tuple[str, ...] = ()  # some of them


@value(frozen=True, slots=True, kw_only=True)
class Loaded(Observation):
    """`load_state_dict` was called; its place: that line."""

    model: int = 0
    steps: int = 0  # done before
    state: bool = False  # on an optimizer; else on a model that was wrapped, or stepped


@value(frozen=True, slots=True, kw_only=True)
class Evaluated(Observation):
    """A model was put into evaluation mode, or back; its place: that line.

    Told are BatchNorm's buffers, and others that were changed in training.
    """

    model: int = 0
    steps: int = 0  # done before
    names: tuple[str, ...] = ()  # of its buffers
    running: tuple[str, ...] = ()  # of others: their layer's forward pass changes them
    changed: tuple[str, ...] = ()  # of others: nobody knows what changes them
    prints: tuple[int, ...] = ()
    samples: tuple[float, ...] = ()  # first, middle and last element of each
    shared: bool = False  # DDP sends rank 0's buffers to all at each forward pass
    over: bool = False  # the model was put back into training mode


@value(frozen=True, slots=True, kw_only=True)
class Copied(Observation):
    """A copy of a model was put into evaluation mode, or back; its place: that line.

    Or, in no mode that was told, it computed something without gradients, which is over
    with the next backward pass. No optimizer trains it: it is a moving average of the
    model's weights, say. Lines that change it are told as `Changed`, with its number.
    """

    model: int = 0  # that it is a copy of
    copy: int = 0  # its own number
    steps: int = 0  # of the model, done before
    names: tuple[str, ...] = ()  # of its parameters
    prints: tuple[int, ...] = ()
    moved: bool = False  # it has changed since the model's first steps
    over: bool = False  # it was put back into training mode


@value(frozen=True, slots=True, kw_only=True)
class Normalised(Observation):
    """A BatchNorm layer took its statistics in training; its place: the layer's."""

    layer: str = ""  # qualified name
    kind: str = ""  # name of its class
    samples: int = 0  # of the batch on this rank
    values: int = 0  # per channel


KINDS = (
    *(Trained, Registered, Optimised, Weights, Trail, Changed, Loaded),
    *(Evaluated, Copied, Normalised),
)
