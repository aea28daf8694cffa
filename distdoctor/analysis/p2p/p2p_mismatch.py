"""Sends and receives that meet and do not fit: another size, dtype or tag."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.deadlock.wait_for_graph import gone, standstill
from distdoctor.analysis.p2p.messages import FROM_ANY, messages, peer_of
from distdoctor.model.events import BLOCKED, Call, State
from distdoctor.model.findings import Certainty
from distdoctor.model.run import Rows, Run

_RAW = re.compile(r"u?int8|complex")
"""Dtypes whose bytes are often meant as something else: packed data, pairs."""


def p2p_mismatches(run: Run) -> list[Divergence]:
    """Messages whose two sides do not fit, the first of each pair of lines.

    Args:
        run: The run that is judged.

    Returns:
        Divergences of which no two have a rank in common.
    """
    found: list[Divergence] = []
    taken: set[int] = set()
    for divergence in (*_contents(run), *_from_any(run), *_tags(run)):
        if taken.isdisjoint(divergence.calls):
            found.append(divergence)
            taken.update(divergence.calls)
    return found


# --- what they carry ---


@dataclass(frozen=True, slots=True)
class Content:
    """What one side of a message takes it for."""

    dtype: str
    numel: int

    @property
    def size_bytes(self) -> int:
        """Of all its elements together."""
        bits = re.search(r"\d+", self.dtype)
        return self.numel * (int(bits[0]) // 8 if bits else 1)

    def is_meant_as(self, other: Content) -> bool:
        """Whether the bytes are the same and may be meant to be read in two ways."""
        raw = _RAW.match(self.dtype) or _RAW.match(other.dtype)
        return self.size_bytes == other.size_bytes and raw is not None

    def __str__(self) -> str:
        elements = "element" if self.numel == 1 else "elements"
        return f"{self.numel} {elements} of {self.dtype} ({self.size_bytes} bytes)"


@dataclass(frozen=True, slots=True)
class UnlikeContents:
    """Two sides of a message that take it for different things.

    Attributes:
        sender: Rank that sends it.
        given: What it sends.
        receiver: Rank that receives it.
        wanted: What that has room for.
    """

    sender: int
    given: Content
    receiver: int
    wanted: Content


@dataclass(frozen=True, slots=True)
class OtherTag:
    """A message that has another tag than the receive that waits for it."""

    send: Call
    receive: Call


def _by_spec(run: Run) -> list[Content]:
    return [
        Content(
            "+".join(sorted({tensor.dtype for tensor in spec.tensors})),
            sum(tensor.numel for tensor in spec.tensors),
        )
        for spec in run.specs
    ]


def _kinds(contents: Sequence[Content]) -> NDArray[np.int64]:
    """A number for each content, the same for those that are alike."""
    numbers: dict[Content, int] = {}
    return np.array([numbers.setdefault(one, len(numbers)) for one in contents])


def _contents(run: Run) -> Iterator[Divergence]:
    known = messages(run)
    contents = _by_spec(run)
    kind = _kinds(contents)
    specs = run.calls["spec"]
    differ = kind[specs[known.sends]] != kind[specs[known.receives]]
    lines: set[tuple[int, int]] = set()
    for sent, received in zip(
        known.sends[differ].tolist(), known.receives[differ].tolist(), strict=True
    ):
        given, wanted = contents[specs[sent]], contents[specs[received]]
        sites = (int(run.calls["site"][sent]), int(run.calls["site"][received]))
        if given.is_meant_as(wanted) or sites in lines:
            continue
        lines.add(sites)
        yield _misfit(
            run, sent, received, given, wanted, _minority(run, sent, received)
        )


def _misfit(
    run: Run,
    sent: int,
    received: int,
    given: Content,
    wanted: Content,
    culprits: tuple[int, ...],
) -> Divergence:
    send, receive = run.call(sent), run.call(received)
    both = {send.rank, receive.rank}
    alike = given.size_bytes == wanted.size_bytes
    return Divergence(
        why=Cause.MISFIT,
        group=None,
        ordinal=0,
        calls={send.rank: send, receive.rank: receive},
        culprits=culprits,
        victims=tuple(sorted(both - set(culprits))) if culprits else (),
        certainty=Certainty.LIKELY if alike else Certainty.PROVED,
        facts=UnlikeContents(send.rank, given, receive.rank, wanted),
    )


def _minority(run: Run, sent: int, received: int) -> tuple[int, ...]:
    """Which of the two ranks differs from all others at these lines, if one does."""
    calls, contents = run.calls, _by_spec(run)
    sides = {
        int(calls["rank"][row]): contents[calls["spec"][row]]
        for row in (sent, received)
    }
    at_lines = np.isin(calls["site"], [calls["site"][sent], calls["site"][received]])
    others = at_lines & ~np.isin(calls["rank"], list(sides)) & (calls["site"] > 0)
    shared = {contents[spec] for spec in np.unique(calls["spec"][others])}
    odd = [rank for rank, content in sides.items() if content not in shared]
    if len(odd) == 1 and len(sides) == 2:
        return tuple(odd)
    leaves = [rank for rank in sides if not _fits_others(run, rank, sides)]
    return tuple(leaves) if len(leaves) == 1 else _both(run, *sides)


def _fits_others(run: Run, rank: int, sides: Mapping[int, Content]) -> bool:
    """Whether a rank exchanged messages that fit with others than these two.

    Who serves many ranks in one way is right, if only one of them does not fit.
    """
    known, kind, calls = messages(run), _kinds(_by_spec(run)), run.calls
    sent, received = calls[known.sends], calls[known.receives]
    fits = kind[sent["spec"]] == kind[received["spec"]]
    its = (sent["rank"] == rank) | (received["rank"] == rank)
    others = [*(sides.keys() - {rank})]
    between = np.isin(sent["rank"], others) | np.isin(received["rank"], others)
    return bool((fits & its & ~between).any())


def _from_any(run: Run) -> Iterator[Divergence]:
    """A receive from any source that fits none of the messages it may have taken."""
    contents, specs = _by_spec(run), run.calls["spec"]
    for box in messages(run).boxes.values():
        senders = {int(run.calls["rank"][row]) for row in box.sends}
        if {*run.partial, *run.unseen} or not senders:
            continue
        sent = {contents[specs[row]] for row in box.sends}
        for row in box.receives:
            wanted = contents[specs[row]]
            done = run.calls["state"][row] == State.DONE
            served = done or len(box.sends) >= len(box.receives)
            fits = any(wanted == c or wanted.is_meant_as(c) for c in sent)
            if run.calls["op"][row] == FROM_ANY and served and not fits:
                given = contents[specs[box.sends[0]]]
                yield _misfit(run, box.sends[0], row, given, wanted, ())
                break


def _both(run: Run, *ranks: int) -> tuple[int, ...]:
    """Two ranks that do not agree, where they are not the whole job."""
    return tuple(sorted(ranks)) if len(ranks) < len(run.seen) else ()


# --- tags ---


def _tags(run: Run) -> Iterator[Divergence]:
    """A rank waits for a tag, and what was sent to it has another."""
    known = messages(run)
    unsent = _waited_for(run, known.unsent)
    if not len(unsent):
        return
    waits, over = standstill(run).waits, gone(run)
    for received in unsent.tolist():
        receiver, sender = int(run.calls["rank"][received]), peer_of(run, received)
        if sender is None or receiver not in waits:
            continue
        # A sender that others hold up may still send what is waited for.
        facing = any(receiver in wait.missing for wait in waits.get(sender, ()))
        if not facing and sender not in over:
            continue
        for sent in known.unreceived.tolist():
            if (
                int(run.calls["rank"][sent]) == sender
                and peer_of(run, sent) == receiver
                and run.calls["group"][sent] == run.calls["group"][received]
            ):
                yield _other_tag(run, sent, received)
                break


def _waited_for(run: Run, rows: Rows) -> Rows:
    return rows[np.isin(run.calls["state"][rows], BLOCKED)]


def _other_tag(run: Run, sent: int, received: int) -> Divergence:
    send, receive = run.call(sent), run.call(received)
    return Divergence(
        why=Cause.MISFIT,
        group=None,
        ordinal=0,
        calls={send.rank: send, receive.rank: receive},
        culprits=_both(run, send.rank, receive.rank),
        victims=(),
        facts=OtherTag(send, receive),
    )
