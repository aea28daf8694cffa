"""Lines up the sends of one rank with the receives of another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from distdoctor.postmortem.nccl_logs.communicator_ranks import Membership

_MOST_CALLS = 200_000
"""Of a rank; more of them are not lined up."""


class UnlikePair(NamedTuple):
    """A send and a receive that do not fit each other.

    Attributes:
        sender: Position of the sending member.
        receiver: Position of the receiving member.
        number: Of the send among those of this pair, from 1.
        sent: Elements and data type.
        received: The same of the receive.
        usual: What all messages of the pair before it were; empty: it is the first, or
            they were not all alike.
    """

    sender: int
    receiver: int
    number: int
    sent: str
    received: str
    usual: str


def unlike_pair(
    members: Sequence[Membership], words: Mapping[str, int]
) -> UnlikePair | None:
    """The first message of a pair of ranks of which the two sides differ.

    Args:
        members: Of one communicator.
        words: By the words of a call, its number.
    """
    kinds = {
        number: _parted(text)
        for text, number in words.items()
        if text.startswith(("Send(", "Recv("))
    }
    torn = any(one.process.torn for one in members)
    if not kinds or torn or sum(len(one.calls) for one in members) > _MOST_CALLS:
        return None
    position = {one.life.rank: n for n, one in enumerate(members)}
    sends: dict[tuple[int, int], list[str]] = defaultdict(list)
    receives: dict[tuple[int, int], list[str]] = defaultdict(list)
    for n, one in enumerate(members):
        for number in one.calls:
            if number in kinds:
                op, what, peer = kinds[number]
                other = position.get(peer, -1)
                if op == "Send":
                    sends[n, other].append(what)
                else:
                    receives[other, n].append(what)
    for pair, sent in sends.items():
        got = receives.get(pair, [])
        for k, (a, b) in enumerate(zip(sent, got, strict=False)):
            if a != b:
                usual = sent[0] if len(set(sent[:k])) == 1 else ""
                return UnlikePair(*pair, k + 1, a, b, usual)
    return None


def _parted(text: str) -> tuple[str, str, int]:
    """Operation, elements with data type, and peer of a send or receive."""
    op, _, rest = text.rstrip(")").partition("(")
    what, _, peer = rest.partition(", peer ")
    return op, what, int(peer)
