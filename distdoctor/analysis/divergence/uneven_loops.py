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


def ran_out(run: Run, divergence: Divergence) -> Divergence:
    """Ranks that have finished, told as ranks whose shares of a loop were shorter.

    They made the call for which the others wait now, in a loop over what each rank has
    for itself. An end that was asked for, or a loader that was seen to end, is known
    better.

    Args:
        run: The run that is judged.
        divergence: The divergence as it is known so far.

    Returns:
        The same object if it is not so, or nothing shows it.
    """
    orderly = divergence.cause is None or isinstance(divergence.cause, Left | Ended)
    if divergence.why is not Cause.FINISHED or not orderly or not run.sources:
        return divergence
    waiting = [
        divergence.calls[rank]
        for rank in divergence.victims
        if rank in divergence.calls
    ]
    if not waiting or not made_it_before(run, divergence, waiting[0]):
        return divergence
    if any(run.of(Batch, rank) for rank in divergence.culprits):
        return divergence
    for loop in loops_around(run, waiting[0]):
        dealt = dealt_out(run, loop, divergence.culprits)
        if not dealt:
            continue
        who, others = named(divergence.culprits), named(divergence.victims)
        return replace(
            divergence,
            why=Cause.UNEVEN,
            certainty=Certainty.LIKELY,
            elsewhere=(
                *dealt,
                *pointers([loop], divergence.culprits, LEFT_LOOP),
                *divergence.elsewhere,
            ),
            facts=divergence,  # that the others wait for them in vain stays true
            remarks=f" Each rank goes through a share of its own in the loop "
            f"at {loop}: {who} most likely had fewer rounds than {others}.",
        )
    return divergence


def with_givers(run: Run, divergence: Divergence) -> Divergence:
    """The same, with the user's lines that give items to the loops it tells of.

    Args:
        run: The run that is judged.
        divergence: The divergence as it is known so far.

    Returns:
        The same object if no such line is known.
    """
    if (
        divergence.why not in {Cause.UNEVEN, Cause.SKIPPED, Cause.FINISHED}
        or not run.sources
    ):
        return divergence
    program = program_of(run)
    known = {one.place for one in divergence.elsewhere}
    found = [
        Location(line, one.ranks, one.role, "gives the loop its items")
        for one in divergence.elsewhere
        for line in givers(program, one.place, one.ranks[0], run.world_size)
        if line not in known
    ]
    return (
        replace(divergence, elsewhere=(*divergence.elsewhere, *found))
        if found
        else divergence
    )


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
