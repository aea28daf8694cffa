"""Calls at one position of a group's sequence that do not fit together: the facts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from distdoctor.analysis.causes import NO_MAJORITY, capital
from distdoctor.model.events import Call
from distdoctor.model.run import named


@dataclass(frozen=True, slots=True)
class UnlikeCalls:
    """Calls at one position of a group's sequence that differ in what they ask for.

    Attributes:
        calls: The call of each side, and who makes it; the larger sides first.
        where: The position.
        tied: The two largest sides are of one size, so that nobody can be blamed.
    """

    calls: tuple[tuple[Call, tuple[int, ...]], ...]
    where: str
    tied: bool

    @property
    def op(self) -> str:
        """The operation, as the first side calls it."""
        return self.calls[0][0].op


def compared(unlike: UnlikeCalls, what: str, asks: Callable[[Call], str]) -> str:
    """The sentence that calls at one position differ, for the checks DD101 to DD106.

    Args:
        unlike: The calls.
        what: In what they differ, such as "different dtypes in all_reduce".
        asks: What a call asks for, such as "with float16".
    """
    undecided = f" ({NO_MAJORITY})" if unlike.tied else ""
    each = "; ".join(f"{named(ranks)} {asks(call)}" for call, ranks in unlike.calls)
    return f"{capital(what)} at {unlike.where}{undecided}: {each}."


@dataclass(frozen=True, slots=True)
class UnfitSplits:
    """An all-to-all in which a rank does not expect what another sends it.

    Attributes:
        op: The operation.
        where: Its place in the group's sequence.
        sender: Who sends.
        receiver: To whom.
        sent: How many elements.
        expected: How many the receiver makes room for.
        more: How many other pairs of ranks do not fit.
    """

    op: str
    where: str
    sender: int
    receiver: int
    sent: int
    expected: int
    more: int


@dataclass(frozen=True, slots=True)
class SwappedCalls:
    """The same calls on one group, made the other way round by some ranks.

    Attributes:
        few: Who makes them in another order.
        many: The others.
        group: The group's name.
        ordinal: Which call on it shows it.
        calls: That call of each side, and who makes it; the first rank's first.
    """

    few: tuple[int, ...]
    many: tuple[int, ...]
    group: str
    ordinal: int
    calls: tuple[tuple[Call, tuple[int, ...]], tuple[Call, tuple[int, ...]]]
