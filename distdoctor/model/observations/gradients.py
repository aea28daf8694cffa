"""What optimizers hold, and the gradients that they got.

A tuple with a value for each parameter keeps the order of the last `Holds` of their
optimizer.
"""

from __future__ import annotations

from distdoctor.model.events import Observation
from distdoctor.model.values import value

NO_GRADIENT = 0
"""In place of a fingerprint: the parameter has no gradient."""

NOT_READ = 1
"""In place of a fingerprint: there is one, and it was not read (sparse or sharded)."""

NOT_FINITE = -1.0
"""In place of a norm: there are NaN or Inf in the tensor."""


@value(frozen=True, slots=True, kw_only=True)
class Holds(Observation):
    """What an optimizer holds, at its first step and when it was given more.

    Its place is the line that made it. "Averaged" are parameters that a wrapper for
    data parallelism took note of when it was made; "late" are those of the wrapped
    model that it did not take note of.
    """

    optimizer: int = 0  # number among the rank's, in order of construction
    kind: str = ""  # name of its class
    names: tuple[str, ...] = ()  # of its parameters; "?": of no model that lives
    sizes: tuple[int, ...] = ()  # elements of each
    averaged: tuple[int, ...] = ()  # positions in `names`
    late: tuple[int, ...] = ()
    settings: int = 0  # fingerprint of its learning rates and the like
    adaptive: bool = False  # a constant factor of all gradients changes nothing
    halves: bool = False  # some of its parameters are float16 or bfloat16
    sharded: bool = False  # some are parts of tensors that lie on several ranks
    divided: bool = False  # a DistributedSampler gives each rank a part of the data


@value(frozen=True, slots=True, kw_only=True)
class Gradients(Observation):
    """What an optimizer got for one of its steps 1, 2, 3, 4, 8, 16 and so on.

    Its place is the line of the step. What was counted was counted since the step
    before. To compare what ranks had with what they used, a linear function of some
    gradients is given: `own`, of what backward gave on this rank; `used`, at the step.
    """

    optimizer: int = 0
    step: int = 0  # from 1
    prints: tuple[int, ...] = ()  # fingerprints of gradients
    norms: tuple[float, ...] = ()  # of gradients; 0.0: zero, or none
    weights: tuple[int, ...] = ()  # fingerprints of the parameters, before the step
    rate: float = 0.0  # largest learning rate of its groups
    passes: int = 0  # backward passes
    reduced: int = 0  # elements that were summed or averaged while they ran
    mixed: int = 0  # elements of parameters that ranks exchanged
    unclear: int = 0  # elements that ranks exchanged, of neither
    moved: int = 0  # all elements that ranks exchanged, but for `reduced`
    most: int = 0  # likewise, before any one step that was not looked at
    probed: tuple[int, ...] = ()  # positions of gradients with `own` and `used`
    own: tuple[float, ...] = ()
    used: tuple[float, ...] = ()
    factor: float = 0.0  # of a loss that is a mean; 0.0: it is not known to be one
    scale: float = 0.0  # that a loss which is a sum was multiplied by; 0.0: likewise
    counts: tuple[float, ...] = ()  # of how many elements that sum may be
    local: bool = False  # a wrapper was told not to average (`no_sync`)


@value(frozen=True, slots=True, kw_only=True)
class Backward(Observation):
    """A line that called backward, for the first time."""


@value(frozen=True, slots=True, kw_only=True)
class Bypassed(Observation):
    """A line that called a wrapped model without its wrapper."""


@value(frozen=True, slots=True, kw_only=True)
class Forgotten(Observation):
    """Parameters got gradients, and no optimizer that was made holds them.

    With `late`, they came into their module after an optimizer was made, and the place
    is the line that put them there.
    """

    step: int = 0  # of any optimizer, when that was seen
    names: tuple[str, ...] = ()
    changed: bool = False  # something changed their values meanwhile
    late: bool = False


@value(frozen=True, slots=True, kw_only=True)
class Added(Observation):
    """A line put a module or parameter into a model that was wrapped already."""


@value(frozen=True, slots=True, kw_only=True)
class Unstepped(Observation):
    """Backward has run several times, and no optimizer made a step."""

    passes: int = 0
    optimizers: int = 0  # that were made
    weights: int = 0  # fingerprint of all parameters that have a gradient


@value(frozen=True, slots=True, kw_only=True)
class NotFinite(Observation):
    """NaN or Inf was seen for the first time.

    The place is the line of the optimizer's step; with `loss`, that of backward.
    """

    optimizer: int = 0
    step: int = 0  # of the optimizer, from 1
    finite: int = 0  # the last step at which nothing of the kind was seen; 0: none
    names: tuple[str, ...] = ()  # of parameters, some of them
    count: int = 0  # parameters
    of: int = 0  # parameters of the optimizer
    loss: bool = False  # the loss was not finite, and the parameters still were
    gradients: bool = False  # the gradients were not, and the parameters still were
    operation: str = ""  # that made the loss so; see below


DIVISION_BY_ZERO = "division"
LOGARITHM_OF_ZERO, LOGARITHM_OF_NEGATIVE = "log", "log-negative"
ROOT_OF_NEGATIVE = "root"
EXPONENTIAL_TOO_LARGE = "exp"
MEAN_OF_NOTHING = "mean"
ALL_IGNORED = "ignored"
"""What first made a number that is not finite, of finite ones: `NotFinite.operation`.
The last is a loss function all of whose labels are to be ignored."""


STEPPED, SKIPPED = "step", "skip"
CLEARED, LEFT = "cleared", "left"
"""How a `TimeBudget` ends: the optimizer steps, its GradScaler leaves the step out, the
gradients are cleared, or the process ends."""


@value(frozen=True, slots=True, kw_only=True)
class Window(Observation):
    """Batches that backward ran on, up to a step of an optimizer.

    They are told from the first on that has several batches; those that are alike and
    follow each other are told once. The place is the line that ends it.
    """

    reads: tuple[int, ...] = ()  # `Read.number` of the passes that they came from
    batches: tuple[int, ...] = ()  # of each
    end: str = STEPPED
    factor: float = 0.0  # as in `Gradients`, without that of a GradScaler
    changes: int = 0  # of a gradient, between backward and the step; -1: not known
    unclear: bool = False  # a gradient was changed between two of the batches
    more: int = 0  # windows that follow and are like it


@value(frozen=True, slots=True, kw_only=True)
class Weighed(Observation):
    """What the batches weigh that an optimizer's step was made with.

    Told of the windows 1, 2, 3, 4, 8, 16 and so on of an optimizer. Of a step made with
    one backward pass, the window is the number of the step, and its gradient is not
    told. The place is the
    line of the step. To tell what was done to the gradients between backward and the
    step, a linear function of one of them is given, without the scale of a GradScaler:
    `own`, as backward left it; `used`, at the step.
    """

    optimizer: int = 0
    window: int = 0  # from 1
    batches: int = 0  # that a loader gave, or that one of its batches was split into
    factors: tuple[float, ...] = ()  # of each backward pass; as in `Gradients`
    counts: tuple[float, ...] = ()  # elements that each loss is a mean of; 0.0: unknown
    constants: tuple[float, ...] = ()  # that losses or parts of them were multiplied by
    parts: bool = False  # one batch was split
    own: float = 0.0
    used: float = 0.0


@value(frozen=True, slots=True, kw_only=True)
class Clip(Observation):
    """A line clipped gradients by their norm before they were sent; told once."""

    optimizer: int = 0  # as in `Holds`


@value(frozen=True, slots=True, kw_only=True)
class NormClip(Observation):
    """A line clipped gradients by a norm that was computed on this rank alone.

    Told of the first ones.
    """

    clip: int = 0  # number among the rank's, from 0
    norm: float = 0.0  # of all gradients that it was given, before
    bound: float = 0.0
    sharded: bool = False  # of parameters of which FSDP has a part on each rank


@value(frozen=True, slots=True, kw_only=True)
class ScaledShards(Observation):
    """Gradients, of which this rank has shards, were multiplied alike before a step.

    Told of the steps that are looked at, also where the factor is 1; its place is the
    line of the step.
    """

    optimizer: int = 0  # as in `Holds`
    step: int = 1
    norm: float = 0.0  # of all the rank's shards, as backward left them
    factor: float = 1.0  # what they were multiplied by from there to the step


@value(frozen=True, slots=True, kw_only=True)
class Exchange(Observation):
    """A line called the function that sends gradients; see `Sent`. Told once."""

    optimizer: int = 0


@value(frozen=True, slots=True, kw_only=True)
class Sent(Observation):
    """What a rank sent for a step, and had not averaged before: gradients, mostly.

    Told are the parameters whose gradients were sent by a line of the user's own, or
    something of their shape instead. The place is the line that sent the first.
    """

    optimizer: int = 0  # as in `Holds`
    step: int = 1
    positions: tuple[int, ...] = ()  # of these parameters
    own: tuple[float, ...] = ()  # norms of what backward gave on this rank
    sent: tuple[float, ...] = ()  # norms of what was sent
    factors: tuple[float, ...] = ()  # by which it is `own`; 0.0: it is no multiple
    calls: tuple[int, ...] = ()  # of the rank's, from 1, the one that carried it; 0: it
    # was not recognised for certain
    weights: tuple[float, ...] = ()  # norms of the parameters
    settled: tuple[int, ...] = ()  # prints of those that were sent within the step and
    # are others behind it; `NO_GRADIENT`: it is none of them
    moved: tuple[float, ...] = ()  # multiple of its gradient that a step took off
    norm: float = 0.0  # that a clipping function found before; 0.0: it was not called
    bound: float = 0.0  # that it was given
    again: bool = False  # it was called behind the exchange, too
    in_backward: bool = False  # sent by a wrapper, in a later backward pass


@value(frozen=True, slots=True, kw_only=True)
class Within(Observation):
    """The call before this gave something to others within a model's forward pass.

    Told before steps that are looked at, of calls that move more than a few figures for
    backward to go through. Its place is that of the call.
    """


KINDS = (
    *(Holds, Gradients, Backward, Bypassed, Forgotten, Added, Unstepped),
    *(NotFinite, Window, Weighed, Clip, NormClip, ScaledShards, Exchange, Sent, Within),
)
