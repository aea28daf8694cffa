"""Ranks that were sent to meet where that cannot work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from distdoctor.model.events import BadAddress, Event, Place
from distdoctor.model.operations import CODE_OF
from distdoctor.model.run import Run

_JOIN = CODE_OF["init_process_group"]


@dataclass(frozen=True, slots=True)
class Misdirection:
    """An address, what is wrong with it, and who was sent there.

    Attributes:
        fault: As in `BadAddress`.
        address: Where ranks were sent.
        given: Where the launcher had sent them instead.
        ranks: Whom it befell, ascending.
        place: The line that wrote the address, or that joined.
        exhibits: One event of each.
    """

    fault: str
    address: str
    given: str
    ranks: tuple[int, ...]
    place: Place | None
    exhibits: tuple[Event, ...]


def misdirections(run: Run, *faults: str) -> Iterator[Misdirection]:
    """What is wrong with the addresses of a run.

    Args:
        run: The run.
        faults: Which faults, as in `BadAddress`.

    Yields:
        One for each thing that is wrong.
    """
    by_kind: dict[tuple[str, str, str, Place | None], list[BadAddress]] = {}
    for rank in run.seen:
        for event in dict.fromkeys(run.of(BadAddress, rank)):
            key = (event.fault, event.address, event.given, event.place)
            by_kind.setdefault(key, []).append(event)
    for (fault, address, given, place), events in by_kind.items():
        ranks = tuple(event.rank for event in events)
        if fault in faults and not (fault == "overridden" and _served(run, address)):
            yield Misdirection(fault, address, given, ranks, place, tuple(events))


def _served(run: Run, address: str) -> bool:
    """Whether a rank that joined there had not been led astray: it opened a store."""
    for rank in run.seen:
        astray = any(event.address == address for event in run.of(BadAddress, rank))
        for row in run.rows_of(rank):
            call = run.calls[row]
            if call["op"] != _JOIN:
                break
            if not astray and run.call(row).names == (address,):
                return True
    return False
