"""What was seen of processes that a rank has started."""

from __future__ import annotations

from distdoctor.model.events import Observation
from distdoctor.model.values import value


@value(frozen=True, slots=True, kw_only=True)
class CalledInChild(Observation):
    """A process that the rank had forked called a communication operation."""

    op: str = ""  # name of the function users call
    worker: int = -1  # its number among the workers of a DataLoader; -1: it is none


KINDS = (CalledInChild,)
