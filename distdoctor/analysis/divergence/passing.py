"""Who has gone past whom: two calls on the way of all ranks, in the same round."""

from __future__ import annotations

import ast

from distdoctor.analysis.divergence.parting_branches import program_of, ways_to
from distdoctor.analysis.divergence.ways_out import is_in, loops_of
from distdoctor.analysis.source.conditions import ConditionKind, conditions, last_line
from distdoctor.analysis.source.program import Function, Program
from distdoctor.analysis.source.rank_variation import Nature, nature_of
from distdoctor.model.events import Call, Place
from distdoctor.model.run import Run

_HARMLESS = {"staticmethod", "classmethod", "property", "no_grad", "inference_mode"}
"""Decorators that let every call through."""


def came_past(run: Run, behind: Call, ahead: Call) -> bool:
    """Whether who makes the one call has gone past the other in the same round.

    So it is where all ranks come to the later line in the same rounds: if those who are
    at the earlier one were in the next round, they had made the later call before.

    Args:
        run: The run that is judged.
        behind: The one call.
        ahead: The call whose rank is asked about.

    Returns:
        Whether the source leaves no other way.
    """
    mine, theirs = ways_to(run, ahead), ways_to(run, behind)
    if len(mine) != 1 or len(theirs) != 1:
        return False
    program = program_of(run)
    for n, (here, there) in enumerate(zip(mine[0], theirs[0], strict=False)):
        function = program.at(here.file, here.line)
        if function is None or function is not program.at(there.file, there.line):
            return False
        if here.line == there.line:
            continue
        loop = next(
            (
                one
                for one in loops_of(function, here.line)
                if is_in(one, function, there)
            ),
            None,
        )
        if loop is None:
            return False
        ahead_of = [
            next(m for m, one in enumerate(loop.body) if line <= last_line(one))
            for line in (there.line, here.line)
        ]
        return (
            ahead_of[0] < ahead_of[1]
            and _is_common(run, here, loop.lineno)
            and all(_is_common(run, line, 0) for line in mine[0][n + 1 :])
        )
    return False


def _is_common(run: Run, line: Place, loop: int) -> bool:
    """Whether all ranks come to a line that come to its function, or to a round.

    They may not where another function of that name may be called in its stead, or
    where it is wrapped by one that nobody followed.
    """
    program = program_of(run)
    function = program.at(line.file, line.line)
    if function is None:
        return True
    if not loop and not _is_plain(program, function):
        return False
    return all(
        condition.kind in {ConditionKind.BRANCH, ConditionKind.LEAVING}
        and nature_of(program, condition) in {Nature.COMMON, Nature.AGREED}
        for condition in conditions(function, line.line)
        if condition.line > loop
    )


def _is_plain(program: Program, function: Function) -> bool:
    if len(program.named(function.simple_name)) > 1:
        return False
    decorators = getattr(function.node, "decorator_list", [])
    names = {ast.unparse(node).partition("(")[0] for node in decorators}
    return {name.rpartition(".")[2] for name in names} <= _HARMLESS
