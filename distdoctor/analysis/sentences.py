"""The sentences of divergences: each cause has its words in the check named for it.

A sentence may be a part of another one: of an exception that was swallowed, it tells
which calls were left out for it. No check imports another, so a check registers its
words here by `sentence_of`, and whoever needs those of another cause asks `sentence`.
All checks are imported before the first is asked (`distdoctor.catalogue.every_check`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.errors import CheckMalformed
from distdoctor.model.events import Call, Event, Place
from distdoctor.model.findings import Finding, Location, Role

Sentence = Callable[[Any], str]
"""How a check words the facts of its disease; it knows which it is given."""

_Words = TypeVar("_Words", bound=Sentence)

_SENTENCES: dict[Cause, Sentence] = {}


def sentence_of(cause: Cause) -> Callable[[_Words], _Words]:
    """A decorator: registers the function that words the facts of one cause.

    Args:
        cause: The cause.

    Raises:
        CheckMalformed: Another function has its words already.
    """

    def register(words: _Words) -> _Words:
        known = _SENTENCES.setdefault(cause, words)
        if known is not words:
            raise CheckMalformed(
                f"the cause {cause!r} has its words in {known.__module__} already, "
                f"and {words.__module__} has others: leave them to one check"
            )
        return words

    return register


def sentence(divergence: Divergence) -> str:
    """What happened, in the words of the check that the cause names, and all remarks.

    Args:
        divergence: The divergence.

    Returns:
        The text. A cause without words is warned of, and told by its name alone: what
        was found is never lost.
    """
    facts = divergence.facts
    if isinstance(facts, Divergence):
        return sentence(facts) + divergence.remarks
    words = _SENTENCES.get(divergence.why)
    if words is None:
        warnings.warn(
            f"no check has words for {divergence.why!r}: decorate its function with "
            "`sentence_of`, or load all checks first",
            RuntimeWarning,
            stacklevel=2,
        )
        return f"The ranks part ways: {divergence.why}.{divergence.remarks}"
    return words(facts) + divergence.remarks


def finding(divergence: Divergence) -> Finding:
    """A divergence as a finding: its sentence, and who stood where."""
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
        message=sentence(divergence),
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
