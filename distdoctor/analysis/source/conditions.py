"""Under which conditions a function comes to one of its lines.

These are the branches and loops around it, and the ways by which a statement before it
may leave: `return`, `continue`, `break`, `raise`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from distdoctor.analysis.source.program import Function, called
from distdoctor.model.events import Place


class ConditionKind(StrEnum):
    """What makes a condition."""

    BRANCH = "branch"
    LOOP = "loop"
    HANDLER = "handler"
    LEAVING = "leaving"  # a statement before may have left


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that decides whether a line is come to.

    Attributes:
        kind: What makes it.
        function: Where it stands.
        line: Of the test.
        tests: Expressions, and whether each must hold.
        negated: The line is come to if the tests do *not* all hold.
        opaque: The tests are not all that decides: a loop's rounds, an exception.
        leaves: "return", "continue", "break" or "raise", where it is such a way.
        leaves_at: Its line.
    """

    kind: ConditionKind
    function: Function
    line: int
    tests: tuple[tuple[ast.expr, bool], ...] = ()
    negated: bool = False
    opaque: bool = False
    leaves: str = ""
    leaves_at: int = 0

    @property
    def place(self) -> Place:
        """The line of the test."""
        return Place(self.function.file, self.line, self.function.name)

    def __str__(self) -> str:
        if self.kind is ConditionKind.HANDLER:
            return "except"
        if not self.tests:
            return (
                "loop" if self.kind is ConditionKind.LOOP else self.leaves or "branch"
            )
        words = " and ".join(
            ast.unparse(test) if holds else f"not ({ast.unparse(test)})"
            for test, holds in self.tests
        )
        word = "while" if self.kind is ConditionKind.LOOP else "if"
        leaving = f": {self.leaves}" if self.leaves else ""
        return f"{word} {words[:_LONGEST]}{leaving}"


_LONGEST = 60

_LEAVE = {
    ast.Return: "return",
    ast.Raise: "raise",
    ast.Continue: "continue",
    ast.Break: "break",
}


@lru_cache(maxsize=2048)
def conditions(function: Function, line: int) -> tuple[Condition, ...]:
    """The conditions of a line in its function, outermost first.

    Args:
        function: A function of the program.
        line: The line, from 1.

    Returns:
        The conditions; empty if the function always comes to the line.
    """
    return tuple(_inside(function, function.node.body, line))


@lru_cache(maxsize=2048)
def of_rounds_before(function: Function, line: int) -> tuple[Condition, ...]:
    """The ways by which a round may have ended the loops around a line, behind it.

    Each is a `break` or `return`, which decides whether the line is come to once more.

    Args:
        function: A function of the program.
        line: The line, from 1.

    Returns:
        The ways; empty if no loop is around the line.
    """
    found = _ending(function, function.node.body, line, in_loop=False)
    return tuple(one for one in found if one.leaves in _END_A_LOOP)


_END_A_LOOP = {_LEAVE[ast.Break], _LEAVE[ast.Return]}


def _ending(
    function: Function, block: Sequence[ast.stmt], line: int, *, in_loop: bool
) -> Iterator[Condition]:
    for statement in block:
        if statement.lineno > line and in_loop:
            yield from leaving(function, statement)
        elif statement.lineno <= line <= last_line(statement):
            part, inner = _part(statement, line)
            loop = isinstance(statement, ast.For | ast.While | ast.AsyncFor)
            within = in_loop or (loop and part == "body")
            yield from _ending(function, inner, line, in_loop=within)


def _inside(
    function: Function, block: Sequence[ast.stmt], line: int
) -> Iterator[Condition]:
    for statement in block:
        if line > last_line(statement):
            yield from leaving(function, statement)
            continue
        if statement.lineno <= line:
            yield from _of(function, statement, line)
        return


def _of(function: Function, statement: ast.stmt, line: int) -> Iterator[Condition]:
    """The conditions that a statement sets for a line within it."""
    part, block = _part(statement, line)
    if not block:
        yield from _in_expression(function, statement, line)
        return
    match statement:
        case ast.If(test=test):
            tests = ((test, part == "body"),)
            yield Condition(ConditionKind.BRANCH, function, statement.lineno, tests)
        case ast.While(test=test) if part == "body":
            tests = ((test, True),)
            yield Condition(
                ConditionKind.LOOP, function, statement.lineno, tests, opaque=True
            )
        case ast.For() | ast.AsyncFor() if part == "body":
            yield Condition(ConditionKind.LOOP, function, statement.lineno, opaque=True)
        case ast.Match(subject=subject):
            yield Condition(
                ConditionKind.BRANCH,
                function,
                subject.lineno,
                ((subject, True),),
                opaque=True,
            )
        case ast.Try() if part == "handlers":
            handler = next(h for h in statement.handlers if h.body is block)
            yield Condition(
                ConditionKind.HANDLER, function, handler.lineno, opaque=True
            )
    if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from _inside(function, block, line)


def _part(statement: ast.stmt, line: int) -> tuple[str, Sequence[ast.stmt]]:
    """The block of a compound statement that a line is in, and its name."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(statement, name, ())
        if block and block[0].lineno <= line <= last_line(block[-1]):
            return name, block
    for name in ("handlers", "cases"):
        for branch in getattr(statement, name, ()):
            if branch.body[0].lineno <= line <= last_line(branch.body[-1]):
                return name, branch.body
    return "", ()


def _in_expression(
    function: Function, statement: ast.stmt, line: int
) -> Iterator[Condition]:
    """Conditions within one line: `a() if test else b()`, `test and a()`."""
    for node in ast.walk(statement):
        match node:
            case ast.IfExp(test=test, body=body, orelse=orelse):
                first, second = _has_call(body, line), _has_call(orelse, line)
                if first != second:
                    yield Condition(
                        ConditionKind.BRANCH, function, test.lineno, ((test, first),)
                    )
            case ast.BoolOp(values=[first_value, *rest], op=op):
                if not _has_call(first_value, line) and any(
                    _has_call(value, line) for value in rest
                ):
                    tests = ((first_value, isinstance(op, ast.And)),)
                    yield Condition(
                        ConditionKind.BRANCH, function, first_value.lineno, tests
                    )


def _has_call(node: ast.AST, line: int) -> bool:
    """Whether something is called that may do more than ask who the rank is."""
    return any(
        isinstance(part, ast.Call)
        and part.lineno <= line <= (part.end_lineno or 0)
        and not _ASKS.match(called(part))
        for part in ast.walk(node)
    )


_ASKS = re.compile(r"is_|get_|(local_|global_)?rank$")


def leaving(function: Function, statement: ast.stmt) -> Iterator[Condition]:
    """The ways by which a statement may leave what is behind it.

    Args:
        function: A function of the program.
        statement: A statement of the function.

    Yields:
        One condition for each way out that stands under a test.
    """
    for path, exit_ in _exits(statement, in_loop=False):
        if not path:
            continue  # nothing behind it is ever come to
        tests = tuple(
            (part.test, name == "body")
            for part, name in path
            if isinstance(part, ast.If)
        )
        opaque = any(not isinstance(part, ast.If) for part, _ in path)
        yield Condition(
            ConditionKind.LEAVING,
            function,
            path[0][0].lineno if not tests else tests[-1][0].lineno,
            tests,
            negated=True,
            opaque=opaque,
            leaves=_LEAVE[type(exit_)],
            leaves_at=exit_.lineno,
        )


_Path = tuple[tuple[ast.stmt, str], ...]


def _exits(statement: ast.stmt, in_loop: bool) -> Iterator[tuple[_Path, ast.stmt]]:
    if isinstance(statement, ast.Return | ast.Raise):
        yield (), statement
    elif isinstance(statement, ast.Continue | ast.Break):
        if not in_loop:
            yield (), statement
    elif not isinstance(
        statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    ):
        loops = in_loop or isinstance(statement, ast.For | ast.While | ast.AsyncFor)
        for name, block in _blocks(statement):
            inside = loops if name == "body" else in_loop
            for child in block:
                for path, exit_ in _exits(child, inside):
                    yield ((statement, name), *path), exit_


def _blocks(statement: ast.stmt) -> Iterator[tuple[str, Sequence[ast.stmt]]]:
    if isinstance(statement, ast.With | ast.AsyncWith):
        yield "body", statement.body
        return
    for name in ("body", "orelse", "finalbody"):
        yield name, getattr(statement, name, ())
    for name in ("handlers", "cases"):
        for branch in getattr(statement, name, ()):
            yield name, branch.body


def last_line(node: ast.stmt) -> int:
    """The last line of a statement.

    Args:
        node: The statement.

    Returns:
        The number of the line, from 1.
    """
    return node.end_lineno or node.lineno
