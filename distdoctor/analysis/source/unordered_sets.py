"""Lines that make a variable or an attribute, and the sets that give it its order."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.analysis.source.program import Function, Program, called, own_nodes
from distdoctor.model.events import Place

_MOST = 400  # expressions that are gone through
_MOST_PLACES = 2  # of each kind

_SETTLING = frozenset(
    ("sorted", "natsorted", "len", "sum", "min", "max", "most_common")
)
"""Functions whose result has nothing of the order of what they are given."""

_FILLING = frozenset(("append", "extend", "update", "setdefault", "insert"))


def makers_of(program: Program, name: str) -> tuple[list[Place], list[Place]]:
    """Where a dictionary is made or filled, and the sets that it is made from.

    Args:
        program: The user's files.
        name: As readers see it, such as "stoi" or "vocab.stoi".

    Returns:
        The lines of both kinds; the second is empty if the source shows no set whose
        order is left as it is.
    """
    sought = name.rpartition(".")[2]
    values = list(_values(program, sought, is_attribute="." in name))
    reader = _Sets(program)
    for value, function in values:
        reader.follow(value, function)
    made = {
        Place(function.file, value.lineno, function.name): None
        for value, function in values
        if len(values) == 1 or _Sets(program).has(value, function)
    }
    return list(made)[:_MOST_PLACES], list(reader.places)[:_MOST_PLACES]


def _values(
    program: Program, name: str, *, is_attribute: bool
) -> Iterator[tuple[ast.expr, Function]]:
    """What a name is given, and what the loops go through in which it is filled."""
    for use in program.stored.get(name, ()) if is_attribute else ():
        yield use.node, use.function
    if is_attribute:
        yield from _given_to_dataclasses(program, name)
    for function in program.functions:
        if not is_attribute:
            for use in program.assigned.get((function, name), ()):
                yield use.node, use.function
        for loop in own_nodes(function.node):
            if isinstance(loop, ast.For) and _fills(loop, name):
                yield loop.iter, function


def _given_to_dataclasses(
    program: Program, name: str
) -> Iterator[tuple[ast.expr, Function]]:
    """What is given to dataclasses for a field of that name."""
    for module in program.functions:
        if not isinstance(module.node, ast.Module):
            continue
        for owner in ast.walk(module.node):
            if not isinstance(owner, ast.ClassDef) or not any(
                "dataclass" in ast.unparse(one) for one in owner.decorator_list
            ):
                continue
            fields = [
                part.target.id
                for part in owner.body
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
            ]
            if name not in fields:
                continue
            made = [*program.calls.get(owner.name, ()), *program.calls.get("cls", ())]
            for use in made:
                inside = f"{owner.name}." in f".{use.function.name}"
                if not isinstance(use.node, ast.Call) or (
                    called(use.node) == "cls" and not inside
                ):
                    continue
                at = fields.index(name)
                given = [one.value for one in use.node.keywords if one.arg == name]
                for value in (*given, *use.node.args[at : at + 1]):
                    yield value, use.function


def _fills(loop: ast.For, name: str) -> bool:
    """Whether a loop puts something into a variable or attribute."""
    for node in ast.walk(loop):
        match node:
            case ast.Assign(targets=[ast.Subscript(value=target)]):
                pass
            case ast.Call(func=ast.Attribute(value=target, attr=attr)) if (
                attr in _FILLING
            ):
                pass
            case _:
                continue
        if getattr(target, "id", getattr(target, "attr", "")) == name:
            return True
    return False


class _Sets:
    """Goes back from an expression to the sets whose order it has."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.places: dict[Place, None] = {}
        self._known: set[int] = set()
        self._sorted = {
            part
            for use in program.calls.get("sort", ())
            if isinstance(use.node, ast.Call)
            and isinstance(use.node.func, ast.Attribute)
            for part in [ast.unparse(use.node.func.value).rpartition(".")[2]]
        }

    def has(self, value: ast.expr, function: Function) -> bool:
        """Whether an expression has its order from a set."""
        self.follow(value, function)
        return bool(self.places)

    def follow(self, value: ast.AST, function: Function) -> None:
        """Note the sets that an expression has its order from."""
        if id(value) in self._known or len(self._known) > _MOST:
            return
        self._known.add(id(value))
        match value:
            case ast.Set() | ast.SetComp():
                self._note(value, function)
            case ast.Call() if called(value) in _SETTLING:
                pass
            case ast.Call() if called(value) in {"set", "frozenset"}:
                self._note(value, function)
            case ast.Call():
                for other in self._program.named(called(value)):
                    for node in own_nodes(other.node):
                        if isinstance(node, ast.Return | ast.Yield) and node.value:
                            self.follow(node.value, other)
                self._inside(value, function)
            case ast.DictComp(generators=parts) | ast.ListComp(generators=parts):
                for part in parts:
                    self.follow(part.iter, function)
            case ast.GeneratorExp(generators=parts):
                for part in parts:
                    self.follow(part.iter, function)
            case ast.Name(id=name) if name not in self._sorted:
                self._variable(name, function)
            case ast.Attribute(attr=name) if name not in self._sorted:
                for use in self._program.stored.get(name, ()):
                    self.follow(use.node, use.function)
                self._inside(value, function)
            case ast.Compare() | ast.Name() | ast.Attribute():
                pass
            case _:
                self._inside(value, function)

    def _inside(self, value: ast.AST, function: Function) -> None:
        for part in ast.iter_child_nodes(value):
            if isinstance(part, ast.keyword):
                self.follow(part.value, function)
            elif isinstance(part, ast.expr):
                self.follow(part, function)

    def _variable(self, name: str, function: Function) -> None:
        scope: Function | None = function
        while scope is not None:
            for use in self._program.assigned.get((scope, name), ()):
                self.follow(use.node, use.function)
            for node in own_nodes(scope.node):
                if isinstance(node, ast.For) and (
                    name in _names(node.target) or _fills(node, name)
                ):
                    self.follow(node.iter, scope)
            if name in scope.parameters:
                self._parameter(name, scope)
            if self._program.binds(scope, name):
                return
            scope = scope.outer

    def _parameter(self, name: str, function: Function) -> None:
        """What its calls give a function for a parameter."""
        callee = function.simple_name
        if callee == "__init__":
            callee = function.name.split(".")[-2]
        position = function.parameters.index(name) - function.is_method
        for use in self._program.calls.get(callee, ()):
            if isinstance(use.node, ast.Call):
                given = [one.value for one in use.node.keywords if one.arg == name]
                given += use.node.args[position : position + 1] if position >= 0 else []
                for one in given:
                    self.follow(one, use.function)

    def _note(self, value: ast.expr, function: Function) -> None:
        self.places.setdefault(Place(function.file, value.lineno, function.name))


def _names(target: ast.expr) -> set[str]:
    return {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
