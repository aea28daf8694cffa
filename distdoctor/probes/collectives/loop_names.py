"""Records the loop variable of a collective that is issued in a loop over names.

    for name in losses:
        dist.all_reduce(losses[name])

Calls of one line meet in the order in which the ranks make them; whether these are the
same names on all ranks, nothing else tells. Where such a loop stands is read from the
source, once for each line.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FrameType

from distdoctor.model.observations.divergence import Turn
from distdoctor.model.source_text import syntax_tree
from distdoctor.probes.call_sites import frame_above, is_users, text_of
from distdoctor.probes.frame_variables import Names
from distdoctor.probes.harmless import harmless
from distdoctor.probes.recorder import RECORDER

_MOST_CALLS = 128  # of a line, that are told

_MOST_LINES = 32

_LONGEST = 80  # characters of a name


@dataclass(frozen=True, slots=True)
class _Loop:
    line: int
    variables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Scope:
    """A loop or function body, which decides what makes a line run again."""

    begins: tuple[int, int]  # line and column
    first: int  # line of its body
    last: int
    loop: _Loop | None  # None: a function, or a loop without variables


class Turns:
    """Finds loops over names around collectives, and records the name at each call."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all state: the process starts to play in another run."""
        self._left: dict[str, int] = {}  # by site, calls that may be told
        self._lines = 0
        self._loops: dict[tuple[CodeType, int], _Loop | None] = {}
        self._scopes: dict[str, tuple[_Scope, ...]] = {}

    def are_open(self, site: str) -> bool:
        """Whether more calls of a line may be recorded; on the hot path."""
        return self._left.get(site, 1) > 0

    @harmless
    def look(self, site: str, ordinal: int) -> None:
        """Called when a collective of the user's line was recorded, before it runs.

        Args:
            site: The line, as in the journal.
            ordinal: Ordinal of the call on its group.
        """
        frame = _users_frame()
        turn = None if frame is None else self._turn(frame, ordinal)
        if frame is None or turn is None:
            self._left.setdefault(site, 0)
            return
        if site not in self._left:
            self._lines += 1
            self._left[site] = _MOST_CALLS if self._lines <= _MOST_LINES else 0
        if self._left[site]:
            self._left[site] -= 1
            observation, line = turn
            code = frame.f_code
            where = text_of(code.co_filename, line, code.co_qualname)
            RECORDER.observe(observation, where)

    def _turn(self, frame: FrameType, ordinal: int) -> tuple[Turn, int] | None:
        """The names at this call, and the loop's line; None: there is no such loop."""
        key = frame.f_code, frame.f_lineno
        if key not in self._loops:
            self._loops[key] = self._loop_at(*key)
        loop = self._loops[key]
        if loop is None:
            return None
        with Names(frame) as value:
            found = [(variable, value(variable)) for variable in loop.variables]
        names = {
            variable: text
            for variable, text in found
            if type(text) is str and len(text) <= _LONGEST
        }
        if not names:
            return None
        observation = Turn(
            variables=tuple(names),
            names=tuple(names.values()),
            ordinal=ordinal,
        )
        return observation, loop.line

    def _loop_at(self, code: CodeType, line: int) -> _Loop | None:
        file = code.co_filename
        if file not in self._scopes:
            self._scopes[file] = _scopes(file)
        around = [one for one in self._scopes[file] if one.first <= line <= one.last]
        return around[-1].loop if around else None


def _users_frame() -> FrameType | None:
    frame = frame_above(2)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _scopes(file: str) -> tuple[_Scope, ...]:
    """The functions and loops of a file, those that begin last at the end."""
    tree = syntax_tree("".join(linecache.getlines(file)))
    if tree is None:
        return ()
    return tuple(
        sorted(
            (scope for node in ast.walk(tree) for scope in _scope(node)),
            key=lambda scope: scope.begins,
        )
    )


def _scope(node: ast.AST) -> Iterator[_Scope]:
    match node:
        case ast.For(target=target, body=body) | ast.AsyncFor(target=target, body=body):
            last = body[-1].end_lineno or 0
            loop = _Loop(node.lineno, tuple(_variables([target])))
            yield _Scope(_begin(node), body[0].lineno, last, loop)
        case (
            ast.ListComp(generators=parts)
            | ast.SetComp(generators=parts)
            | ast.GeneratorExp(generators=parts)
            | ast.DictComp(generators=parts)
        ):
            loop = _Loop(node.lineno, tuple(_variables([one.target for one in parts])))
            yield _Scope(_begin(node), node.lineno, node.end_lineno or 0, loop)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda() | ast.While():
            yield _Scope(_begin(node), node.lineno, node.end_lineno or 0, None)


def _begin(node: ast.stmt | ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _variables(targets: list[ast.expr]) -> Iterator[str]:
    for target in targets:
        for part in ast.walk(target):
            if isinstance(part, ast.Name):
                yield part.id


TURNS = Turns()
