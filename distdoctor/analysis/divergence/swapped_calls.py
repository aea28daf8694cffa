"""Two calls that ranks make in opposite order.

Those that look alike pair up wrongly, and nothing fails. At the first that meets
another one, the ranks are stopped, and nobody has come to the second. Where each side's
block of the source goes on to what the other side is at, both were meant to make both.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.causes import (
    Cause,
    Divergence,
    pointers,
    sides,
    where_of,
)
from distdoctor.analysis.collectives.alignment import Alignment, Meeting
from distdoctor.analysis.collectives.call_groups import calls_at
from distdoctor.analysis.divergence.parting_branches import parting, program_of
from distdoctor.analysis.source.program import Function, own_nodes
from distdoctor.model.events import Call, Place
from distdoctor.model.findings import Certainty, Location
from distdoctor.model.operations import OPERATIONS
from distdoctor.model.run import Run

_MOST_COMPARED = 10_000  # meetings whose names are compared

_UNLIKE = {
    Cause.OPERATION,
    Cause.NUMEL,
    Cause.DTYPE,
    Cause.REDUCE_OP,
    Cause.ROOT,
    Cause.SPLITS,
}


@dataclass(frozen=True, slots=True)
class CrossedCalls:
    """Two calls that the source has each side make, in opposite order.

    Attributes:
        few: Who makes them in another order.
        many: The others.
        where: The place in the group's sequence that shows it.
        calls: The call of each side there, and who makes it.
    """

    few: tuple[int, ...]
    many: tuple[int, ...]
    where: str
    calls: tuple[tuple[Call, tuple[int, ...]], tuple[Call, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class UnseenSwap:
    """Two calls that look alike, made in opposite order, so that nothing fails.

    Attributes:
        few: Who makes them in another order.
        many: The others.
        ordinals: Which calls on the group they are.
        group: The group's name.
        by_lines: They come from the same two lines; else from lines of the same text.
        names: What the first of the others calls the two tensors, where the library
            matches calls by their order alone, whatever names they are given.
    """

    few: tuple[int, ...]
    many: tuple[int, ...]
    ordinals: tuple[int, int]
    group: str
    by_lines: bool
    names: tuple[str, ...] = ()


def crossed(run: Run, divergence: Divergence) -> Divergence:
    """Calls that do not match, told as calls in another order where they are that.

    Args:
        run: The run that is judged.
        divergence: The divergence as it is known so far.

    Returns:
        The same object if they are not.
    """
    found = sides(divergence, attrgetter("place")) if divergence.why in _UNLIKE else {}
    if len(found) != 2 or None in found or not run.sources:
        return divergence
    (here, there), (first, second) = found, found.values()
    assert isinstance(here, Place)
    assert isinstance(there, Place)
    program = program_of(run)
    functions = [program.at(place.file, place.line) for place in (here, there)]
    if functions[0] is None or functions[0] is not functions[1]:
        return divergence
    mine, theirs = (_from(functions[0], place.line) for place in (here, there))
    if not mine or not theirs or mine[0] not in theirs[1:] or theirs[0] not in mine[1:]:
        return divergence
    few = divergence.culprits or tuple(first)
    others = second if sorted(few) == sorted(first) else first
    return replace(
        divergence,
        why=Cause.ORDER,
        certainty=Certainty.LIKELY,
        remarks="",
        facts=CrossedCalls(
            tuple(few),
            tuple(others),
            where_of(divergence),
            (
                (divergence.calls[first[0]], tuple(first)),
                (divergence.calls[second[0]], tuple(second)),
            ),
        ),
    )


def unseen_swaps(run: Run, alignment: Alignment) -> Iterator[Divergence]:
    """Two calls that look alike, made in opposite order: they pair up wrongly.

    Args:
        run: The run that is judged.
        alignment: The collectives of one group.

    Yields:
        A divergence for each pair of meetings.
    """
    calls, group = run.calls, alignment.group
    full = (alignment.counts == len(group.ranks)) & alignment.equal
    if not full.any():
        return
    if (crossed_names := _crossed_names(run, alignment, full)) is not None:
        yield crossed_names
        return
    differ = alignment.varies(run, "site")
    for n in np.flatnonzero(differ[:-1] & differ[1:] & full[:-1] & full[1:]):
        first = alignment.meeting(run, int(n))
        second = alignment.meeting(run, int(n) + 1)
        if not OPERATIONS[calls["op"][next(iter(first.rows.values()))]].payload:
            continue
        here = calls_at(run, first)
        swapped, by_lines = _by_lines(first, second, calls), True
        decided = 2 * len(swapped) != len(here)
        if not swapped:
            swapped = _crossed_in_text(run, here, calls_at(run, second))
            by_lines, decided = False, True
        if swapped:
            others = sorted(set(first.rows) - set(swapped))
            branch = _branch(run, here, swapped, others)
            if branch is not None and branch[1] and not decided:
                swapped, decided = branch[1], True
                others = sorted(set(first.rows) - set(swapped))
            yield Divergence(
                why=Cause.ORDER,
                group=group,
                ordinal=first.ordinal,
                calls=here,
                culprits=swapped if decided else (),
                victims=tuple(others),
                certainty=Certainty.LIKELY,
                elsewhere=() if branch is None else branch[0],
                facts=UnseenSwap(
                    swapped,
                    tuple(others),
                    (first.ordinal, second.ordinal),
                    group.name,
                    by_lines=by_lines,
                ),
            )
            return


def _crossed_names(
    run: Run, alignment: Alignment, full: NDArray[np.bool_]
) -> Divergence | None:
    """Two calls whose tensors ranks name in opposite order, and that met by order."""
    differ = np.flatnonzero(alignment.varies(run, "spec") & full)
    met: dict[tuple[tuple[int, str], ...], Meeting] = {}
    for meeting in alignment.meetings(run, differ[:_MOST_COMPARED]):
        names = {rank: _given(run, row) for rank, row in meeting.rows.items()}
        sides = dict.fromkeys(names.values())
        if len(sides) != 2 or "" in sides:
            continue
        a, b = sides
        there = {rank: b if name == a else a for rank, name in names.items()}
        first = met.get(tuple(sorted(there.items())))
        if first is None:
            met.setdefault(tuple(sorted(names.items())), meeting)
            continue
        some = [[r for r, name in names.items() if name == side] for side in sides]
        few, many = sorted(some, key=lambda ranks: (len(ranks), -ranks[0]))
        return Divergence(
            why=Cause.ORDER,
            group=alignment.group,
            ordinal=first.ordinal,
            calls=calls_at(run, first),
            culprits=tuple(few) if len(few) < len(many) else (),
            victims=tuple(many),
            certainty=Certainty.LIKELY,
            facts=UnseenSwap(
                tuple(few),
                tuple(many),
                (first.ordinal, meeting.ordinal),
                alignment.group.name,
                by_lines=False,
                names=(there[many[0]], names[many[0]]),
            ),
        )
    return None


def _given(run: Run, row: int) -> str:
    """What the user calls a call's tensor, where the call does not go by that."""
    return "".join(run.specs[run.calls["spec"][row]].names[1:2])


def _branch(
    run: Run, here: dict[int, Call], some: Sequence[int], others: Sequence[int]
) -> tuple[tuple[Location, ...], tuple[int, ...]] | None:
    """Where the source sends two sides into orders of their own.

    Returns:
        The line of the test, and the side that it is for, if it singles one out.
    """
    for inside, outside in ((some, others), (others, some)):
        found = parting(run, here[inside[0]], inside, outside)
        if found is not None and found.singles_out:
            lines = pointers([found.condition.place], inside, str(found.condition))
            return lines, tuple(inside)
    return None


def _by_lines(first: Meeting, second: Meeting, calls: NDArray[Any]) -> tuple[int, ...]:
    """Ranks that visit two lines in the opposite order of the majority."""
    orders: dict[tuple[int, int], list[int]] = {}
    for rank, row in first.rows.items():
        pair = (int(calls["site"][row]), int(calls["site"][second.rows[rank]]))
        orders.setdefault(pair, []).append(rank)
    if len(orders) != 2:
        return ()
    (a, ranks_a), (b, ranks_b) = orders.items()
    if a != b[::-1] or 0 in a:  # a line that is not known may be the other one
        return ()
    return tuple(ranks_b if len(ranks_b) <= len(ranks_a) else ranks_a)


def _crossed_in_text(
    run: Run, first: Mapping[int, Call], second: Mapping[int, Call]
) -> tuple[int, ...]:
    """Ranks behind a branch by rank, whose two calls are the others' in opposite order.

    Args:
        run: Holds the sources.
        first: By rank, its call at some meeting.
        second: Likewise at the next.

    Returns:
        Empty if not, or if no branch of the source is for one side alone.
    """
    orders: dict[tuple[str, str], list[int]] = {}
    for rank in first:
        pair = tuple(_text(run, one.get(rank)) for one in (first, second))
        orders.setdefault((pair[0], pair[1]), []).append(rank)
    if len(orders) != 2:
        return ()
    ((a, b), mine), ((c, d), theirs) = orders.items()
    if a == b or (a, b) != (d, c) or "" in {a, b}:
        return ()
    for inside, outside in ((mine, theirs), (theirs, mine)):
        found = parting(run, first[inside[0]], inside, outside)
        if found is not None and (found.singles_out or len(inside) < len(outside)):
            return tuple(inside)
    return ()


def _text(run: Run, call: Call | None) -> str:
    """The statement that makes a call; empty if it is not known."""
    place = None if call is None else call.place
    function = None if place is None else program_of(run).at(place.file, place.line)
    if place is None or function is None:
        return ""
    return next(iter(_from(function, place.line)), "")


def _from(function: Function, line: int) -> Sequence[str]:
    """The texts of the statement at a line and of those behind it in its block."""
    blocks = [
        block
        for node in (function.node, *own_nodes(function.node))
        for name in ("body", "orelse", "finalbody")
        if isinstance(block := getattr(node, name, None), list)
    ]
    for block in blocks:
        for n, statement in enumerate(block):
            simple = not hasattr(statement, "body")
            if simple and statement.lineno <= line <= (statement.end_lineno or line):
                return [ast.unparse(one) for one in block[n:]]
    return ()
