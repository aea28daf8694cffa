"""Ranks that made unequal numbers of rounds of a loop: the facts that checks word."""

from __future__ import annotations

from dataclasses import dataclass

from distdoctor.analysis.divergence.ways_out import WayOut
from distdoctor.model.events import Batch, Call, Place


@dataclass(frozen=True, slots=True)
class FewerBatches:
    """Ranks whose DataLoader ended, while others have begun a batch beyond that.

    Attributes:
        ranks: Whose loader ended.
        ended: Its end.
        others: Who goes on.
        begun: The batch that the first of those has begun, from 1.
        op: The operation in which they wait.
        where: Its place in the group's sequence, where the ranks have finished.
        next_op: The operation that the ranks are at; empty: they have finished.
    """

    ranks: tuple[int, ...]
    ended: Batch
    others: tuple[int, ...]
    begun: int
    op: str
    where: str = ""
    next_op: str = ""


@dataclass(frozen=True, slots=True)
class FewerRounds:
    """Ranks that have left a loop which others are still in.

    Attributes:
        ranks: Who left it.
        loop: The line of its head.
        next_call: The call that the first of them is at.
        others: Who is in it.
        op: The operation in which those wait.
    """

    ranks: tuple[int, ...]
    loop: Place
    next_call: Call
    others: tuple[int, ...]
    op: str


@dataclass(frozen=True, slots=True)
class LeftLoop:
    """Ranks that are behind a loop, or a round of it, in which others wait.

    Attributes:
        ranks: Who is behind it.
        others: Who is in it.
        loop: The line of its head.
        next_call: The call in which the first of the ranks waits.
        op: The operation in which the others wait.
        where: Its place in the group's sequence.
        after_all: The ranks went through that round of the loop, and not around it.
    """

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    loop: Place
    next_call: Call
    op: str
    where: str
    after_all: bool


@dataclass(frozen=True, slots=True)
class OneMoreRound:
    """Ranks that are in a loop which most others have left.

    Attributes:
        ranks: Who is in it.
        others: Who has left it.
        loop: The line of its head.
        op: The operation in which the ranks wait.
        where: Its place in the group's sequence.
        next_call: The call that the first of the others is at.
        exit: The statement by which a rank's own data lead out of the loop, if known.
    """

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    loop: Place
    op: str
    where: str
    next_call: Call
    exit: WayOut | None


@dataclass(frozen=True, slots=True)
class PartedAtLoop:
    """Ranks that went through a loop once more, or once less, than the others.

    Attributes:
        inside: Who went on in it.
        outside: Who left it.
        loop: The line of its head.
        where: The place in the group's sequence at which they parted.
    """

    inside: tuple[int, ...]
    outside: tuple[int, ...]
    loop: Place
    where: str
