"""Calls that some ranks made and others did not: the facts that checks word."""

from __future__ import annotations

from dataclasses import dataclass

from distdoctor.model.events import Call, Place


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


class OvertakenCall(SkippedCall):
    """The same, where the ranks are at a later call of the same line."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class LeftOutCall:
    """A call that ranks did not make.

    Attributes:
        ranks: Who did not.
        call: The call, as one of the others made it.
        where: Its place in the group's sequence.
    """

    ranks: tuple[int, ...]
    call: Call
    where: str


@dataclass(frozen=True, slots=True)
class PartedAtCall:
    """A call that is on the way of some ranks alone.

    Attributes:
        inside: Who made it.
        outside: Who did not.
        line: From which line they came to it.
        op: Its operation.
        where: Its place in the group's sequence.
        few: Those who made it are at fault; else those who did not.
    """

    inside: tuple[int, ...]
    outside: tuple[int, ...]
    line: Place
    op: str
    where: str
    few: bool
