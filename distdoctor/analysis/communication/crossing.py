"""Two calls that ranks make in opposite order, as the source has them one by one.

At the first of them that meets another one, the ranks are stopped, and nobody has come
to the second. Where each side's block goes on to what the other side is at, both were
meant to make both.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from distdoctor.analysis.communication.branches import parting, program_of
from distdoctor.analysis.reasons import Divergence, Why, capital, s, sides, where_of
from distdoctor.analysis.source.program import Function, own_nodes
from distdoctor.model.events import Call, Place
from distdoctor.model.findings import Certainty
from distdoctor.model.run import Run, named

_UNLIKE = {Why.OPERATION, Why.NUMEL, Why.DTYPE, Why.REDUCE_OP, Why.ROOT, Why.SPLITS}


def crossed(run: Run, told: Divergence) -> Divergence:
    """Calls that do not match, told as calls in another order where they are that."""
    found = sides(told, attrgetter("place")) if told.why in _UNLIKE else {}
    if len(found) != 2 or None in found or not run.sources:
        return told
    (here, there), (first, second) = found, found.values()
    assert isinstance(here, Place)
    assert isinstance(there, Place)
    program = program_of(run)
    functions = [program.at(place.file, place.line) for place in (here, there)]
    if functions[0] is None or functions[0] is not functions[1]:
        return told
    mine, theirs = (_from(functions[0], place.line) for place in (here, there))
    if not mine or not theirs or mine[0] not in theirs[1:] or theirs[0] not in mine[1:]:
        return told
    few = told.culprits or tuple(first)
    others = second if sorted(few) == sorted(first) else first
    return replace(
        told,
        why=Why.ORDER,
        certainty=Certainty.LIKELY,
        story=f"{capital(named(few))} make{s(few)} two calls in another order than "
        f"{named(others)}: at {where_of(told)} it is {told.calls[first[0]]} ({here}) "
        f"on {named(first)} and {told.calls[second[0]]} ({there}) on {named(second)}, "
        "and the source has each of them follow there on the other's.",
    )


def crossed_in_text(
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
