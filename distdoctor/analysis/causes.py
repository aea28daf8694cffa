"""What explains a divergence, and phrases that the sentences of checks share.

Each divergence has exactly one explanation, so that one fault is one finding; each
check asks for the explanation it is named for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from distdoctor.model.cut_texts import first_line
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
from distdoctor.model.findings import Certainty, Location, Role
from distdoctor.model.named_calls import is_by_name
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


NO_MAJORITY = "no majority"
"""Said wherever ranks are divided in halves, so that their numbers blame nobody."""

SOURCE = "source"
"""Key in the details of a divergence that was told by reading the user's source."""


@dataclass(frozen=True, slots=True)
class PartingTest:
    """A test of the source at which the ways of ranks part.

    Attributes:
        text: In the words of the source, with the statement by which one leaves there.
        place: Its line.
        leaves: One side leaves there, by `return`, `continue`, `break` or `raise`.
        handles: It is the handler of an exception.
    """

    text: str
    place: Place
    leaves: bool = False
    handles: bool = False

    def __str__(self) -> str:
        return f"`{self.text}` ({self.place})"


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
        facts: What its sentence tells. The words are those of the check that is named
            for the explanation, see `distdoctor.analysis.sentences`. If it is another
            divergence, it was taken for that before, and the words stay.
        remarks: What is told behind that sentence, as it was read from the source; with
            the space, or the semicolon, before it.
        cause: The event that explains it, where there is one.
        certainty: How sure the explanation is.
        elsewhere: Further lines that tell the story.
        details: Figures for machines.
        test: Where in the source their ways part, where that is known.
    """

    why: Cause
    group: Group | None
    ordinal: int
    calls: dict[int, Call]
    culprits: tuple[int, ...]
    victims: tuple[int, ...]
    facts: object = None
    remarks: str = ""
    cause: Event | None = None
    certainty: Certainty = Certainty.PROVED
    elsewhere: tuple[Location, ...] = field(default=())
    details: dict[str, object] = field(default_factory=dict)
    test: PartingTest | None = None


def sides(
    divergence: Divergence, by: Callable[[Call], Hashable]
) -> dict[Hashable, list[int]]:
    """Ranks of a divergence by what tells their calls apart, the first rank's first."""
    found: dict[Hashable, list[int]] = {}
    for rank, call in sorted(divergence.calls.items()):
        found.setdefault(by(call), []).append(rank)
    return found


def where(group: Group, ordinal: int, calls: Iterable[Call] = ()) -> str:
    """A call's place in a group's sequence, for readers.

    Args:
        group: The group.
        ordinal: Its number among the calls on it.
        calls: Those that ranks make there; a name that all of these have is told.
    """
    named_so = {call.names for call in calls if is_by_name(call.group)}
    if len(named_so) == 1 and (names := named_so.pop()):
        return f"{names[0]}, call {ordinal} on {group.name}"
    return f"call {ordinal} on {group.name}"


def on_group(call: Call) -> str:
    """A call with its place in its group's sequence, for readers; messages have none.

    Args:
        call: The call.
    """
    if not call.ordinal:
        return f"{call.op} on {call.group}"
    name = f"{call.names[0]}, " if call.names and is_by_name(call.group) else ""
    return f"{call.op} ({name}call {call.ordinal} on {call.group})"


def where_of(base: Divergence) -> str:
    """A divergence's place in its group's sequence, for readers."""
    if base.group is None:
        return ""
    calls = [call for call in base.calls.values() if call.ordinal == base.ordinal]
    return where(base.group, base.ordinal, calls)


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
    text = _OBJECT.sub(r"a \1", failure.message)
    message = f" ({first_line(text, 120)})" if text else ""
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
