"""Where the result of an asynchronous call is read before the wait for it is come to.

Known are the lines by which a thread came to the call and to the wait. In the function
that both ways go through, what lies between is early; of functions that the way to the
call goes on to, and that have returned when the wait is come to, all is that follows.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from distdoctor.analysis.source.blocks import Block, around
from distdoctor.analysis.source.issued_work import (
    aliases,
    is_bound_inside,
    issues,
    output,
    viewed,
)
from distdoctor.analysis.source.program import Function, Program, called, own_nodes
from distdoctor.analysis.source.tensor_flow import (
    Found,
    LostTrack,
    Returned,
    Settings,
    Walk,
    is_elsewhere,
)
from distdoctor.analysis.source.tensor_usage import Held, parts_of, path_of
from distdoctor.model.events import Place


def read_early(
    settings: Settings, op: str, issued: Sequence[Place], waited: Sequence[Place]
) -> Place | None:
    """The line that reads the result of a call surely before the wait; None: none is.

    Args:
        settings: What is known, beside the ways.
        op: Name of the operation.
        issued: The lines by which a thread came to the call, outermost first.
        waited: And by which it came to the wait for it.

    Returns:
        The line, or None.
    """
    common = 0
    for one, other in zip(issued, waited, strict=False):
        if one != other:
            break
        common += 1
    shared = common < min(len(issued), len(waited)) and _scope(
        issued[common]
    ) == _scope(waited[common])
    if not common and not shared:
        return None
    held: dict[str, Held] = {}
    result: Held = None
    waits_at = waited[common].line if shared else 0
    for n in range(len(issued) - 1, -1, -1):
        if n < common and not shared:
            return None  # the line that both go through may do anything in between
        at = waits_at if n == common else 0
        if n < common:  # the function has returned, and was called again
            at = issued[n].line
        frame = _Frame(settings, issued[n], at)
        begins = n == len(issued) - 1
        call = frame.issues(op) if begins else frame.calls(issued[n + 1])
        if frame.function is None or call is None:
            return None
        try:
            frame.follow(call, result, held, begins=begins)
        except Found as found:
            return found.place
        except LostTrack:
            return None
        except Returned as returned:
            result = returned.held
        if n:
            caller = _Frame(settings, issued[n - 1], 0)
            outer = caller.calls(issued[n])
            if outer is None:
                return None
            held = frame.handed_back(outer)
            if not held and result is None:
                return None
    return None


def _scope(place: Place) -> tuple[str, str]:
    return place.file, place.function


class _Frame:
    """One function on the way to the call."""

    def __init__(self, settings: Settings, place: Place, waits_at: int) -> None:
        program = settings.program
        function = program.at(place.file, place.line)
        if function is not None and function.name != place.function:
            function = None  # a lambda, or a text that has changed
        self.function: Function | None = function
        self._settings = settings
        self._line = place.line
        self._waits_at = waits_at
        self._walk: Walk | None = None

    def issues(self, op: str) -> ast.Call | None:
        """The one asynchronous call of an operation on the line."""
        found = [call for call in self._on_line() if issues(call, op)]
        return found[0] if len(found) == 1 else None

    def calls(self, inner: Place) -> ast.Call | None:
        """The one call on the line that comes to a function."""
        name = inner.function.rpartition(".")[2]
        if name == "__init__":
            name = inner.function.split(".")[-2]
        found = [call for call in self._on_line() if called(call) == name]
        if not found and name in {"forward", "__call__"}:
            variables = {use.node for use in self._settings.program.variables_called()}
            found = [call for call in self._on_line() if call in variables]
        return found[0] if len(found) == 1 else None

    def _on_line(self) -> list[ast.Call]:
        if self.function is None or is_elsewhere(self.function):
            return []
        return [
            node
            for node in own_nodes(self.function.node)
            if isinstance(node, ast.Call)
            and node.lineno <= self._line <= (node.end_lineno or node.lineno)
        ]

    def follow(
        self, call: ast.Call, result: Held, held: dict[str, Held], *, begins: bool
    ) -> None:
        """Go from a call to the end of the function.

        Args:
            call: That issues the work, or leads to where it is issued.
            result: What it gives.
            held: Names that are on their way behind it.
            begins: Whether it is the call that issues.

        Raises:
            Found: It is read early.
            Lost: It can be followed no further.
            Returned: Always else.
        """
        assert self.function is not None
        walk = self._walk = Walk(self.function, self._settings, self._waits_at)
        walk.reaching = (call,)
        blocks = around(self.function.node.body, call)
        if not blocks:
            raise LostTrack
        statement = blocks[-1][2][blocks[-1][3]]
        first, last = statement.lineno, statement.end_lineno or statement.lineno
        on_line = first <= self._waits_at <= last and self._line != self._waits_at
        if on_line and _is_simple(statement):
            raise LostTrack
        usage = walk.usage
        if begins:
            held = output(call)
            if not held or is_bound_inside(statement, held):
                raise LostTrack
            for path in [*held]:
                held |= dict.fromkeys(aliases(blocks[-1], path), held[path])
            if not _is_simple(statement):
                raise LostTrack
            usage.held.update(held)
            try:
                with usage.unsure():  # in which order, nobody looks
                    walk.statement(statement)
            except Returned as returned:
                raise Returned(returned.held) from None
        else:
            usage.results[call] = result
            try:
                walk.statement(statement)
            finally:
                usage.held.update(
                    {path: one for path, one in held.items() if path not in usage.held}
                )
        for n in range(len(blocks) - 1, -1, -1):
            owner, part, block, at = blocks[n]
            walk.block(block[at + 1 :])
            self._leave(walk, owner, part, conditional=_is_under_if(blocks, n))
        raise Returned(None)

    def _leave(
        self, walk: Walk, owner: ast.stmt | None, part: str, *, conditional: bool
    ) -> None:
        """Go on behind a block."""
        match owner:
            case None | ast.If():
                pass
            case ast.With(items=items):
                heads = [item.context_expr for item in items]
                if any(
                    one.lineno <= self._waits_at <= (one.end_lineno or one.lineno)
                    for one in heads
                ):
                    raise LostTrack  # by its exit
            case ast.Try() if part == "body":
                walk.block([*owner.orelse, *owner.finalbody])
            case ast.Try() if part in {"orelse", "finalbody"}:
                walk.block(owner.finalbody if part == "orelse" else [])
            case ast.For() | ast.While() if part == "body":
                first, last = owner.lineno, owner.end_lineno or owner.lineno
                leaves = ast.Return | ast.Break | ast.Continue
                if (
                    conditional
                    or first <= self._waits_at <= last
                    or self._settings.awaiting.may(owner, walk.reaching)
                    or any(isinstance(one, leaves) for one in parts_of(owner))
                ):
                    raise LostTrack
                walk.block(owner.orelse)
            case _:
                raise LostTrack

    def handed_back(self, outer: ast.Call) -> dict[str, Held]:
        """What the caller has of the names of this function, by the caller's names."""
        assert self.function is not None
        assert self._walk is not None
        function, program = self.function, self._settings.program
        if any(isinstance(one, ast.Starred) for one in outer.args):
            return {}
        given: dict[str, str] = {}
        names = function.parameters
        if function.is_method and names:
            owner = outer.func.value if isinstance(outer.func, ast.Attribute) else None
            if function.simple_name in {"forward", "__call__"}:
                owner = outer.func
            if owner is not None:
                given[names[0]] = path_of(owner)
            names = names[1:]
        for name, value in zip(names, outer.args, strict=False):
            given[name] = path_of(viewed(value))
        given |= {
            one.arg: path_of(viewed(one.value)) for one in outer.keywords if one.arg
        }
        found: dict[str, Held] = {}
        for path, held in self._walk.usage.held.items():
            root, dot, rest = path.partition(".")
            known = given.get(root, "")
            if not known or _is_given_anew(program, function, root):
                continue
            if rest and program.named(rest.rpartition(".")[2]):
                continue  # a property
            found[known + dot + rest] = held
        return found


def _is_given_anew(program: Program, function: Function, name: str) -> bool:
    """Whether a parameter may be something else than what was given."""
    return (
        bool(program.assigned.get((function, name)))
        or bool(program.unpacked.get((function, name)))
        or program.is_looped(function, name)
    )


def _is_simple(statement: ast.stmt) -> bool:
    return not hasattr(statement, "body") and not hasattr(statement, "cases")


def _is_under_if(blocks: Sequence[Block], n: int) -> bool:
    """Whether there is a branch, or the like, inside of a block around a call."""
    return any(not isinstance(owner, ast.With) for owner, *_ in blocks[n + 1 :])
