"""What a run computed, step by step, and how another run of the same job differed."""

from __future__ import annotations

from distdoctor.model.events import Observation
from distdoctor.model.values import value

TWICE, RESUME, REFERENCE = "twice", "resume", "reference"

TIMES, PART_OF_SUM, OTHERWISE = "times", "term", "otherwise"
NOT_FINITE, UNCHANGED = "not-finite", "unchanged"
"""How a tensor of a rank departs from the reference's; see `Departed`."""


@value(frozen=True, slots=True, kw_only=True)
class Traced(Observation):
    """What was computed up to an optimizer's step; only seen where runs are compared.

    There is a joint fingerprint for each sort in `WHATS`, under its name, and one for
    each random stream ("random numpy"), and one for each thing of a sort, such as
    "output layer1.0", in order of time; the last are left out of late steps.
    """

    step: int = 1  # of all optimizers, from 1
    names: tuple[str, ...] = ()
    prints: tuple[int, ...] = ()  # fingerprints
    lr: float = -1.0  # of the first group of the optimizer
    scale: float = 0.0  # of the only scaler alive


WHATS = {
    "random": "random state",
    "rate": "learning rate",
    "scale": "loss scale",
    "weights": "weights",
    "buffer": "buffers",
    "state": "optimizer state",
    "input": "input of the model",
    "output": "output",
    "gradient": "gradient",
}
"""First words of names in `Traced`, and what readers call it."""

STANDING = ("random", "rate", "scale", "weights", "buffer", "state")
"""Those that tell where a rank stands before a step."""


@value(frozen=True, slots=True, kw_only=True)
class Compared(Observation):
    """Another run of the job was compared with this one; told by the first rank."""

    how: str = TWICE  # or RESUME, REFERENCE: what the other run was
    steps: int = 0  # of the optimizers on every rank, in both runs
    begun: int = 0  # steps before the checkpoint that was resumed from
    why: str = ""  # nothing, or not all, could be compared


@value(frozen=True, slots=True, kw_only=True)
class _Difference(Observation):
    step: int = 0  # optimizer steps done before it
    what: str = ""  # "seed", "samples", "gradient", …
    name: str = ""  # of the tensor, the stream or the module
    here: str = ""
    there: str = ""


@value(frozen=True, slots=True, kw_only=True)
class Unrepeated(_Difference):
    """A second run of the same job differed from this one; its first difference."""


@value(frozen=True, slots=True, kw_only=True)
class Unrestored(_Difference):
    """The resumed job differed from this one, which went on without interruption."""


GRADIENTS, WEIGHTS = "gradient", "weights"
"""Of what a tensor departs."""


@value(frozen=True, slots=True, kw_only=True)
class Departed(Observation):
    """A tensor of this rank is not its part of the reference's, before a step.

    It is `factor` times that part (`TIMES`); or the ranks of a group have terms of it,
    whose sum is `factor` times that part (`PART_OF_SUM`); or it is not finite, and that
    is (`NOT_FINITE`); or it is what it was before the step before, and that is not
    (`UNCHANGED`); or none of these (`OTHERWISE`). The place is where the tensor was
    made.
    """

    step: int = 1
    what: str = GRADIENTS  # or `WEIGHTS`
    name: str = ""  # in the reference
    kind: str = OTHERWISE
    factor: float = 0.0
    among: tuple[int, ...] = ()  # the group
    excess: float = 0.0  # of the difference, in units of what roundings come to
    of: int = 0  # tensors of this rank that were compared
    called: str = ""  # the line that calls the model; see `step_text`
    stepped: str = ""  # the line that makes the step


@value(frozen=True, slots=True, kw_only=True)
class ForwardCompared(Observation):
    """What modules of this rank gave was looked for in the reference, before a step.

    `module` is the first of those behind which none gives what it does there, and the
    place is where it is called; `behind` is the last one before it that does.
    """

    modules: int = 0  # that were compared
    parted: bool = False
    module: str = ""
    behind: str = ""
    lines: tuple[str, ...] = ()  # that compute behind the last that gives the same
    at: int = 0  # how many modules end before `module` in the reference


SAME, MEAN, SUM, OTHER = "same", "mean", "sum", "other"
"""What losses of ranks are to that of the reference; see `LossCompared`."""


@value(frozen=True, slots=True, kw_only=True)
class LossCompared(Observation):
    """What this rank's backward passes before a step began from, added up.

    The losses of the ranks are each the one of the reference (`SAME`), or their mean or
    sum is, or none of these. The place is where the first pass was begun.
    """

    passes: int = 1  # that are averaged and not added up, if it is more than 1
    here: float = 0.0
    there: float = 0.0  # in the reference
    relation: str = OTHER
    lines: tuple[str, ...] = ()  # that compute it from the model's output


@value(frozen=True, slots=True, kw_only=True)
class BackwardCompared(Observation):
    """How gradients of this rank that depart stood when the backward pass had ended.

    They were the reference's (`right`), or some were and the others terms of a sum over
    a group that is, or a multiple by a number of ranks (`terms`), or one was neither
    (`wrong`); none of these: nobody saw.
    """

    right: bool = False
    terms: bool = False
    wrong: bool = False
    right_behind: str = ""  # gradients of all that comes behind this module are right
    by_hand: tuple[str, ...] = ()  # the user's backward functions; see `step_text`
    lines: tuple[str, ...] = ()  # that compute something before the step


KINDS = (
    *(Traced, Compared, Unrepeated, Unrestored),
    *(Departed, ForwardCompared, LossCompared, BackwardCompared),
)
