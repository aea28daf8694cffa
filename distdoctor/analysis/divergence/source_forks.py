"""Calls at two lines, told by a fork of the source that does not depend on the rank.

Where just one of two calls lies behind a condition, ranks parted there: whoever is in
the branch, or has left by the `return`, `continue` or `break`, did what the plain way
through the program does not. Their data decided; so this is likely, no more.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from operator import attrgetter

from distdoctor.analysis.causes import (
    NO_MAJORITY,
    Cause,
    Divergence,
    pointers,
    sides,
    where_of,
)
from distdoctor.analysis.divergence.parting_branches import (
    choices,
    of_group,
    program_of,
)
from distdoctor.analysis.divergence.rank_guards import GUARD, WRAPPED, as_test
from distdoctor.analysis.source.conditions import Condition, ConditionKind
from distdoctor.analysis.source.program import Program
from distdoctor.analysis.source.rank_variation import Nature, nature, nature_of
from distdoctor.model.events import Call, Place
from distdoctor.model.findings import Certainty
from distdoctor.model.run import Run

_UNDECIDED = {Cause.OPERATION, Cause.NUMEL, Cause.DTYPE}

_NO_MAJORITY = (
    f"With {NO_MAJORITY}, the source decides: the other way to read it is that the "
    "others left out or added theirs."
)


@dataclass(frozen=True, slots=True)
class DataFork:
    """A condition that data decide, with one of two calls behind it.

    Attributes:
        behind: Who came to the call behind it.
        others: Who went on to the other call.
        op: The operation behind it.
        other_op: The other one.
        where: Their place in the group's sequence.
        condition: In the words of the source.
        place: Its line.
        left: The others left by it; else who is behind it went there alone.
        does: What those behind it do for whom torch makes the call; empty: nothing.
    """

    behind: tuple[int, ...]
    others: tuple[int, ...]
    op: str
    other_op: str
    where: str
    condition: str
    place: Place
    left: bool
    does: str = ""


def forked(run: Run, divergence: Divergence) -> Divergence:
    """The same divergence, as a call skipped or added, where a fork tells which.

    Args:
        run: The run that is judged.
        divergence: The divergence as it is known so far.

    Returns:
        The same object if no fork tells.
    """
    if GUARD in divergence.details:
        return divergence
    if divergence.why is Cause.SKIPPED and divergence.culprits:
        return _with_its_fork(run, divergence)
    if divergence.why not in _UNDECIDED:
        return divergence
    found = sides(divergence, attrgetter("place"))
    if len(found) != 2 or None in found or not run.sources:
        return divergence
    first, second = found.values()
    mine, theirs = choices(run, divergence.calls[first[0]], divergence.calls[second[0]])
    if bool(mine) == bool(theirs):
        return divergence  # both, or neither, went a way of their own
    behind, others = (first, second) if mine else (second, first)
    condition = (mine or theirs)[-1]
    if _counts_rounds(program_of(run), condition):
        return divergence  # both come to it in the same round: they part before
    call, other = divergence.calls[behind[0]], divergence.calls[others[0]]
    left = condition.kind is ConditionKind.LEAVING
    few = sorted(behind) == sorted(divergence.culprits)
    wrapped = WRAPPED.get(call.layer) if not divergence.culprits else None
    if left and (few or (wrapped and _is_new(run, call, other))):
        left = False  # most have left: who has not, went on by itself
    culprits = tuple(others if left else behind)
    if divergence.culprits and sorted(culprits) != sorted(divergence.culprits):
        return divergence  # the fork would blame the majority
    if wrapped and not left:
        divergence = replace(divergence, why=Cause.FORWARD)
    lines = pointers([condition.place], culprits, str(condition))
    if left and condition.leaves_at != condition.line:
        at = replace(condition.place, line=condition.leaves_at)
        lines += pointers([at], culprits, f"leaves by {condition.leaves}")
    return replace(
        divergence,
        why=Cause.FORWARD if divergence.why is Cause.FORWARD else Cause.SKIPPED,
        culprits=culprits,
        victims=of_group(sorted(divergence.calls), culprits),
        certainty=Certainty.LIKELY,
        elsewhere=(*lines, *divergence.elsewhere),
        remarks="" if divergence.culprits else f" {_NO_MAJORITY}",
        facts=DataFork(
            tuple(behind),
            tuple(others),
            call.op,
            other.op,
            where_of(divergence),
            str(condition),
            condition.place,
            left=left,
            does=wrapped[len(behind) > 1] if wrapped and not left else "",
        ),
        details={**divergence.details, GUARD: str(condition)},
        test=as_test(condition),
    )


def _is_new(run: Run, call: Call, other: Call) -> bool:
    """Whether a rank came by a way the other never took, and has gone that of both."""
    return _took(run, call.rank, other) and not _took(run, other.rank, call)


def _took(run: Run, rank: int, call: Call) -> bool:
    rows = run.rows_of(rank)
    mine = run.calls[rows.start : rows.stop]
    site, callers = run.sites.index(call.place), run.callers.index(call.callers)
    return bool(((mine["site"] == site) & (mine["callers"] == callers)).any())


def _counts_rounds(program: Program, condition: Condition) -> bool:
    """Whether a condition is one of the round, which all ranks come to alike."""
    function = condition.function
    return nature_of(program, condition) <= Nature.OPEN and any(
        isinstance(part, ast.Name)
        and program.is_looped(function, part.id)
        and nature(program, part, function) is Nature.COMMON
        for test, _ in condition.tests
        for part in ast.walk(test)
    )


def _with_its_fork(run: Run, divergence: Divergence) -> Divergence:
    """A call skipped or added, with the condition that only its rank's way has."""
    ranks = [rank for rank in divergence.culprits if rank in divergence.calls]
    others = [rank for rank in divergence.calls if rank not in divergence.culprits]
    if not ranks or not others or not run.sources:
        return divergence
    mine, theirs = choices(run, divergence.calls[ranks[0]], divergence.calls[others[0]])
    if bool(mine) == bool(theirs):
        return divergence
    condition = (mine or theirs)[-1]
    if nature_of(program_of(run), condition) is Nature.COMMON:
        return divergence  # a setting, a count of rounds: it lets all through, or none
    known = {location.place for location in divergence.elsewhere}
    lines = pointers([condition.place], divergence.culprits, str(condition))
    return replace(
        divergence,
        elsewhere=(
            *(line for line in lines if line.place not in known),
            *divergence.elsewhere,
        ),
        remarks=f"{divergence.remarks} The ways part at `{condition}` "
        f"({condition.place}).",
        test=as_test(condition),
    )
