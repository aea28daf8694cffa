"""What recorders' rings tell of calls that did not meet: the facts that checks word."""

from __future__ import annotations

from dataclasses import dataclass

from distdoctor.model.events import Call


@dataclass(frozen=True, slots=True)
class ShiftedCalls:
    """Calls by which ranks differ from the others, whose calls are shifted behind them.

    Attributes:
        ranks: Who left them out, or made them alone.
        count: How many calls.
        call: The first of them, as one of those made it who did.
        where: Its place in the group's sequence.
    """

    ranks: tuple[int, ...]
    count: int
    call: Call
    where: str


class CallsBehind(ShiftedCalls):
    """Calls that ranks left out: they are behind from there on."""

    __slots__ = ()


class CallsAhead(ShiftedCalls):
    """Calls that ranks made alone: they are ahead from there on."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class CallsShifted:
    """Ranks make each call some calls later than the others, as far as records go back.

    Attributes:
        ranks: Who makes them later.
        others: Who made them before.
        count: By how many calls.
        call: The first that is recorded of all, as one of `ranks` made it.
        where: Its place in the group's sequence.
    """

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    count: int
    call: Call
    where: str


@dataclass(frozen=True, slots=True)
class NeverCame:
    """Most ranks never came to a call that a few made.

    Attributes:
        ranks: Who made it.
        absent: Who did not.
        call: The call.
        why: What proves that the others are not just late, in words.
    """

    ranks: tuple[int, ...]
    absent: tuple[int, ...]
    call: Call
    why: str


@dataclass(frozen=True, slots=True)
class PastCollective:
    """Ranks stand in a message behind a collective in which the others stand.

    Attributes:
        ranks: Who went past it.
        others: Who stands in it.
        missed: The collective.
        instead: The operation of the message.
    """

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    missed: Call
    instead: str


@dataclass(frozen=True, slots=True)
class UnequalTotals:
    """All ranks together send another number of elements than they expect.

    Attributes:
        op: The operation.
        where: Its place in the group's sequence.
        sent: Elements that all send.
        taken: Elements that all expect.
    """

    op: str
    where: str
    sent: int
    taken: int


@dataclass(frozen=True, slots=True)
class LostRanks:
    """Ranks of which nothing was left are waited for.

    Attributes:
        ranks: Who left nothing.
        waiting: Who waits for them.
        call: A call in which one of these waits.
    """

    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    call: Call
