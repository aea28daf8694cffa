"""Messages of which only one side was made: the facts that the check words."""

from __future__ import annotations

from dataclasses import dataclass

from distdoctor.model.events import Call, Place


@dataclass(frozen=True, slots=True)
class MissingSide:
    """A send that nobody receives, or a receive to which nobody sends.

    Attributes:
        call: The send or receive.
        peer: The rank that owes the other side.
        gave_up: The rank of the call has ended, for it waited in vain.
        stands: The call in which the peer waits; None: it has ended.
        made: How many such messages the two have exchanged.
        wrong: The message by which one of them named a wrong peer, if one did.
    """

    call: Call
    peer: int
    gave_up: bool
    stands: Call | None
    made: int
    wrong: OtherPeer | None


@dataclass(frozen=True, slots=True)
class AwaitedFromAny:
    """A receive from any source, for which nobody is left that could send.

    Attributes:
        call: The receive.
        ended: Who could have sent, and has ended.
    """

    call: Call
    ended: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UntakenMessage:
    """A message from one rank to another that was never received."""

    rank: int
    peer: int


@dataclass(frozen=True, slots=True)
class OtherPeer:
    """A message without its other side, whose rank alone numbers its peer in this way.

    Attributes:
        call: The send or receive.
        peer: The rank that it names; None: any.
        ways: How the other ranks number their peers at this line, in words.
    """

    call: Call
    peer: int | None
    ways: str


@dataclass(frozen=True, slots=True)
class UnmetBatches:
    """Batches of sends and receives, given together, of which no two sides meet.

    Attributes:
        ranks: Who gave them.
        call: A message of one of them.
        peer: The rank that it names; None: any.
    """

    ranks: tuple[int, ...]
    call: Call
    peer: int | None


@dataclass(frozen=True, slots=True)
class FirstExchange:
    """A message between two ranks that have exchanged none before, as all others have.

    Attributes:
        call: The send or receive.
        peer: The rank that it names; None: any.
    """

    call: Call
    peer: int | None


@dataclass(frozen=True, slots=True)
class UnusualPeer:
    """A message to another peer than the rank named at this place each time before.

    Attributes:
        call: The send or receive.
        peer: The rank that it names.
        usual: The rank that it named before.
        place: Of the message behind the rank's last collective, from 1.
    """

    call: Call
    peer: int
    usual: int
    place: int


@dataclass(frozen=True, slots=True)
class OddMessage:
    """A message without its other side, and what the source has for one rank alone.

    Attributes:
        call: The send or receive.
        rank: The rank.
        what: That which the source has, in words.
        place: Its line.
        kept: It keeps the rank from the other side; else it is the rank's own call.
    """

    call: Call
    rank: int
    what: str
    place: Place
    kept: bool
