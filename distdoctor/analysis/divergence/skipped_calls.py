"""Calls that some ranks made and others did not, as the calls alone show it."""

from __future__ import annotations

from dataclasses import dataclass

from distdoctor.model.events import Call


@dataclass(frozen=True, slots=True)
class SkippedCall:
    """A call that ranks left out; they are at the next one already.

    Attributes:
        ranks: Who left it out.
        others: Who waits in it.
        call: The call, as the first of the others made it.
        where: Its place in the group's sequence.
        next_call: The call that the first of the ranks is at.
    """

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    call: Call
    where: str
    next_call: Call


@dataclass(frozen=True, slots=True)
class AddedCall:
    """A call that ranks made alone.

    Attributes:
        ranks: Who made it.
        others: Who did not.
        op: Its operation.
        where: Its place in the group's sequence.
        next_op: What the others went on to; empty: they finished.
    """

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    op: str
    where: str
    next_op: str = ""
