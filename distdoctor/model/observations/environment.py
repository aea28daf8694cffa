"""Under which conditions a rank trained: its settings, and time on a processor."""

from __future__ import annotations

from dataclasses import dataclass

from distdoctor.model.events import Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Delayed(Observation):
    """How long a rank's main thread was ready to run and had no processor so far."""

    at_ms: tuple[int, ...] = ()  # monotonic clock, ascending
    delay_ms: tuple[int, ...] = ()  # at each of these moments


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments(Observation):
    """A command line was read by argparse."""

    names: tuple[str, ...] = ()
    values: tuple[str, ...] = ()  # as `repr` tells them


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyperparameters(Observation):
    """An optimizer made a step with these settings."""

    optimizer: int = 0  # number among the rank's, in order of their first steps
    kind: str = ""  # name of its class
    step: int = 1  # number of the step among this optimizer's
    names: tuple[str, ...] = ()  # group and name, such as "0.lr"
    values: tuple[str, ...] = ()  # as `repr` tells them
    shared: bool = False  # it steps parameters of a model that ranks train together


KINDS = (Delayed, Arguments, Hyperparameters)
