"""Who has come further in the program: by stacks, and the text of what both are in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distdoctor.analysis.divergence import loop_positions
from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.divergence.ways_out import functions_of
from distdoctor.model.run import Frame, Run


def is_behind(run: Run, mine: Sequence[Frame], theirs: Sequence[Frame]) -> bool:
    """Whether the second has come further, in the function where their ways part.

    Args:
        run: Holds the sources.
        mine: Stack of the one, innermost frame first.
        theirs: Stack of the other.

    Returns:
        Whether it is known to have.
    """
    outermost = list(zip(reversed(mine), reversed(theirs), strict=False))
    for n, (here, there) in enumerate(outermost):
        a, b = here.place, there.place
        if (a.file, a.function) != (b.file, b.function):
            return False
        rounds = list(_shared(run, here, there))
        if not all(_is_same_round(loop, here, there) for loop in rounds):
            inner = outermost[n + 1] if n + 1 < len(outermost) else None
            return inner is not None and _is_earlier_stage(run, rounds, *inner)
        if a.line != b.line:
            return a.line < b.line
    return False


def _is_earlier_stage(
    run: Run, rounds: Sequence[loop_positions.Loop], here: Frame, there: Frame
) -> bool:
    """Whether the one loop of both goes through functions, of which one comes first.

    As in `for stage in (warm_up, train, tune): stage(model)`.
    """
    if len(rounds) != 1:
        return False
    order = functions_of(program_of(run), rounds[0].place)
    names = [frame.place.function.rpartition(".")[2] for frame in (here, there)]
    if not all(order.count(name) == 1 for name in names):
        return False
    return order.index(names[0]) < order.index(names[1])


def _shared(run: Run, here: Frame, there: Frame) -> Iterator[loop_positions.Loop]:
    """Loops of a function that two ranks are in."""
    for _, loop in loop_positions.loops_around(run, [here]):
        if loop.place.line <= there.place.line <= loop.last_line:
            yield loop


def _is_same_round(loop: loop_positions.Loop, here: Frame, there: Frame) -> bool:
    """Whether they are in the same round, by an integer that the loop assigns."""
    rounds = [
        (here.integers[name], there.integers[name])
        for name in loop.targets
        if name in here.integers and name in there.integers
    ]
    return bool(rounds) and all(a == b for a, b in rounds)
