"""What explains a divergence, and the words it is told in.

Each divergence has exactly one explanation, so that one fault is one finding; each
check asks for the explanation it is named for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from distdoctor.model.events import (
    Batch,
    Busy,
    Call,
    Event,
    Failure,
    Left,
    Misplaced,
    Place,
    Unreduced,
)
from distdoctor.model.findings import Certainty, Finding, Location, Role
from distdoctor.model.run import Group, named

_OBJECT = re.compile(r"<(?:\w+\.)*(\w+) object at 0x[0-9a-f]+>")


class Cause(StrEnum):
    """What explains a divergence."""

    OPERATION = "another operation"
    NUMEL = "another number of elements"
    DTYPE = "another dtype"
    REDUCE_OP = "another reduce op"
    ROOT = "another root"
    SPLITS = "splits or lists that do not fit"
    ORDER = "another order"
    SKIPPED = "skipped or added"
    UNEVEN = "fewer rounds"
    FINISHED = "finished"
    DIED = "died"
    CIRCLE = "a circle of waits"
    MESSAGES = "a circle of messages"
    UNANSWERED = "a message with one side only"
    LEFT_OVER = "a message nobody took"
    RENDEZVOUS = "an order that hangs where a send waits for its receive"
    MISFIT = "two sides of a message that do not fit"
    UNUSED = "parameters without a gradient"
    DEVICE = "a device that is not served"
    SWALLOWED = "a swallowed exception"
    MESH = "another dimension of the mesh"
    FORWARD = "a forward pass of some ranks"
    BUSY = "stuck in its own code"
    LATE = "late at most collectives"
    STRANGER = "a rank that is not in the group"
    GROUPS = "groups that not all ranks created alike"
    JOINING = "ranks that do not find each other"
    KEY = "a key that is never set"
    CALLBACK = "called from a finalizer or a signal handler"
    CHILD = "called in a forked process"
    LOCK = "a lock held across a call"
    RACE = "threads in no fixed order"
    EARLY = "used before it was waited for"


SKIPPED_HERE = "skipped this call"
"""Remark at the line of a call that the ranks at fault did not make."""

LEFT_LOOP = "left this loop"
"""Remark at the head of a loop that the ranks at fault are behind."""


SOURCE = "source"
"""Key in the details of a divergence that was told by reading the user's source."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """One place where ranks part ways.

    Attributes:
        why: The explanation.
        group: The group they part in; None if no call had to be made in vain.
        ordinal: Which call on it, from 1; 0 with a circle.
        calls: By rank, the call it stands at: at this ordinal, or, for a rank that
            never came there, where it waits instead.
        culprits: Ranks at fault; empty if none can be told from the others.
        victims: Ranks that wait or were led astray.
        facts: What the sentence tells, where it is one check's alone: the check has the
            words. None: `story` is the whole.
        cause: The event that explains it, where there is one.
        story: What happened, as one sentence; with facts, what is told behind the
            sentence that the check makes of them.
        certainty: How sure the explanation is.
        elsewhere: Further lines that tell the story.
        details: Figures for machines.
    """

    why: Cause
    group: Group | None
    ordinal: int
    calls: dict[int, Call]
    culprits: tuple[int, ...]
    victims: tuple[int, ...]
    story: str = ""
    facts: object = None
    cause: Event | None = None
    certainty: Certainty = Certainty.PROVED
    elsewhere: tuple[Location, ...] = field(default=())
    details: dict[str, object] = field(default_factory=dict)


def sides(
    divergence: Divergence, by: Callable[[Call], Hashable]
) -> dict[Hashable, list[int]]:
    """Ranks of a divergence by what tells their calls apart, the first rank's first."""
    found: dict[Hashable, list[int]] = {}
    for rank, call in sorted(divergence.calls.items()):
        found.setdefault(by(call), []).append(rank)
    return found


Sentence = Callable[[Any], str]
"""How a check words the facts of its disease; it knows which it is given."""


def finding(divergence: Divergence, sentence: Sentence | None = None) -> Finding:
    """A divergence as a finding: who stood where.

    Args:
        divergence: The divergence.
        sentence: How its facts are worded, if it has any.
    """
    message = divergence.story
    if divergence.facts is not None:
        assert sentence is not None
        message = sentence(divergence.facts) + message
    culprits = set(divergence.culprits)
    by_line: dict[tuple[Place, Role, str], list[int]] = {}
    for rank, call in divergence.calls.items():
        if call.place is not None:
            if rank in culprits:
                role = Role.CULPRIT
            else:
                role = Role.VICTIM if culprits else Role.PARTY
            by_line.setdefault((call.place, role, str(call)), []).append(rank)
    locations = [
        Location(place, tuple(sorted(ranks)), role, text)
        for (place, role, text), ranks in by_line.items()
    ]
    order = {Role.CULPRIT: 0, Role.PARTY: 1, Role.VICTIM: 2}
    locations.sort(key=lambda location: (order[location.role], location.ranks))
    # Thousands of ranks that did the same are shown by one call.
    shown: dict[tuple[Place | None, str, bool], Call] = {}
    for rank, call in sorted(divergence.calls.items()):
        shown.setdefault((call.place, str(call), rank in culprits), call)
    exhibits: list[Event] = list(shown.values())
    if divergence.cause is not None:
        exhibits.insert(0, divergence.cause)
    details: dict[str, object] = {"explanation": str(divergence.why)}
    details |= divergence.details
    if divergence.group is not None:
        details |= {"group": divergence.group.name, "ordinal": divergence.ordinal}
    return Finding(
        message=message,
        exhibits=tuple(exhibits),
        culprits=tuple(sorted(divergence.culprits)),
        victims=tuple(sorted(divergence.victims)),
        locations=(*divergence.elsewhere, *locations, *_ways(divergence)),
        certainty=divergence.certainty,
        details=details,
    )


def _ways(divergence: Divergence) -> Iterator[Location]:
    """By which lines one rank of each side came to its call, from where they part."""
    by_side: dict[bool, Call] = {}
    for rank, call in sorted(divergence.calls.items()):
        if call.place is not None:
            by_side.setdefault(rank in divergence.culprits, call)
    if len(by_side) < 2:
        return
    mine, theirs = by_side[True], by_side[False]
    known = {one.place for one in divergence.elsewhere}
    known |= {call.place for call in divergence.calls.values() if call.place}
    for call, other in ((mine, theirs), (theirs, mine)):
        apart = [line for line in call.callers if line not in other.callers]
        role = Role.CULPRIT if call is mine else Role.VICTIM
        for line in apart[:_MOST_OF_A_WAY]:
            if line not in known:
                known.add(line)
                yield Location(line, (call.rank,), role, "on the way to its call")


_MOST_OF_A_WAY = 3  # the nearest to the call


def where(group: Group, ordinal: int) -> str:
    """A call's place in a group's sequence, for readers."""
    return f"call {ordinal} on {group.name}"


def where_of(base: Divergence) -> str:
    """A divergence's place in its group's sequence, for readers."""
    return "" if base.group is None else where(base.group, base.ordinal)


def at(
    event: Batch | Busy | Failure | Left | Misplaced | Unreduced,
    ranks: Iterable[int],
    remark: str,
) -> tuple[Location, ...]:
    """The line of an event as a location."""
    if event.place is None:
        return ()
    return (Location(event.place, tuple(sorted(ranks)), Role.CULPRIT, remark),)


def pointers(
    places: Iterable[Place], ranks: Iterable[int], remark: str
) -> tuple[Location, ...]:
    """Lines that the ranks at fault may have taken."""
    who = tuple(sorted(ranks))
    return tuple(Location(place, who, Role.CULPRIT, remark) for place in places)


def failed(ranks: Iterable[int], failure: Failure) -> str:
    """That ranks raised, what and where."""
    said = _OBJECT.sub(r"a \1", failure.message)
    message = f" ({said.splitlines()[0][:120]})" if said else ""
    at = f" at {failure.place}" if failure.place else ""
    return f"{capital(named(ranks))} raised {failure.error}{message}{at}"


def capital(text: str) -> str:
    """A text with its first letter as a capital."""
    return text[:1].upper() + text[1:]


def s(ranks: Iterable[int]) -> str:
    """Ending of a verb whose subject is these ranks."""
    return "s" if len(set(ranks)) == 1 else ""


def waits(ranks: Iterable[int]) -> str:
    """The verb: "waits" or "wait", as the subject wants it."""
    return "waits" if len(set(ranks)) == 1 else "wait"


def has(ranks: Iterable[int]) -> str:
    """The verb: "has" or "have", as the subject wants it."""
    return "has" if len(set(ranks)) == 1 else "have"
