"""Whether a rank left out a call because it swallowed an exception.

Best is an exception that was seen on its way up and that ended nothing. Where it passed
no probe, the source may still leave one way around the call: a handler.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import attrgetter

from distdoctor.analysis.causes import (
    LEFT_LOOP,
    SKIPPED_HERE,
    Cause,
    Divergence,
    at,
    pointers,
    sides,
)
from distdoctor.analysis.divergence.loop_departures import is_unconditional, kept_rounds
from distdoctor.analysis.divergence.parting_branches import program_of, ways_to
from distdoctor.analysis.divergence.ways_out import loops_of
from distdoctor.analysis.failures.exception_handlers import (
    Handler,
    callers,
    handler_around,
    handler_that_caught,
    may_lead_around,
)
from distdoctor.analysis.source.call_chains import functions_to
from distdoctor.analysis.source.program import Function, Program, called
from distdoctor.model.events import Batch, Failure, Place
from distdoctor.model.findings import Certainty
from distdoctor.model.run import Run

_MOST_ASKED = 32
"""Ranks whose way to the call is looked at: thousands that wait came by few ways."""

_CALLS_MISSING = {Cause.SKIPPED, Cause.UNEVEN, Cause.FINISHED}

_UNLIKE = {Cause.OPERATION, Cause.NUMEL, Cause.DTYPE, Cause.SPLITS}

_OUT_OF_STEP = _CALLS_MISSING | _UNLIKE | {Cause.UNANSWERED}


@dataclass(frozen=True, slots=True)
class SwallowedException:
    """An exception that was seen, and that ended nothing.

    Attributes:
        ranks: Who raised it.
        failure: The exception.
        left_out: The divergence, as what the calls alone show: those they did not make.
    """

    ranks: tuple[int, ...]
    failure: Failure
    left_out: Divergence


@dataclass(frozen=True, slots=True)
class LikelySwallowed:
    """A handler that is the only way of the source around a call.

    Attributes:
        ranks: Who did not make the call.
        handler: Its line.
        what: The exceptions that it swallows.
        left_out: The divergence, as what the calls alone show.
    """

    ranks: tuple[int, ...]
    handler: Place
    what: str
    left_out: Divergence


def swallowed_exception(run: Run, divergence: Divergence) -> Divergence:
    """The divergence, told as a swallowed exception if it was one.

    Args:
        run: The run that is judged.
        divergence: The divergence as it is known so far.

    Returns:
        The same object if it was none.
    """
    if divergence.why not in _OUT_OF_STEP:
        return divergence
    for reading in _readings(divergence):
        around = _around(run, reading)
        seen = [_swallowed(run, rank, around) for rank in reading.culprits]
        others = [_swallowed(run, rank, around) for rank in reading.victims]
        if all(seen) and not any(others):
            return _seen(run, reading, seen[0][-1])
    if not divergence.culprits:
        return divergence
    handler = _only_way(run, divergence)
    return divergence if handler is None else _likely(divergence, handler)


def _readings(divergence: Divergence) -> Iterator[Divergence]:
    """Who may have left out calls: who is blamed; of two sides of one size, either.

    Those have to be at different lines, as after a call that only one side made.
    """
    culprits = divergence.culprits
    if culprits:
        yield divergence
    parts = sides(divergence, attrgetter("place"))
    if len(parts) != 2 or len({len(ranks) for ranks in parts.values()}) != 1:
        return
    for ranks in parts.values():
        if sorted(ranks) != sorted(culprits):
            others = sorted({*divergence.calls} - {*ranks})
            yield replace(divergence, culprits=tuple(ranks), victims=tuple(others))


@dataclass(frozen=True, slots=True)
class _Around:
    """How the others came to a call: lines on the way, and functions it may lead by."""

    places: frozenset[Place]
    functions: frozenset[tuple[str, str]]  # file and name


def _around(run: Run, divergence: Divergence) -> _Around:
    """What is around the call of the others.

    What a loop on the way goes through, a generator it may be, belongs to it.
    """
    program = program_of(run)
    functions: list[Function] = []
    places: set[Place] = set()
    for rank in divergence.victims[:_MOST_ASKED]:
        call = divergence.calls.get(rank)
        if call is None or call.place is None:
            continue
        ways = ways_to(run, call) or [(call.place,)]
        places |= {place for way in ways for place in way}
        function = program.at(call.place.file, call.place.line)
        if len(ways) != 1 and function is not None:  # which way it came is not known
            functions += functions_to(program, function)
    functions += [one for place in places for one in _gone_through(program, place)]
    named = {(one.file, one.name) for one in functions}
    named |= {(place.file, place.function) for place in places}
    return _Around(frozenset(places), frozenset(named))


def _gone_through(program: Program, place: Place) -> Iterator[Function]:
    """Functions of whose results loops around a line go through."""
    function = program.at(place.file, place.line)
    for loop in [] if function is None else loops_of(function, place.line):
        if not isinstance(loop, ast.While):
            for node in ast.walk(loop.iter):
                if isinstance(node, ast.Call):
                    yield from program.named(called(node))


def _swallowed(run: Run, rank: int, around: _Around) -> list[Failure]:
    """Exceptions of a rank's own that were seen, and did not end it.

    Of those that were seen in their handler it has to be one in a function that leads
    to the call; many a program has handlers elsewhere that do no harm.
    """
    failures = [failure for failure in run.of(Failure, rank) if not failure.secondary]
    ended = {(f.error, f.message) for f in failures if f.fatal}
    return [
        one
        for one in failures
        if (one.error, one.message) not in ended
        and (one.caught is None or _leads_around(run, one, one.caught, around))
    ]


def _leads_around(run: Run, one: Failure, caught: Place, around: _Around) -> bool:
    return (caught.file, caught.function) in around.functions and may_lead_around(
        run, caught, one.error, around.places
    )


def _only_way(run: Run, divergence: Divergence) -> Handler | None:
    if not _left_out(run, divergence):
        return None
    for rank in divergence.victims[:_MOST_ASKED]:
        call = divergence.calls.get(rank)
        if call is None or call.place is None:
            continue
        ways = ways_to(run, call)
        if len(ways) == 1:
            stack = ways[0][::-1]
            found = handler_around(run, stack)
            if found is None or is_unconditional(run, stack):
                return found
            return None
        found = handler_around(run, [call.place])
        around = [handler_around(run, [line]) for line in callers(run, call.place)]
        if found is None and len(around) == 1:
            found = around[0]
        return found
    return None


def _left_out(run: Run, divergence: Divergence) -> bool:
    """Whether it is known that the ranks went through the round and not the call."""
    if divergence.why is Cause.SKIPPED:
        remarks = {line.remark for line in divergence.elsewhere}
        if LEFT_LOOP in remarks:
            return kept_rounds(run, divergence) or _had_the_batches(run, divergence)
        return SKIPPED_HERE in remarks
    if divergence.why not in {Cause.FINISHED, Cause.UNEVEN} or isinstance(
        divergence.cause, Batch
    ):
        return False
    begun = [_batches(run, rank) for rank in divergence.victims]
    had = [_batches(run, rank) for rank in divergence.culprits]
    if not any((*begun, *had)):
        return kept_rounds(run, divergence)
    return divergence.why is Cause.FINISHED and all(
        mine and mine.keys() == theirs.keys() and mine[place] >= theirs[place]
        for mine in had
        for theirs in begun
        for place in theirs
    )


def _had_the_batches(run: Run, divergence: Divergence) -> bool:
    """Whether a loader gave the ranks as much, by now, in the loop they are behind."""
    heads = {
        (one.place.file, one.place.line)
        for one in divergence.elsewhere
        if one.remark == LEFT_LOOP
    }
    counts = {
        rank: Counter(
            {
                place: count
                for place, count in _batches(run, rank).items()
                if place is not None and (place.file, place.line) in heads
            }
        )
        for rank in (*divergence.culprits, *divergence.victims)
    }
    return all(
        counts[mine] and counts[theirs] and counts[mine] >= counts[theirs]
        for mine in divergence.culprits
        for theirs in divergence.victims
    )


def _batches(run: Run, rank: int) -> Counter[Place | None]:
    """How many batches a rank had from each loader, in all epochs."""
    batches: Counter[Place | None] = Counter()
    for event in run.of(Batch, rank):
        batches[event.place] += event.count
    return batches


def _seen(run: Run, divergence: Divergence, failure: Failure) -> Divergence:
    ranks, caught = divergence.culprits, failure.caught
    if caught is not None:
        caught = handler_that_caught(run, caught, failure.error)
    handlers = [] if caught is None else [caught]
    certain = divergence.certainty if failure.caught is None else Certainty.LIKELY
    return replace(
        divergence,
        why=Cause.SWALLOWED,
        certainty=certain,  # that it left out just that call for it is inferred
        cause=failure,
        elsewhere=(
            *at(failure, ranks, f"raised {failure.error}, and went on"),
            *pointers(handlers, ranks, "swallows it"),
            *divergence.elsewhere,
        ),
        facts=SwallowedException(ranks, failure, divergence),
        remarks="",
    )


def _likely(divergence: Divergence, handler: Handler) -> Divergence:
    ranks = divergence.culprits
    what = handler.catches or "any exception"
    known = {line.place for line in divergence.elsewhere}
    around = [handler.around] if handler.around not in known else []
    others = (one for one in divergence.elsewhere if one.place != handler.place)
    return replace(
        divergence,
        why=Cause.SWALLOWED,
        certainty=Certainty.LIKELY,
        elsewhere=(
            *pointers([handler.place], ranks, f"swallows {what}"),
            *pointers(around, ranks, "what was left out"),
            *others,
        ),
        facts=LikelySwallowed(ranks, handler.place, what, divergence),
        remarks="",
    )
