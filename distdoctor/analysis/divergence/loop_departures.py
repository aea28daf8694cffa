"""By which statement ranks left a loop, whose next round the others have begun.

The loop is one around the call in which the others wait, or around one of its callers;
it is left by its head, or by a `break` or `return` in it. What all ranks decide alike
cannot part them: a counter, a constant, what was agreed on by a collective. If a few
ways are left, the ranks took one of them. A round that was cut short explains a missing
call as well, so these ways are told too, unless the loader's batches tell which it was.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from distdoctor.analysis.causes import Cause, Divergence, capital, pointers
from distdoctor.analysis.divergence.parting_branches import program_of, ways_to
from distdoctor.analysis.divergence.ways_out import (
    WayOut,
    is_in,
    loops_of,
    out_of,
    skips,
)
from distdoctor.analysis.source.rank_variation import Nature, changes, nature
from distdoctor.model.events import Batch, Call, Left, Place
from distdoctor.model.findings import Certainty, Location
from distdoctor.model.run import Run, named

_MOST = 3  # with more ways a list says nothing

_BY_ROUNDS = {Cause.FINISHED, Cause.UNEVEN, Cause.SKIPPED}

_MAY_DIFFER = {Nature.LOCAL, Nature.OPEN}


def departed(run: Run, divergence: Divergence) -> Divergence:
    """The same divergence, with the statement by which its culprits left a loop.

    Args:
        run: The run that is judged.
        divergence: The divergence as it is known so far.

    Returns:
        The same object if it is about no loop, or no few ways are left.
    """
    if divergence.why not in _BY_ROUNDS or not divergence.culprits or not run.sources:
        return divergence
    if isinstance(divergence.cause, Batch):
        return divergence  # the loader that ended is known
    waiting = _waiting(run, divergence)
    if waiting is None:
        return divergence
    ways = _chosen(run, divergence, list(_ways(run, divergence, waiting)))
    if not 0 < len(ways) <= _MOST:
        return divergence
    lines: dict[tuple[Place, str], Location] = {}
    for location in (*_lines(run, divergence, ways), *divergence.elsewhere):
        known = any(location.place == place for place, _ in lines)
        if not known or "loop" not in location.remark:
            lines.setdefault((location.place, location.remark), location)
    words = " or ".join(f"`{way.text}` ({way.place})" for way in ways)
    who = capital(named(divergence.culprits))
    left = "left out the round" if all(way.stays for way in ways) else "left the loop"
    if any(way.stays for way in ways) and left == "left the loop":
        left = "left the loop, or a round of it,"
    if divergence.why is Cause.UNEVEN and all(way.stays for way in ways):
        divergence = replace(
            divergence,
            why=Cause.SKIPPED,
            certainty=Certainty.LIKELY,
            facts=divergence,
            remarks="",
        )
    return replace(
        divergence,
        elsewhere=tuple(lines.values()),
        remarks=f"{divergence.remarks} {who} most likely {left} by {words}.",
    )


def kept_rounds(run: Run, divergence: Divergence) -> bool:
    """Whether the source leaves the culprits no way out of the loops but the common.

    They are behind these loops, or gone, and made a call less in them than the others;
    who never made it came by all the same, if nothing leads around it.

    Args:
        run: The run that is judged.
        divergence: The divergence as it is known so far.

    Returns:
        Whether it does; False if nothing is known of the loops.
    """
    waiting = _first_waiting(divergence)
    if waiting is None:
        return False
    if not made_it_before(run, divergence, waiting) and not all(
        must_pass(run, chain) for chain in ways_to(run, waiting)
    ):
        return False
    ways = list(_ways(run, divergence, waiting))
    heads = _heads(run, waiting, _stands(run, divergence) or [])
    may_differ = not _MAY_DIFFER.isdisjoint(heads)
    return bool(heads) and not may_differ and all(way.stays for way in ways)


def is_unconditional(run: Run, stack: Sequence[Place]) -> bool:
    """Whether a rank's data leads nobody around a call, in a round of its loop.

    Args:
        run: Holds the sources.
        stack: The line of the call, and those of its callers, innermost first.

    Returns:
        Whether it is so, as far as the source tells.
    """
    program = program_of(run)
    for place in stack:
        function = program.at(place.file, place.line)
        if function is None:
            continue
        if any(way.nature is not Nature.COMMON for way in skips(run, function, place)):
            return False
        if loops_of(function, place.line):
            return True
    return True


def must_pass(run: Run, stack: Sequence[Place]) -> bool:
    """Whether all ranks come to a call, or none: what leads around it is common.

    Args:
        run: Holds the sources.
        stack: The line of the call, and those of its callers.

    Returns:
        Whether it is so, as far as the source tells.
    """
    program = program_of(run)
    return not any(
        program.at(place.file, place.line) is None or ways_around(run, place)
        for place in stack
    )


def ways_around(run: Run, place: Place) -> list[WayOut]:
    """What may lead some ranks, and not others, around a line of the user's.

    Args:
        run: Holds the sources.
        place: The line.

    Returns:
        The ways, maybe none.
    """
    function = program_of(run).at(place.file, place.line)
    ways = [] if function is None else skips(run, function, place)
    return [way for way in ways if way.nature in _MAY_DIFFER]


def _waiting(run: Run, divergence: Divergence) -> Call | None:
    """The call of the others, if all culprits made such a one before."""
    waiting = _first_waiting(divergence)
    made = waiting is not None and made_it_before(run, divergence, waiting)
    return waiting if made else None


def _first_waiting(divergence: Divergence) -> Call | None:
    waiting = (
        call for rank, call in divergence.calls.items() if rank in divergence.victims
    )
    return next(waiting, None)


def _heads(run: Run, waiting: Call, stands: Sequence[Place]) -> list[Nature]:
    """What decides how many rounds the loops have that were left."""
    program = program_of(run)
    return [
        nature(program, asked, function)
        for chain in ways_to(run, waiting)
        for place in chain
        for function in [program.at(place.file, place.line)]
        if function is not None
        for loop in loops_of(function, place.line)
        if not any(is_in(loop, function, line) for line in stands)
        for asked in [loop.test if isinstance(loop, ast.While) else loop.iter]
    ]


def made_it_before(run: Run, divergence: Divergence, waiting: Call) -> bool:
    """Whether all culprits were in the loop: they made such a call from that line.

    Args:
        run: Holds the calls.
        divergence: Names the culprits.
        waiting: In which the others wait.

    Returns:
        Whether each of them did.
    """
    if waiting.place not in run.sites:
        return False
    site = run.sites.index(waiting.place)
    for rank in divergence.culprits:
        rows = run.rows_of(rank)
        if not (run.calls["site"][rows.start : rows.stop] == site).any():
            return False
    return True


def _ways(run: Run, divergence: Divergence, waiting: Call) -> Iterator[WayOut]:
    """All ways, innermost loop first, that some ranks may take and others not."""
    program = program_of(run)
    stands = _stands(run, divergence)
    if stands is None:
        return
    seen: set[tuple[Place, int]] = set()
    for chain in ways_to(run, waiting):
        around: list[WayOut] = []  # ways around the call, up to the loop
        for place in reversed(chain):
            function = program.at(place.file, place.line)
            if function is None:
                continue
            loops = loops_of(function, place.line)
            around += skips(run, function, place)
            for loop in loops:
                if any(is_in(loop, function, line) for line in stands):
                    return  # they are in it, and in all loops around it
                for way in (*out_of(run, loop, function), *around):
                    key = (way.place, way.leaves_at)
                    if way.nature in _MAY_DIFFER and key not in seen:
                        seen.add(key)
                        yield way
                around = []


def _stands(run: Run, divergence: Divergence) -> list[Place] | None:
    """Lines in which a culprit is, and its callers; None if it is not known."""
    lines: list[Place] = []
    for rank in divergence.culprits:
        call = divergence.calls.get(rank)
        if call is None:
            if divergence.why is not Cause.FINISHED:
                return None
            continue
        ways = ways_to(run, call)
        if not ways:
            return None
        lines += [place for way in ways for place in way]
    return lines


# --- which of them ---


def _chosen(run: Run, divergence: Divergence, ways: list[WayOut]) -> list[WayOut]:
    """The ways that what else is known of the culprits leaves open."""
    if left := _left_at(run, divergence):
        here = [way for way in ways if _leads_to(way, left)]
        ways = here or ways
    open_heads = _still_open(run, divergence)
    ways = [way for way in ways if (way.place.file, way.place.line) not in open_heads]
    out = [way for way in ways if not way.stays]
    local = [way for way in out if way.nature is Nature.LOCAL]
    around = [way for way in ways if way.stays and way.nature is Nature.LOCAL]
    kept = _kept_pace(run, divergence)
    if kept:
        return around
    return (local or out) if kept is False else [*(local or out), *around]


def _kept_pace(run: Run, divergence: Divergence) -> bool | None:
    """Whether culprits had as many batches as the others; None: it is not known."""
    theirs = [
        _batches(run, rank) for rank in divergence.victims if run.has_seen((rank,))
    ]
    mine = [_batches(run, rank) for rank in divergence.culprits]
    if not all(theirs) or not all(mine):
        return None
    most = max(sum(one.values()) for one in theirs)
    if all(sum(one.values()) >= most for one in mine):
        return True
    return False if all(sum(one.values()) < most for one in mine) else None


def _batches(run: Run, rank: int) -> Counter[Place | None]:
    found: Counter[Place | None] = Counter()
    for event in run.of(Batch, rank):
        found[event.place] += event.count
    return found


def _left_at(run: Run, divergence: Divergence) -> Place | None:
    places = {
        event.place for rank in divergence.culprits for event in run.of(Left, rank)
    }
    return places.pop() if len(places) == 1 else None


def _leads_to(way: WayOut, left: Place) -> bool:
    """Whether the job is left right on that way: between its test and its jump."""
    file, line = left.file, left.line
    return way.place.file == file and way.place.line < line < way.leaves_at


def _still_open(run: Run, divergence: Divergence) -> set[tuple[str, int]]:
    """Lines that iterate over a loader which did not end on any of the culprits."""
    found: set[tuple[str, int]] = set()
    for rank in divergence.culprits:
        last: dict[Place, Batch] = {}
        for event in run.of(Batch, rank):
            if event.place is not None:
                last[event.place] = event
        found |= {(at.file, at.line) for at, event in last.items() if not event.ended}
    return found


def _lines(run: Run, divergence: Divergence, ways: list[WayOut]) -> Iterator[Location]:
    ranks = divergence.culprits
    for way in ways:
        yield from pointers([way.place], ranks, way.text)
    program = program_of(run)
    for way in ways:
        if way.leaves_at and way.leaves_at != way.place.line:
            at = replace(way.place, line=way.leaves_at)
            yield from pointers([at], ranks, "leaves here")
        for test, function in way.tests:
            made = changes(program, test, function)
            yield from pointers(made, ranks, "makes what is asked there")
