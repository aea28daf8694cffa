"""Where what a loop goes through was dealt out among ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from distdoctor.analysis.causes import LEFT_LOOP, Cause, Divergence, pointers
from distdoctor.analysis.divergence.loop_departures import made_it_before
from distdoctor.analysis.divergence.parting_branches import program_of, ways_to
from distdoctor.analysis.divergence.ways_out import loops_of
from distdoctor.analysis.source.dealt_loops import shares
from distdoctor.analysis.source.loop_iterables import givers
from distdoctor.model.events import Batch, Call, Ended, Left, Place
from distdoctor.model.findings import Certainty, Location
from distdoctor.model.run import Run, named

DEALT_OUT = "its share of what the loop goes through is taken here"


def dealt_out(run: Run, loop: Place, ranks: Iterable[int]) -> tuple[Location, ...]:
    """Pointers to the lines that give ranks their shares of a loop's items.

    Shares of one length each need no word; those of ranks that made other numbers of
    rounds are where to look.

    Args:
        run: The run that is judged.
        loop: The line of the loop's head.
        ranks: Ranks that made another number of rounds.

    Returns:
        A pointer for each line.
    """
    return pointers(shares(program_of(run), loop), ranks, DEALT_OUT)


def ran_out(run: Run, told: Divergence) -> Divergence:
    """Ranks that have finished, told as ranks whose shares of a loop were shorter.

    They made the call for which the others wait now, in a loop over what each rank has
    for itself. An end that was asked for, or a loader that was seen to end, is known
    better.

    Args:
        run: The run that is judged.
        told: The divergence as it is known so far.

    Returns:
        The same object if it is not so, or nothing shows it.
    """
    orderly = told.cause is None or isinstance(told.cause, Left | Ended)
    if told.why is not Cause.FINISHED or not orderly or not run.sources:
        return told
    waiting = [told.calls[rank] for rank in told.victims if rank in told.calls]
    if not waiting or not made_it_before(run, told, waiting[0]):
        return told
    if any(run.of(Batch, rank) for rank in told.culprits):
        return told
    for loop in loops_around(run, waiting[0]):
        dealt = dealt_out(run, loop, told.culprits)
        if not dealt:
            continue
        who, others = named(told.culprits), named(told.victims)
        return replace(
            told,
            why=Cause.UNEVEN,
            certainty=Certainty.LIKELY,
            elsewhere=(
                *dealt,
                *pointers([loop], told.culprits, LEFT_LOOP),
                *told.elsewhere,
            ),
            facts=told,  # that the others wait for them in vain stays true
            remarks=f" Each rank goes through a share of its own in the loop "
            f"at {loop}: {who} most likely had fewer rounds than {others}.",
        )
    return told


def with_givers(run: Run, told: Divergence) -> Divergence:
    """The same, with the user's lines that give items to the loops it tells of.

    Args:
        run: The run that is judged.
        told: The divergence as it is known so far.

    Returns:
        The same object if no such line is known.
    """
    if told.why not in {Cause.UNEVEN, Cause.SKIPPED, Cause.FINISHED} or not run.sources:
        return told
    program = program_of(run)
    known = {one.place for one in told.elsewhere}
    found = [
        Location(line, one.ranks, one.role, "gives the loop its items")
        for one in told.elsewhere
        for line in givers(program, one.place, one.ranks[0], run.world_size)
        if line not in known
    ]
    return replace(told, elsewhere=(*told.elsewhere, *found)) if found else told


def loops_around(run: Run, call: Call) -> Iterator[Place]:
    """Loops that lead to a call, innermost first.

    Args:
        run: The run that is judged.
        call: A call of the run.

    Yields:
        The lines of the loops' heads; a loop may come several times.
    """
    program = program_of(run)
    for chain in ways_to(run, call):
        for place in reversed(chain):
            function = program.at(place.file, place.line)
            if function is not None:
                for loop in loops_of(function, place.line):
                    yield Place(place.file, loop.lineno, place.function)
