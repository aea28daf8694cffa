"""What a rank did with random numbers: seeds, streams, and settings about them.

A stream is a generator of random numbers of a process: "python", "numpy" and "torch"
are the global ones, and any other name is a generator that the dataset holds, or the
user's loop.
"""

from __future__ import annotations

from distdoctor.model.events import Observation
from distdoctor.model.values import value


@value(frozen=True, slots=True, kw_only=True)
class Seeded(Observation):
    """A stream was seeded, at a line of the user's or by a library for it."""

    stream: str = "torch"
    seed: int = 0  # modulo 2**63; 0 where it is none, or not a number
    source: str = ""  # "clock", "process", "entropy", "state"; none: any other value


@value(frozen=True, slots=True, kw_only=True)
class Drawn(Observation):
    """What a process drew from its streams in a pass over a DataLoader."""

    loader: int = 0  # number of the loader among the rank's, in order of first use
    epoch: int = 0  # number of the pass over it, from 0
    worker: int = -1  # number of the loader's worker; -1: the rank's own process
    iterable: bool = False  # an IterableDataset
    trained: bool = False  # an optimizer made a step in the pass; not known to workers
    streams: tuple[str, ...] = ()  # those that could be read
    begins: tuple[int, ...] = ()  # fingerprints of their states when the first was due
    loading: tuple[str, ...] = ()  # those that moved while samples were made
    between: tuple[str, ...] = ()  # those that moved between batches
    explicit: tuple[str, ...] = ()  # of these, torch's that the user's loop holds
    seeded: tuple[str, ...] = ()  # in a worker: those that the user's code seeded there


@value(frozen=True, slots=True, kw_only=True)
class Flag(Observation):
    """A switch of torch's that decides about repeatability was set."""

    name: str = ""  # "cudnn.benchmark", "cudnn.deterministic", "deterministic"
    on: bool = False


@value(frozen=True, slots=True, kw_only=True)
class Dropped(Observation):
    """Dropout let go of elements of what a model computed; its place: that line.

    Told in the first steps. Bits stand for elements, evenly spaced.
    """

    step: int = 0  # optimizer's steps done before
    call: int = 0  # number of the call since that step, from 0
    elements: int = 0
    given: int = 0  # fingerprint of what it was given
    left: int = 0  # of what it gave
    known: int = 0  # bits: elements that were not zero before
    kept: int = 0  # bits: those of them that were not zero afterwards


KINDS = (Seeded, Drawn, Flag, Dropped)
