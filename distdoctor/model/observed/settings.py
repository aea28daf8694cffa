"""Which settings a rank trained with."""

from __future__ import annotations

from dataclasses import dataclass

from distdoctor.model.events import Observation


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Climbed(Observation):
    """The learning rate of an optimizer's first group rose several times in a row.

    Told are the last values of the rise, the highest of all, and a few behind it; the
    place is the line of the step.
    """

    optimizer: int = 0  # number among the rank's, in order of their first steps
    steps: tuple[int, ...] = ()  # at which each value came, from 1
    rates: tuple[float, ...] = ()
    until: int = 0  # step of the optimizer when this was told


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSet(Observation):
    """A line that has to do with the learning rate of an optimizer that rises.

    It computes the rate, asks a scheduler for the next one, or puts it into a group.
    """

    optimizer: int = 0  # as in `Climbed`


KINDS = (Arguments, Hyperparameters, Climbed, RateSet)
