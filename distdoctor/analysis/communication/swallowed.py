"""Whether a rank left out a call because it swallowed an exception.

Best is an exception that was seen on its way up and that ended nothing. Where it passed
no probe, the source may still leave one way around the call: a handler.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from distdoctor.analysis.communication.branches import ways_to
from distdoctor.analysis.communication.departures import (
    is_unconditional,
    kept_rounds,
)
from distdoctor.analysis.communication.handlers import (
    Handler,
    callers,
    handler_around,
    handler_that_caught,
)
from distdoctor.analysis.reasons import (
    LEFT_LOOP,
    SKIPPED_HERE,
    Divergence,
    Why,
    at,
    capital,
    failed,
    pointers,
)
from distdoctor.model.events import Batch, Failure, Place
from distdoctor.model.findings import Certainty
from distdoctor.model.run import Run, named

_CALLS_MISSING = {Why.SKIPPED, Why.UNEVEN, Why.FINISHED}

_OUT_OF_STEP = _CALLS_MISSING | {Why.OPERATION, Why.NUMEL, Why.DTYPE, Why.SPLITS}


def swallowed_exception(run: Run, divergence: Divergence) -> Divergence:
    """The divergence, told as a swallowed exception if it was one."""
    if divergence.why not in _OUT_OF_STEP or not divergence.culprits:
        return divergence
    around = _functions_around(run, divergence)
    seen = [_swallowed(run, rank, around) for rank in divergence.culprits]
    others = [_swallowed(run, rank, around) for rank in divergence.victims]
    if all(seen) and not any(others):
        return _told(run, divergence, seen[0][-1])
    handler = _only_way(run, divergence)
    return divergence if handler is None else _likely(divergence, handler)


def _functions_around(run: Run, divergence: Divergence) -> set[tuple[str, str]]:
    """File and name of the functions in which the others were at the call."""
    calls = [divergence.calls.get(rank) for rank in divergence.victims]
    known = [call for call in calls if call is not None and call.place is not None]
    chains = [chain for call in known for chain in ways_to(run, call)]
    places = [place for chain in chains for place in chain]
    places += [call.place for call in known if call.place is not None]
    return {(place.file, place.function) for place in places}


def _swallowed(run: Run, rank: int, around: set[tuple[str, str]]) -> list[Failure]:
    """Exceptions of a rank's own that were seen, and did not end it.

    Of those that were seen in their handler it has to be one in a function that leads
    to the call; many a program has handlers elsewhere that do no harm.
    """
    failures = [failure for failure in run.of(Failure, rank) if not failure.secondary]
    ended = {(f.error, f.message) for f in failures if f.fatal}
    return [
        f
        for f in failures
        if (f.error, f.message) not in ended
        and (f.caught is None or (f.caught.file, f.caught.function) in around)
    ]


def _only_way(run: Run, divergence: Divergence) -> Handler | None:
    if not _left_out(run, divergence):
        return None
    for rank in divergence.victims:
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
    if divergence.why is Why.SKIPPED:
        remarks = {line.remark for line in divergence.elsewhere}
        if LEFT_LOOP in remarks:
            return kept_rounds(run, divergence) or _had_the_batches(run, divergence)
        return SKIPPED_HERE in remarks
    if divergence.why not in {Why.FINISHED, Why.UNEVEN} or isinstance(
        divergence.cause, Batch
    ):
        return False
    begun = [_batches(run, rank) for rank in divergence.victims]
    had = [_batches(run, rank) for rank in divergence.culprits]
    if not any((*begun, *had)):
        return kept_rounds(run, divergence)
    return divergence.why is Why.FINISHED and all(
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


def _told(run: Run, divergence: Divergence, failure: Failure) -> Divergence:
    ranks, caught = divergence.culprits, failure.caught
    if caught is not None:
        caught = handler_that_caught(run, caught, failure.error)
    handlers = [] if caught is None else [caught]
    return replace(
        divergence,
        why=Why.SWALLOWED,
        cause=failure,
        elsewhere=(
            *at(failure, ranks, f"raised {failure.error}, and went on"),
            *pointers(handlers, ranks, "swallows it"),
            *divergence.elsewhere,
        ),
        story=f"{failed(ranks, failure)}, and went on without the calls that the "
        f"others made. {divergence.story}",
    )


def _likely(divergence: Divergence, handler: Handler) -> Divergence:
    ranks = divergence.culprits
    what = handler.catches or "any exception"
    known = {line.place for line in divergence.elsewhere}
    around = [handler.around] if handler.around not in known else []
    others = (one for one in divergence.elsewhere if one.place != handler.place)
    return replace(
        divergence,
        why=Why.SWALLOWED,
        certainty=Certainty.LIKELY,
        elsewhere=(
            *pointers([handler.place], ranks, f"swallows {what}"),
            *pointers(around, ranks, "what was left out"),
            *others,
        ),
        story=f"{divergence.story} The source has one way around that call: the "
        f"handler at {handler.place}, which swallows {what}. {capital(named(ranks))} "
        "most likely met that, unless the loop itself had fewer rounds there.",
    )
