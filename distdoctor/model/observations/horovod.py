"""What Horovod's optimizer does with the user's, and what is done to it."""

from __future__ import annotations

from distdoctor.model.events import Observation
from distdoctor.model.observations.data import SamplesRead
from distdoctor.model.values import value


@value(frozen=True, slots=True, kw_only=True)
class OptimizerWrapped(Observation):
    """`hvd.DistributedOptimizer` made an optimizer of the user's; at that line."""

    optimizer: int = 0  # number of the new one, as in `Holds`
    passes: int = 1  # backward passes to a step
    parameters: int = 0  # that it holds
    op: str = "avg"  # by which it reduces gradients


@value(frozen=True, slots=True, kw_only=True)
class StateDropped(Observation):
    """An optimizer made a step without the state that the one it was made of had.

    Its place is the line that wrapped it.
    """

    optimizer: int = 0
    entries: int = 0  # parameters that had a state
    step: float = -1.0  # how far it was by its own count; -1: it has none
    loaded: bool = False  # by `load_state_dict`


@value(frozen=True, slots=True, kw_only=True)
class ChangedInFlight(Observation):
    """Gradients were changed after Horovod had been given them to average.

    Its place is the line that changed them, or else the one that waited for them.
    """

    optimizer: int = 0
    step: int = 0  # from 1
    count: int = 0  # of its parameters
    of: int = 0
    how: str = ""  # "clip", "unscale"; "": not known
    norm: float = 0.0  # of the gradients before they were clipped, and the bound
    bound: float = 0.0


@value(frozen=True, slots=True, kw_only=True)
class ReducedTwice(Observation):
    """A step reduced gradients that `synchronize` had reduced; at its line."""

    optimizer: int = 0
    step: int = 0
    op: str = "avg"


@value(frozen=True, slots=True, kw_only=True)
class ReducedAgain(Observation):
    """An optimizer of Keras was given gradients that had been reduced several times.

    It is told once for each of the lines that reduce, in their order, of the program
    and not of each step; its place is that line.
    """

    at: int = 0  # of those that reduce, from 0
    op: str = "avg"  # "sum": what was equal on all ranks was summed, and not divided
    count: int = 0  # of the gradients
    of: int = 0


@value(frozen=True, slots=True, kw_only=True)
class UnexpectedPass(Observation):
    """A backward pass began while Horovod had gradients of the pass before.

    Or, if `cleared`, gradients were to be cleared then. Its place is that line. Horovod
    refuses it if the gradients are those of the same parameters.
    """

    optimizer: int = 0
    passes: int = 1  # that it was made to expect before a step
    cleared: bool = False


@value(frozen=True, slots=True, kw_only=True)
class NameInFlight(Observation):
    """Horovod refused a call: it had one of the same name already, and not done yet.

    Its place is the line of the call, or that of the backward pass in which an
    optimizer of Horovod's made it.
    """

    name: str = ""  # with the family, as calls tell it: "allreduce.loss"
    holders: int = 0  # optimizers of Horovod's that reduce a gradient by that name
    parameters: int = 0  # that these call so: 1, or they mean different ones


@value(frozen=True, slots=True, kw_only=True)
class GraphUnclear(Observation):
    """A function of TensorFlow has operations that a run of it may make or not.

    None of its operations is recorded. Its place is the line that called it first.
    """

    function: str = ""
    operations: int = 0  # of which nobody knows
    certain: int = 0  # that each run makes


@value(frozen=True, slots=True, kw_only=True)
class VariablePrints(Observation):
    """What the variables of a Keras optimizer weigh, after so many steps of it.

    Told before its first step, and at steps that become rarer and are the same on all
    ranks. Its place is the line that led to it.
    """

    optimizer: int = 0  # number among the rank's of Keras, in order of their first step
    step: int = 0  # made so far
    names: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()  # elements of each
    prints: tuple[int, ...] = ()  # fingerprints
    wrapped: bool = False  # by `hvd.DistributedOptimizer`


@value(frozen=True, slots=True, kw_only=True)
class PipelineStage(Observation):
    """A pipeline of `tf.data` that a rank reads shuffles, splits, or repeats samples.

    Its place is the line that does so.
    """

    pipeline: int = 0  # number among the rank's
    at: int = 0  # its position among the stages of the pipeline
    first: int = 0  # position of the first stage of those that its samples come of
    kind: str = ""  # "shuffle", "shard", "skip", "repeat"
    size: int = 0  # of the buffer; number of shards; samples skipped; how often
    index: int = 0  # of the shard that is kept
    seeds: tuple[int, ...] = ()  # by which it shuffles; 0, 0: anew each time


@value(frozen=True, slots=True, kw_only=True)
class PipelineRead(SamplesRead):
    """A pass over a pipeline of `tf.data` began, went on, or ended.

    A pass is told in parts, the first of them as it begins. Its place is the line that
    began it.
    """

    number: int = 0  # of the pass among the rank's; its parts have the same
    pipeline: int = 0
    source: int = 0  # fingerprint of some of what the source holds; 0: not known
    stages: tuple[str, ...] = ()  # classes, each behind those that it has samples of
    contents: tuple[int, ...] = ()  # fingerprints of samples, in the order of reading
    batches: int = 0  # that Python was given
    steps: int = 0  # of Keras' optimizers meanwhile
    ended: bool = False  # there was no more to read


KINDS = (
    *(UnexpectedPass, OptimizerWrapped, StateDropped, ChangedInFlight, ReducedTwice),
    *(ReducedAgain, NameInFlight),
    *(GraphUnclear, VariablePrints, PipelineStage, PipelineRead),
)
