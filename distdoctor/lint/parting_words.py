"""Tells of a call that some ranks make and others do not, in words."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set

from distdoctor.lint.parted_ranks import How, Parting
from distdoctor.lint.rank_values import SIZE
from distdoctor.lint.reading import Reading
from distdoctor.lint.source_findings import SourceFinding, ToldLine, line_of, short
from distdoctor.lint.walked_steps import CodeSpot


def tell_partings(
    reading: Reading, code: str, hows: Set[How]
) -> Iterator[SourceFinding]:
    """The findings of the partings of some kinds.

    Args:
        reading: The code base.
        code: Of the disease.
        hows: The kinds.
    """
    for parting in reading.partings:
        if parting.how in hows:
            yield told(parting, code)


def told(parting: Parting, code: str, ending: str = "") -> SourceFinding:
    """One finding.

    Args:
        parting: What parts the ranks.
        code: Of the disease.
        ending: What else is to be said.
    """
    step = parting.step
    spot = _beginning(parting)
    at = line_of(spot.scope, spot.node)
    what = step.communication.name
    if spot is not step.spot:
        here = spot.scope.source is step.spot.scope.source
        file = "" if here else f"{step.spot.scope.source.file}:"
        what = f"{what} ({'line ' if here else file}{step.spot.line})"
    who = _who(parting)
    by = _by(parting)
    other = parting.other
    if other is not None and parting.how is How.SWAPPED:
        rest = f"the others {other.communication.name} before it"
    elif other is not None:
        rest = f"the others call {other.communication.name} there"
    else:
        rest = "the others never come to it"
    if parting.leaving is not None and parting.leaving.spot.scope is step.spot.scope:
        rest = f"the others leave in line {parting.leaving.spot.line}"
    verb = _verb(what) if spot is step.spot else f"comes to {what}"
    return SourceFinding(
        code=code,
        message=f"{who} {verb}{by}; {rest}{ending}",
        at=at,
        related=tuple(_related(parting, spot)),
    )


def _beginning(parting: Parting) -> CodeSpot:
    """The call to look at: in the function where the ranks part, if one led there."""
    step, turn = parting.step, parting.turn
    if turn is not None and turn.spot.scope is not step.spot.scope:
        for caller in reversed(step.callers):
            if caller.scope is turn.spot.scope:
                return caller
    return step.spot


def _verb(what: str) -> str:
    called = what.startswith(("forward of", "state_dict of", "backward"))
    return f"{'runs' if called else 'calls'} {what}"


def _who(parting: Parting) -> str:
    if parting.is_local:
        return "a rank"
    if parting.ranks == (0,):
        return "rank 0 alone"
    if parting.ranks == tuple(range(1, SIZE)):
        return "every rank but 0"
    if parting.ranks == (SIZE - 1,):
        return "the last rank alone"
    return "not every rank"


def _by(parting: Parting) -> str:
    turn = parting.turn
    if turn is None:
        return ", by a value of its own" if parting.is_local else ""
    node = turn.spot.node
    same = turn.spot.scope.source is _beginning(parting).scope.source
    where = f"line {turn.spot.line}" if same else _file_line(parting)
    asked: ast.AST | None = None
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        asked = node.test
    elif isinstance(node, ast.expr):  # a decorator, or what stands before an `and`
        asked = node
    if asked is not None:
        test = f"`{short(asked, 48)}` ({where})"
        if parting.is_local:
            return f" or not by {test}, of which each rank has its own answer"
        return f" by {test}"
    return f" by {where}"


def _file_line(parting: Parting) -> str:
    assert parting.turn is not None
    spot = parting.turn.spot
    return f"{spot.scope.source.file}:{spot.line}"


def _related(parting: Parting, beginning: CodeSpot) -> Iterator[ToldLine]:
    if parting.turn is not None:
        spot = parting.turn.spot
        yield line_of(spot.scope, spot.node, "here their ways part")
    if parting.leaving is not None:
        spot = parting.leaving.spot
        yield line_of(spot.scope, spot.node, "here the others leave")
    if parting.other is not None:
        other = parting.other
        text = f"here the others call {other.communication.name}"
        yield line_of(other.spot.scope, other.spot.node, text)
    step = parting.step
    if beginning is step.spot:
        for caller in step.callers[-2:]:
            if not isinstance(caller.scope.node, ast.Module):
                yield line_of(caller.scope, caller.node, "come to by this call")
    else:
        what = step.communication.name
        yield line_of(step.spot.scope, step.spot.node, f"all have to come to {what}")
