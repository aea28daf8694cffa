"""What a rank kept in memory from step to step."""

from __future__ import annotations

from distdoctor.model.events import Observation
from distdoctor.model.values import value


@value(frozen=True, slots=True, kw_only=True)
class Memory(Observation):
    """How much a rank held at some of its optimizer steps."""

    steps: tuple[int, ...] = ()  # numbers of the steps, ascending
    own_kib: tuple[int, ...] = ()  # memory that the process shares with none
    device_kib: tuple[int, ...] = ()  # allocated on its GPU; none: it uses none
    graphs: tuple[int, ...] = ()  # graphs of autograd alive, of forward passes so far
    passes: tuple[int, ...] = ()  # training passes over DataLoaders begun so far


@value(frozen=True, slots=True, kw_only=True)
class Retained(Observation):
    """Graphs of autograd were still alive long after their step."""

    steps: int = 0  # optimizer steps done
    graphs: int = 0  # graphs alive
    oldest: int = 0  # the step before which the oldest of them was made
    passes: int = 0  # training passes over DataLoaders begun so far
    outlived: bool = False  # some were made in an earlier pass than the present one
    name: str = ""  # the variable that keeps them; none: it was not found


@value(frozen=True, slots=True, kw_only=True)
class Summed(Observation):
    """A pass without backward ended, and a variable held the graphs of its batches.

    No backward pass made use of them later. The place is the line that fills it.
    """

    batches: int = 0  # of the pass
    graphs: int = 0  # that were alive at its end
    name: str = ""  # the variable


KINDS = (Memory, Retained, Summed)
