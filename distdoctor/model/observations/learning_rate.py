"""Learning rates of a rank's optimizers, and the schedulers that set them."""

from __future__ import annotations

from distdoctor.model.events import Observation
from distdoctor.model.values import value


@value(frozen=True, slots=True, kw_only=True)
class RateRise(Observation):
    """The learning rate of an optimizer's first group rose several times in a row.

    Told are the last values of the rise, the highest of all, and a few behind it; the
    place is the line of the step.
    """

    optimizer: int = 0  # number among the rank's, in order of their first steps
    steps: tuple[int, ...] = ()  # at which each value came, from 1
    rates: tuple[float, ...] = ()
    until: int = 0  # step of the optimizer when this was told


@value(frozen=True, slots=True, kw_only=True)
class RateSet(Observation):
    """A line that has to do with the learning rate of an optimizer that rises.

    It computes the rate, asks a scheduler for the next one, or puts it into a group.
    """

    optimizer: int = 0  # as in `RateRise`


@value(frozen=True, slots=True, kw_only=True)
class RateCourse(Observation):
    """The learning rate of an optimizer's first group, from its first step to its last.

    It may be told several times; the last tells all. A rate that is kept in a tensor is
    not seen.
    """

    optimizer: int = 0  # as in `RateRise`
    steps: int = 0  # that it made
    stride: int = 1  # steps from one value to the next
    rates: tuple[float, ...] = ()  # at the steps 1, 1 + stride and so on
    highest: float = 0.0  # at any step
    last: float = 0.0  # at the last step


@value(frozen=True, slots=True, kw_only=True)
class Schedule(Observation):
    """How often a scheduler was asked for the next rate; the place: the line that did.

    It may be told several times; the last tells all. Counted are calls of the user's,
    not those that schedulers make of each other, or that name the epoch.
    """

    scheduler: int = 0  # number among the rank's, in order of first use
    optimizer: int = 0  # as in `RateRise`; -1: it made no step
    kind: str = ""  # name of its class
    length: int = 0  # calls after which its course ends, as it was made; 0: not known
    numbers: tuple[int, ...] = ()  # whole numbers that its functions were made with
    calls: int = 0
    steps: int = 0  # of its optimizer, since it was made
    early: int = 0  # calls before the first step of any optimizer
    scaled: bool = False  # a GradScaler had left out a step before the first call
    alike: bool = False  # its first calls came from one line
    begin: float = 0.0  # rate when it was made
    second: float = 0.0  # rate after the first call
    highest: float = 0.0  # before the fall that `end` ends
    lowest: float = 0.0
    falls: int = 0  # changes downwards in a row, from the highest to the lowest
    end: int = 0  # the call that led to the lowest; 0: it jumped up again
    turned: bool = False  # it rose again, as smoothly as it fell
    rises: int = 0  # times that the rate went up behind a fall, at once or smoothly
    parts: tuple[int, ...] = ()  # lengths of those parts that fall, or begin anew
    kinds: tuple[str, ...] = ()  # names of the classes of these parts
    outer: int = -1  # number of the scheduler that has it as a part; -1: none was asked
    twice: int = 0  # optimizer steps behind which both are asked, and it sets a rate


KINDS = (RateRise, RateSet, RateCourse, Schedule)
