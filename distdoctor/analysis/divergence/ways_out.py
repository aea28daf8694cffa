"""The ways that lead out of a loop of the user's, or around a call in it.

A loop is left by its head, or by a `break` or `return` in it; around a call lead the
tests in front of it, and what cuts a round short.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.source.conditions import (
    Condition,
    ConditionKind,
    conditions,
    last_line,
)
from distdoctor.analysis.source.program import Function, Program, own_nodes
from distdoctor.analysis.source.rank_variation import (
    Nature,
    called_of,
    nature,
    nature_of,
)
from distdoctor.analysis.source.singled_ranks import by_expression
from distdoctor.model.events import Place
from distdoctor.model.run import Run

_LONGEST = 60

_DECIDE = {ConditionKind.BRANCH, ConditionKind.HANDLER}

_WORDS: dict[type[ast.stmt], str] = {ast.Break: "break", ast.Return: "return"}

Loop = ast.For | ast.While | ast.AsyncFor
"""What has rounds."""


@dataclass(frozen=True, slots=True)
class WayOut:
    """A way out of a loop, or around a call in it.

    Attributes:
        place: The line of the test, or of the loop's head.
        text: As it stands there.
        nature: What decides it.
        tests: What is asked there, and in which function.
        leaves_at: The line of the `break` or `return`; 0: there is none.
        stays: The round is cut short, and the loop goes on.
    """

    place: Place
    text: str
    nature: Nature
    tests: tuple[tuple[ast.expr, Function], ...] = ()
    leaves_at: int = 0
    stays: bool = False


def loops_of(function: Function, line: int) -> list[Loop]:
    """The loops of a function whose body a line is in, innermost first.

    Args:
        function: A function of the program.
        line: The line, from 1.

    Returns:
        The loops; a line of a loop's head is not in it.
    """
    found = [
        node
        for node in own_nodes(function.node)
        if isinstance(node, Loop)
        and node.body[0].lineno <= line <= last_line(node.body[-1])
    ]
    return sorted(found, key=lambda node: -node.lineno)


def singled_by_head(run: Run, loop: Loop, function: Function) -> set[int]:
    """Ranks of the run for which a part of the head is not what it is for most.

    Args:
        run: The run that is judged.
        loop: A loop of the function.
        function: The function.

    Returns:
        Global ranks that were seen.
    """
    asked = loop.test if isinstance(loop, ast.While) else loop.iter
    return by_expression(program_of(run), asked, function) & {*run.seen}


def functions_of(program: Program, head: Place) -> list[str]:
    """Names of the functions that a loop goes through, in their order.

    Args:
        program: The user's.
        head: The line of the loop.

    Returns:
        Empty where it goes through anything else, or through what is made elsewhere.
    """
    function = program.at(head.file, head.line)
    if function is None:
        return []
    for node in own_nodes(function.node):
        if isinstance(node, ast.For) and node.lineno == head.line:
            return _names_in(program, node.iter, function)
    return []


def _names_in(program: Program, listed: ast.expr, function: Function) -> list[str]:
    if called_of(listed) == "enumerate" and isinstance(listed, ast.Call):
        return _names_in(program, listed.args[0], function) if listed.args else []
    if isinstance(listed, ast.Name):
        scope: Function | None = function
        while scope is not None:
            if uses := program.assigned.get((scope, listed.id)):
                only = uses[0].node if len(uses) == 1 else None
                return [] if only is None else _names_of(program, only)
            scope = scope.outer
    return _names_of(program, listed)


def _names_of(program: Program, listed: ast.expr) -> list[str]:
    if not isinstance(listed, ast.Tuple | ast.List):
        return []
    names = [ast.unparse(one).rpartition(".")[2] for one in listed.elts]
    return names if all(program.named(name) for name in names) else []


def is_in(loop: Loop, function: Function, line: Place) -> bool:
    """Whether a line is in the body of a loop of this function.

    Args:
        loop: A loop of the function.
        function: The function.
        line: A line of any file.

    Returns:
        Whether it is.
    """
    inside = loop.body[0].lineno <= line.line <= last_line(loop.body[-1])
    return line.file == function.file and inside


def skips(run: Run, function: Function, place: Place) -> list[WayOut]:
    """What may lead around a line, in the same round of its innermost loop.

    Args:
        run: The run that is judged.
        function: A function of the program.
        place: A line of the function.

    Returns:
        The ways; empty if each round comes to the line.
    """
    loops = loops_of(function, place.line)
    first = loops[0].lineno if loops else 0
    return [
        _by(run, condition, stays=True)
        for condition in conditions(function, place.line)
        if condition.kind in {ConditionKind.BRANCH, ConditionKind.LEAVING}
        and condition.line > first
        and condition.leaves not in {"break", "raise"}
        and not (condition.leaves == "return" and loops)
    ]


def out_of(run: Run, loop: Loop, function: Function) -> Iterator[WayOut]:
    """How a loop can be left: by its jumps, and by its head.

    Args:
        run: The run that is judged.
        loop: A loop of the function.
        function: The function.

    Yields:
        The ways by `break` and `return`, and the head's at the end.
    """
    program = program_of(run)
    for jump in _jumps(loop.body):
        around = [
            condition
            for condition in conditions(function, jump.lineno)
            if condition.line > loop.lineno and condition.kind in _DECIDE
        ]
        if around:
            deciding = max(around, key=lambda one: (nature_of(program, one), one.line))
            yield replace(
                _by(run, deciding),
                text=f"{deciding}: {_WORDS[type(jump)]}",
                leaves_at=jump.lineno,
            )
    place = Place(function.file, loop.lineno, function.name)
    asked = loop.test if isinstance(loop, ast.While) else loop.iter
    text = ast.unparse(asked)[:_LONGEST]
    if isinstance(loop, ast.While):
        text = f"while {text}"
    else:
        text = f"for {ast.unparse(loop.target)[:_LONGEST]} in {text}"
    found = nature(program, asked, function)
    if found is Nature.OPEN and not _gives_its_own(loop):
        found = Nature.COMMON
    yield WayOut(place, text, found, ((asked, function),))


def _jumps(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that leave this loop; those of functions inside are their own."""
    for statement in body:
        if isinstance(statement, ast.Break | ast.Return):
            yield statement
        elif isinstance(statement, Loop):
            inner = (*_jumps(statement.body), *_jumps(statement.orelse))
            yield from (jump for jump in inner if isinstance(jump, ast.Return))
        elif not isinstance(
            statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        ):
            for name in ("body", "orelse", "finalbody"):
                yield from _jumps(getattr(statement, name, ()))
            for name in ("handlers", "cases"):
                for branch in getattr(statement, name, ()):
                    yield from _jumps(branch.body)


def _gives_its_own(loop: Loop) -> bool:
    """Whether a head of which nothing is known asks for more than numbers.

    A number of rounds is a setting, as a rule; what is iterated over is data.
    """
    if isinstance(loop, ast.While):
        return any(isinstance(part, ast.Call) for part in ast.walk(loop.test))
    return called_of(loop.iter) != "range"


def _by(run: Run, condition: Condition, *, stays: bool = False) -> WayOut:
    tests = tuple((test, condition.function) for test, _ in condition.tests)
    at = condition.leaves_at if condition.leaves else 0
    found = nature_of(program_of(run), condition)
    return WayOut(condition.place, str(condition), found, tests, at, stays)
