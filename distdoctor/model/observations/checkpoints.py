"""What a rank wrote to checkpoints, read from them, and gave to its objects."""

from __future__ import annotations

from distdoctor.model.events import Observation
from distdoctor.model.values import value


@value(frozen=True, slots=True, kw_only=True)
class _File(Observation):
    """A checkpoint and what is in it.

    Its parts are "model" (a mapping of names to tensors), "optimizer", "scheduler",
    "scaler" and "rng" (the random state that torch had at that moment).
    """

    file: str = ""  # absolute, with links resolved
    disk: int = 0  # fingerprint of the machine and of the file system it is on
    began_ns: int = 0  # monotonic clock of the machine
    ended_ns: int = 0
    parts: tuple[str, ...] = ()  # in the order of their names, as often as they occur
    filled: int = 0  # optimizers in it whose state has entries (momentum, for one)
    position: int = -1  # `last_epoch` of the scheduler in it; -1: there is not just one
    schedule: int = 0  # fingerprint of what else its state says; 0 likewise
    scale: float = 0.0  # of the scaler in it; 0: none
    lr: float = -1.0  # of the first group of the first optimizer in it; -1: none
    numbers: tuple[int, ...] = ()  # integers beside the parts: an epoch, a step


@value(frozen=True, slots=True, kw_only=True)
class Stored(_File):
    """A checkpoint was written; torch.save ended."""

    running: int = -1  # `last_epoch` of the only scheduler alive; -1: not just one
    running_schedule: int = 0  # its fingerprint
    running_filled: int = 0  # optimizers alive whose state has entries
    rules: tuple[int, ...] = ()  # fingerprints of these optimizers' hyper-parameters
    running_scale: float = 0.0  # of a GradScaler in use; 0: none, or that is in it
    first_scale: float = 0.0  # that this GradScaler was made with
    values: int = 0  # fingerprint of its numbers, texts and random states; 0: none
    weights: int = 0  # of the tensors of models in it, as far as looked at; 0: none


@value(frozen=True, slots=True, kw_only=True)
class Storing(Observation):
    """A checkpoint is about to be written; `Stored` follows, if that comes to its end.

    `file` and `disk` are as in `Stored`.
    """

    file: str = ""
    disk: int = 0
    began_ns: int = 0  # monotonic clock of the machine


@value(frozen=True, slots=True, kw_only=True)
class Moved(Observation):
    """A file that was written as a checkpoint got another name, at one blow."""

    source: str = ""
    file: str = ""
    ended_ns: int = 0


@value(frozen=True, slots=True, kw_only=True)
class Opened(_File):
    """A checkpoint was read; torch.load ended."""

    error: str = ""  # the exception that ended it: "FileNotFoundError"


@value(frozen=True, slots=True, kw_only=True)
class Given(Observation):
    """`load_state_dict` of a live object was called, and returned.

    The names of a model and of the state can differ by what stands before them. Then
    `prefix` is what the state's names have more, `lacking` what they have less.
    """

    what: str = ""  # "model", "optimizer", "scheduler" or "scaler"
    kind: str = ""  # name of its class
    number: int = 0  # of the object among the rank's, in order of first use
    matched: int = 0  # names that the state and the model have in common
    missing: int = 0  # names of the model that the state lacks
    unexpected: int = 0  # names of the state that the model lacks
    prefix: str = ""
    lacking: str = ""
    explained: int = 0  # names that would match, but for that
    empty: bool = False  # the state has no names; `unexpected` are those of the file
    own: bool = False  # likewise: all tensors that match are the model's own


@value(frozen=True, slots=True, kw_only=True)
class Scheduled(Observation):
    """A scheduler of learning rates was made."""

    kind: str = ""  # name of its class
    number: int = 0  # among the rank's


@value(frozen=True, slots=True, kw_only=True)
class Shuffled(Observation):
    """A DistributedSampler was told its epoch."""

    epoch: int = 0
    seed: int = 0
    length: int = 0  # samples of its dataset


@value(frozen=True, slots=True, kw_only=True)
class Continued(Observation):
    """An optimizer is about to make its first step, or its first since a load."""

    kind: str = ""  # name of its class
    number: int = 0  # among the rank's optimizers
    filled: bool = False  # its state has entries
    rules: int = 0  # fingerprint of its hyper-parameters, without the learning rate
    lr: float = 0.0  # of its first group
    position: int = -1  # `last_epoch` of its only scheduler; -1: not just one
    schedule: int = 0  # that scheduler's fingerprint; see `Stored`
    scheduler: int = -1  # its number, if it was made since the last step before
    scale: float = 0.0  # of the only scaler alive, if it was made since; 0: not
    rng: int = 0  # fingerprint of torch's random state


@value(frozen=True, slots=True, kw_only=True)
class Reached(Observation):
    """The step behind a `Continued` is about to be made."""

    rng: int = 0  # fingerprint of torch's random state


@value(frozen=True, slots=True, kw_only=True)
class Written(Observation):
    """A file was opened for writing, and what was in it was thrown away."""

    path: str = ""
    times: int = 1  # from that line, so far
    locked: bool = False  # the process took a lock on some file before


@value(frozen=True, slots=True, kw_only=True)
class ReadBack(Observation):
    """A file was read that some rank of this job may have written."""

    path: str = ""
    waited: bool = False  # the process slept or took a lock before, perhaps for it


KINDS = (
    Stored,
    Storing,
    Moved,
    Opened,
    Given,
    Scheduled,
    Shuffled,
    Continued,
    Reached,
    Written,
    ReadBack,
)
