"""Whether what a call in a loop over names is given belongs to the name of the round.

    for name in sums:
        pair = torch.tensor([sums[name], counts[name]])
        dist.all_reduce(pair)
        means[name] = pair[0] / pair[1]

It does where the call changes an entry of the name itself, or where it is given what
was made of such an entry and its result is kept under the name. A call of which neither
is seen, as one that sends the gradients of a task's batch, does not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence, Set

from distdoctor.analysis.source.program import Program, called, own_nodes
from distdoctor.model.events import Place

_IN_PLACE = frozenset({"all_reduce", "broadcast", "reduce"})

_LOOKING_UP = frozenset({"get", "pop", "setdefault", "get_parameter", "get_buffer"})

_NO_TENSORS = frozenset({"group", "op", "src", "dst", "async_op", "root"})

_GIVEN = 2  # arguments by position that may be tensors: a list and a tensor

_Loop = ast.For | ast.AsyncFor

_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def belongs_to(
    program: Program,
    place: Place,
    loop: int,
    names: Sequence[str],
    op: str,
    *,
    entries_only: bool = False,
) -> bool:
    """Whether what a call is given, and gives, belongs to the name of the round.

    Args:
        program: The user's files.
        place: The line of the call.
        loop: The line of the loop, in the same function.
        names: Its variables that are names.
        op: The operation that is called.
        entries_only: It must change an entry of the name itself.

    Returns:
        Whether it surely does.
    """
    function = program.at(place.file, place.line)
    if function is None:
        return False
    for node in own_nodes(function.node):
        if getattr(node, "lineno", 0) != loop:
            continue
        if isinstance(node, _Loop):
            body = _Body(node, names)
            found = body.is_kept(place.line, op, entries_only=entries_only)
        elif isinstance(node, ast.DictComp) and not entries_only:
            found = _is_entry(node, names, place.line, op)
        else:
            continue
        if found:
            return True
    return False


def _is_entry(node: ast.DictComp, names: Sequence[str], line: int, op: str) -> bool:
    """Whether `{name: call(value)}` keeps what the call gives under the name."""
    targets = {name for one in node.generators for name in _names(one.target)}
    return bool(_names(node.key) & set(names)) and any(
        _names(value) & targets
        for call in _calls(node.value, line, op)
        for value in _given(call)
    )


class _Body:
    """The body of a loop over names."""

    def __init__(self, loop: _Loop, names: Sequence[str]) -> None:
        self._statements = loop.body
        self._keys = set(names)
        # What comes from the loop together with a name is the name's.
        self._companions = _names(loop.target) - self._keys

    def is_kept(self, line: int, op: str, *, entries_only: bool) -> bool:
        """Whether the call on a line works on what is the name's."""
        for statement in self._statements:
            for call in _calls(statement, line, op):
                given = list(_given(call))
                if op in _IN_PLACE and any(
                    self._is_own(one, line) for one in given[:1]
                ):
                    return True
                if (
                    not entries_only
                    and self._is_made_of(given, line)
                    and self._is_taken(call, given, line)
                ):
                    return True
        return False

    def _is_own(self, value: ast.expr, line: int) -> bool:
        """Whether an expression is the entry of the name itself, or a part of it."""
        match value:
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return bool(parts) and all(self._is_own(one, line) for one in parts)
            case ast.Name(id=name):
                if name in self._companions:
                    return not any(self._assigned(name, line))
                made = list(self._assigned(name, line))
                return bool(made) and self._is_own(made[-1], made[-1].lineno)
            case ast.Subscript(value=inner, slice=key):
                return bool(_names(key) & self._keys) or self._is_own(inner, line)
            case ast.Attribute(value=inner):
                return self._is_own(inner, line)
            case ast.Call():
                return self._is_lookup(value)
        return False

    def _is_lookup(self, call: ast.Call) -> bool:
        """Whether a call gets the entry of the name: `getattr(x, name)`."""
        name = called(call)
        key = call.args[1:2] if name == "getattr" else call.args[:1]
        looks = name == "getattr" or (
            name in _LOOKING_UP and isinstance(call.func, ast.Attribute)
        )
        return looks and any(_names(one) & self._keys for one in key)

    def _is_made_of(self, given: Sequence[ast.expr], line: int) -> bool:
        """Whether what a call is given was made of an entry of the name."""
        return any(self._holds_own(one, line) for one in given)

    def _holds_own(self, value: ast.expr, line: int) -> bool:
        for part in ast.walk(value):
            if isinstance(part, ast.Subscript | ast.Call) and self._is_own(part, line):
                return True
            if isinstance(part, ast.Name):
                if part.id in self._companions:
                    return True
                if any(
                    made is not value and self._holds_own(made, made.lineno)
                    for made in self._assigned(part.id, line)
                ):
                    return True
        return False

    def _is_taken(self, call: ast.Call, given: Sequence[ast.expr], line: int) -> bool:
        """Whether what a call gives, or has changed, is kept under the name."""
        changed = {
            name
            for one in given
            for part in (one.elts if isinstance(one, ast.List | ast.Tuple) else [one])
            if isinstance(part, ast.Name)
            for name in [part.id]
        }
        for statement in self._statements:
            for node in ast.walk(statement):
                if getattr(node, "lineno", 0) < line:
                    continue
                value, targets = _assignment(node)
                if value is not None:
                    if not (_names(value) & changed or call in ast.walk(value)):
                        continue
                    if any(self._is_keyed(one) for one in targets):
                        return True
                    changed.update(
                        one.id for one in targets if isinstance(one, ast.Name)
                    )
                elif self._keeps(node, changed):
                    return True
        return False

    def _is_keyed(self, target: ast.expr) -> bool:
        return isinstance(target, ast.Subscript) and bool(
            _names(target.slice) & self._keys
        )

    def _keeps(self, node: ast.AST, changed: Set[str]) -> bool:
        """Whether an expression keeps something under the name."""
        match node:
            case ast.Call(args=[_, key, value]) if called(node) == "setattr":
                return bool(_names(key) & self._keys and _names(value) & changed)
            case ast.Dict(keys=keys, values=values):
                return any(
                    key is not None
                    and _names(key) & self._keys
                    and _names(value) & changed
                    for key, value in zip(keys, values, strict=True)
                )
            case ast.Call(func=ast.Attribute(value=owner)):
                return self._is_keyed(owner) and any(
                    _names(one) & changed for one in node.args
                )
        return False

    def _assigned(self, name: str, line: int) -> Iterator[ast.expr]:
        """Values that a variable was given in the body before a line."""
        for statement in self._statements:
            for node in ast.walk(statement):
                value, targets = _assignment(node)
                if (
                    value is not None
                    and value.lineno < line
                    and any(
                        isinstance(one, ast.Name) and one.id == name for one in targets
                    )
                ):
                    yield value


def _assignment(node: ast.AST) -> tuple[ast.expr | None, list[ast.expr]]:
    match node:
        case ast.Assign(value=value, targets=targets):
            return value, [
                part
                for one in targets
                for part in (one.elts if isinstance(one, ast.Tuple) else [one])
            ]
        case ast.AugAssign(value=value, target=target):
            return value, [target]
        case ast.AnnAssign(value=ast.expr() as value, target=target):
            return value, [target]
        case ast.NamedExpr(value=value, target=target):
            return value, [target]
    return None, []


def _calls(node: ast.AST, line: int, op: str) -> list[ast.Call]:
    """Calls on a line, those of an operation if there are any."""
    found = [
        part
        for part in ast.walk(node)
        if isinstance(part, ast.Call) and part.lineno <= line <= (part.end_lineno or 0)
    ]
    for ending in ("_tensor", "_into", "_coalesced"):
        op = op.removesuffix(ending)
    plain = op.replace("_", "")  # Horovod's functions are called `allreduce` and so on
    return [call for call in found if plain in called(call).replace("_", "")]


def _given(call: ast.Call) -> Iterator[ast.expr]:
    yield from call.args[:_GIVEN]
    for keyword in call.keywords:
        if keyword.arg not in _NO_TENSORS:
            yield keyword.value


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
