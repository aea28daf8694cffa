"""Two calls that ranks make in opposite order, as the source has them one by one.

At the first of them that meets another one, the ranks are stopped, and nobody has come
to the second. Where each side's block goes on to what the other side is at, both were
meant to make both.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

from distdoctor.analysis.communication.branches import program_of
from distdoctor.analysis.reasons import Divergence, Why, capital, s, sides, where_of
from distdoctor.analysis.source.program import Function, own_nodes
from distdoctor.model.events import Place
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
