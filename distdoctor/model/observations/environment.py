"""Under which conditions a rank trained: settings, software, time on a processor."""

from __future__ import annotations

from distdoctor.model.events import Observation
from distdoctor.model.values import value


@value(frozen=True, slots=True, kw_only=True)
class Delayed(Observation):
    """How long a rank's main thread was ready to run and had no processor so far."""

    at_ms: tuple[int, ...] = ()  # monotonic clock, ascending
    delay_ms: tuple[int, ...] = ()  # at each of these moments


@value(frozen=True, slots=True, kw_only=True)
class Arguments(Observation):
    """A command line was read by argparse."""

    names: tuple[str, ...] = ()
    values: tuple[str, ...] = ()  # as `repr` tells them


@value(frozen=True, slots=True, kw_only=True)
class Hyperparameters(Observation):
    """An optimizer made a step with these settings."""

    optimizer: int = 0  # number among the rank's, in order of their first steps
    kind: str = ""  # name of its class
    step: int = 1  # number of the step among this optimizer's
    names: tuple[str, ...] = ()  # group and name, such as "0.lr"
    values: tuple[str, ...] = ()  # as `repr` tells them
    shared: bool = False  # it steps parameters of a model that ranks train together


@value(frozen=True, slots=True, kw_only=True)
class Configured(Observation):
    """A process told variables that configure its libraries; there are two kinds.

    Its own environment is `Variables`; what NCCL's log tells is an `NcclProcess`.
    """

    host: str = ""
    settings: tuple[str, ...] = ()  # "NAME=value"


@value(frozen=True, slots=True, kw_only=True)
class Variables(Configured):
    """All variables of the rank's environment that configure a library of its kind.

    They are those that were set when it joined; what is secret, or long, is told by a
    fingerprint.
    """


@value(frozen=True, slots=True, kw_only=True)
class Software(Observation):
    """Versions of what the rank had imported; a further one tells what came later."""

    python: str = ""  # release, such as "3.11.7"
    implementation: str = ""  # such as "cpython"
    executable: str = ""  # path of the interpreter
    packages: tuple[str, ...] = ()  # top-level modules, and parts such as "torch.nccl"
    versions: tuple[str, ...] = ()  # of each


@value(frozen=True, slots=True, kw_only=True)
class Sources(Observation):
    """The user's files that the rank had imported; a further one tells later ones.

    Files that may have changed since they were imported are left out, and comments
    count for nothing. The place is the first line of the program.
    """

    program: str = ""  # path of the file that was started; "": none, or not known
    modules: tuple[str, ...] = ()  # full names; "__main__": the program
    files: tuple[str, ...] = ()  # paths
    texts: tuple[str, ...] = ()  # fingerprints
    lines: tuple[str, ...] = ()  # of each, the smallest fingerprints of lines, in hex
    constants: tuple[int, ...] = ()  # positions of those without a function or class


DIGITS = 8
"""Of each fingerprint of a line in `Sources.lines`; they follow each other."""


KINDS = (Delayed, Arguments, Hyperparameters, Variables, Software, Sources)
