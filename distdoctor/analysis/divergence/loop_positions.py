"""Which loops of the user's source a rank is in, from its stack and the text."""

from __future__ import annotations

import ast
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from distdoctor.model.events import Place
from distdoctor.model.run import Frame, Run
from distdoctor.model.source_text import shallow_tree


@dataclass(frozen=True, slots=True)
class Loop:
    """A `for` or `while` of the user's source."""

    place: Place  # its first line
    last_line: int
    targets: tuple[str, ...]  # names a `for` assigns
    jumps: tuple[tuple[type[ast.stmt], int], ...] = ()  # break, continue, return
    lasts: tuple[int, ...] = ()  # the last line of each statement of its body


def loops_around(run: Run, stack: Sequence[Frame]) -> Iterator[tuple[Frame, Loop]]:
    """The loops a rank is in, innermost first, each with the frame that runs it.

    Args:
        run: The run that is judged.
        stack: The rank's stack, innermost frame first.

    Yields:
        Pairs of a frame and a loop; files whose source is not at hand have none.
    """
    for frame in stack:
        text = run.sources.get(frame.place.file)
        if text is None:
            continue
        around = [
            loop
            for loop in _loops(text, frame.place.file, frame.place.function)
            if loop.place.line <= frame.place.line <= loop.last_line
        ]
        for loop in sorted(around, key=lambda loop: -loop.place.line):
            yield frame, loop


def left(run: Run, inside: int, outside: int) -> tuple[Loop, bool] | None:
    """The outermost loop that one rank is in and another has left.

    Args:
        run: Holds stacks and sources.
        inside: The rank that is in the loop.
        outside: The rank that may have left it.

    Returns:
        The loop, and whether the other rank is known to have gone through all rounds
        that the first one began (by the loop's own integer variable); None if there is
        no such loop, or a stack or source is missing.
    """
    if inside not in run.stacks or outside not in run.stacks:
        return None
    found: tuple[Loop, bool] | None = None
    for frame, loop in loops_around(run, run.stacks[inside]):
        others = [
            other
            for other in run.stacks[outside]
            if (other.place.file, other.place.function)
            == (frame.place.file, frame.place.function)
        ]
        if any(
            loop.place.line <= other.place.line <= loop.last_line for other in others
        ):
            break  # both are in it, and in all loops around it
        found = loop, _same_round(loop, frame, others)
    return found


def _same_round(loop: Loop, frame: Frame, others: Sequence[Frame]) -> bool:
    for other in others:
        for name in loop.targets:
            mine, theirs = frame.integers.get(name), other.integers.get(name)
            if mine is not None and theirs is not None:
                return theirs >= mine
    return False


def is_further(run: Run, behind: int, ahead: int) -> bool:
    """Whether a rank is known to have come further in the loops that both are in.

    That is, in a later round by the loop's own integer variable, or in the same one and
    in a later statement of its body.

    Args:
        run: The run that is judged.
        behind: The one rank.
        ahead: The rank that is asked about.

    Returns:
        False if there is no stack of one of them.
    """
    if behind not in run.stacks or ahead not in run.stacks:
        return False
    common = []
    for frame, loop in loops_around(run, run.stacks[behind]):
        for other in run.stacks[ahead]:
            place = other.place
            if (place.file, place.function) == (
                frame.place.file,
                frame.place.function,
            ) and loop.place.line <= place.line <= loop.last_line:
                common.append((frame, loop, other))
                break
    for frame, loop, other in reversed(common):
        for name in loop.targets:
            mine, theirs = frame.integers.get(name), other.integers.get(name)
            if mine is not None and theirs is not None:
                break
        else:
            return False
        if mine != theirs:
            return theirs > mine
    if not common:
        return False
    frame, loop, other = common[0]
    return bisect_left(loop.lasts, other.place.line) > bisect_left(
        loop.lasts, frame.place.line
    )


def ways_out(run: Run, place: Place | None) -> list[Place]:
    """Lines at which the innermost loop around a line can be left: break and return.

    Args:
        run: The run that is judged.
        place: The line; None: it is not known.

    Returns:
        The lines, empty if there is no loop.
    """
    return _jumps(run, place, (ast.Break, ast.Return))


def ways_around(run: Run, place: Place | None) -> list[Place]:
    """Lines at which a round of that loop can be cut short: continue.

    Args:
        run: The run that is judged.
        place: The line; None: it is not known.

    Returns:
        The lines, empty if there is no loop.
    """
    return _jumps(run, place, (ast.Continue,))


_MOST_JUMPS = 2  # with more of them a list says nothing


def _jumps(
    run: Run, place: Place | None, kinds: tuple[type[ast.stmt], ...]
) -> list[Place]:
    if place is None or place.file not in run.sources:
        return []
    around = [
        loop
        for loop in _loops(run.sources[place.file], place.file, place.function)
        if loop.place.line <= place.line <= loop.last_line
    ]
    for loop in sorted(around, key=lambda loop: -loop.place.line):
        lines = [line for kind, line in loop.jumps if kind in kinds]
        if lines:
            found = [Place(place.file, line, place.function) for line in lines]
            return found if len(found) <= _MOST_JUMPS else []
    return []


@lru_cache(maxsize=256)
def _loops(text: str, file: str, function: str) -> tuple[Loop, ...]:
    """Loops of one function; of the whole file outside functions for "<module>"."""
    tree = shallow_tree(text)
    if tree is None:
        return ()
    name = function.rpartition(".")[2]
    scopes: list[ast.AST] = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name == name
    ] or [tree]
    found: dict[int, Loop] = {}
    for scope in scopes:
        for node in ast.walk(scope):
            if isinstance(node, ast.For | ast.While | ast.AsyncFor):
                found[node.lineno] = Loop(
                    Place(file, node.lineno, function),
                    max(_last_line(child) for child in node.body),
                    _targets(node),
                    tuple(_jumps_of(node.body)),
                    tuple(_last_line(child) for child in node.body),
                )
    return tuple(found.values())


def _jumps_of(body: Sequence[ast.stmt]) -> Iterator[tuple[type[ast.stmt], int]]:
    """Jumps of this loop; those of loops and functions inside are their own."""
    for statement in body:
        if isinstance(statement, ast.Break | ast.Continue | ast.Return):
            yield type(statement), statement.lineno
        elif isinstance(statement, ast.For | ast.While | ast.AsyncFor):
            inner = _jumps_of(statement.body)
            yield from (jump for jump in inner if jump[0] is ast.Return)
            yield from _jumps_of(statement.orelse)
        elif not isinstance(
            statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        ):
            for name in ("body", "orelse", "finalbody"):
                yield from _jumps_of(getattr(statement, name, ()))
            for name in ("handlers", "cases"):
                for branch in getattr(statement, name, ()):
                    yield from _jumps_of(branch.body)


def _last_line(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _targets(node: ast.For | ast.While | ast.AsyncFor) -> tuple[str, ...]:
    if isinstance(node, ast.While):
        return ()
    return tuple(
        part.id for part in ast.walk(node.target) if isinstance(part, ast.Name)
    )
