"""From a value back to what makes it, as the text of a program shows it.

Through variables, attributes, parameters, returned values, entries of dictionaries and
options of a command line. Only the text is read: what is found is where to look, and no
proof.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Iterator

from distdoctor.analysis.source.call_chains import is_property
from distdoctor.analysis.source.program import (
    Function,
    Program,
    called,
    own_nodes,
)
from distdoctor.model.events import Place

RANKS = frozenset(
    {"get_rank", "get_local_rank", "get_node_local_rank", "rank", "local_rank"}
    | {"global_rank", "process_index", "RANK", "LOCAL_RANK", "is_main_process"}
    | {"get_world_rank"}
)
"""Names of functions, variables and attributes that are a process' rank."""

GIVING = ast.Return | ast.Yield | ast.YieldFrom
"""By which a function gives something back."""

_MOST_VALUES = 200  # that are gone through

_MOST_PLACES = 3


class ValueSearch:
    """Goes back from a value to what makes it.

    Args:
        program: The user's files.
        is_sought: Whether a value, at a line of a function, is what is looked for.
            Where a variable that is the rank is used, it is asked about a name `rank`.
        through_loops: Go on from an item to what it is an item of.
    """

    def __init__(
        self,
        program: Program,
        *,
        is_sought: Callable[[ast.expr, Function, int], bool],
        through_loops: bool = False,
    ) -> None:
        self._program = program
        self._is_sought = is_sought
        self._through_loops = through_loops
        self._open: deque[tuple[ast.expr, Function, int]] = deque()
        self._known: set[int] = set()
        self._marks: list[ast.Name] = []
        self._gone: dict[Place, None] = {}

    def add_argument(
        self, call: ast.Call, function: Function, name: str, position: int
    ) -> None:
        """Take the argument of a call to the values that are gone through.

        Args:
            call: The call.
            function: The function it stands in.
            name: The parameter's name.
            position: The parameter's position, from 0; negative: it has none.
        """
        given = [one.value for one in call.keywords if one.arg == name]
        if 0 <= position < len(call.args):
            given.append(call.args[position])
        given += [one.value for one in call.args if isinstance(one, ast.Starred)]
        given += [value for part in ast.walk(call) for value in _entries(part, name)]
        for value in given:
            self.add(value, function, value.lineno)

    def places(self) -> list[Place]:
        """What was found, nearest to the call first.

        Returns:
            The lines, each once; the search ends where enough was found or gone
            through.
        """
        found: dict[Place, None] = {}
        for _ in range(_MOST_VALUES):
            if not self._open or len(found) >= _MOST_PLACES:
                break
            value, function, line = self._open.popleft()
            if self._is_sought(value, function, line):
                found.setdefault(Place(function.file, line, function.name))
                continue
            self._gone.setdefault(Place(function.file, line, function.name))
            self._follow(value, function)
        return list(found)

    def gone(self) -> list[Place]:
        """What was gone through and not sought, nearest to the call first.

        Returns:
            The lines, each once, as of the last search.
        """
        return list(self._gone)

    def add(self, value: ast.expr, function: Function, line: int) -> None:
        """Take a value to those that are gone through.

        Args:
            value: The expression; one that is known already is left out.
            function: The function it stands in.
            line: Its line, from 1.
        """
        if id(value) not in self._known:
            self._known.add(id(value))
            self._open.append((value, function, line))

    def _follow(self, value: ast.expr, function: Function) -> None:
        """Take what a value is made of."""
        for part in ast.walk(value):
            match part:
                case ast.Name(id=name):
                    self._variable(name, function, value)
                    if isinstance(value, ast.Call):
                        self._handed_over(name, value)
                case ast.Attribute(attr=name):
                    self._attribute(name)
                case ast.Subscript(slice=ast.Constant(value=str(name))):
                    self._entry(name)
                case ast.Call():
                    self._returned(part)

    def _variable(self, name: str, function: Function, user: ast.expr) -> None:
        scope: Function | None = function
        while scope is not None:
            for use in self._program.assigned.get((scope, name), ()):
                if is_rank(use.node):  # who computes with it is of interest
                    self._add_user(user, function)
                else:
                    self.add(use.node, use.function, use.line)
            self._unpacked(name, scope)
            self._items(name, scope)
            if self._through_loops:
                self._iterated(name, scope)
            if name in scope.parameters:
                self._parameter(name, scope)
            inner = [one for one in self._program.named(name) if one.outer is scope]
            if inner and _is_name(user, name):
                self._results(name)
            if self._program.binds(scope, name):
                return
            scope = scope.outer

    def _items(self, name: str, scope: Function) -> None:
        """Take which items of a variable are set, and to what: `all[rank] = mine`."""
        for node in own_nodes(scope.node):
            match node:
                case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=of)) as item]):
                    if of == name:
                        self.add(item.slice, scope, node.lineno)
                        self.add(node.value, scope, node.lineno)

    def _unpacked(self, name: str, scope: Function) -> None:
        """Take what a variable is given as one of several: `a, b = both()`."""
        for node in own_nodes(scope.node):
            match node:
                case ast.Assign(targets=[ast.Tuple(elts=parts)], value=value):
                    names = [
                        one.id if isinstance(one, ast.Name) else "" for one in parts
                    ]
                    if name not in names:
                        continue
                    for item, function in self._values_of(value, scope):
                        one = item
                        if isinstance(item, ast.Tuple) and len(item.elts) == len(parts):
                            one = item.elts[names.index(name)]
                        self.add(one, function, one.lineno)

    def _values_of(
        self, value: ast.expr, scope: Function
    ) -> list[tuple[ast.expr, Function]]:
        """A value, or what the user's function returns that is called for it."""
        name = called(value) if isinstance(value, ast.Call) else ""
        returned = [
            (node.value, function)
            for function in self._program.named(name)
            for node in own_nodes(function.node)
            if isinstance(node, ast.Return) and node.value is not None
        ]
        return returned or [(value, scope)]

    def _iterated(self, name: str, scope: Function) -> None:
        for node in own_nodes(scope.node):
            if isinstance(node, ast.For | ast.AsyncFor) and any(
                isinstance(part, ast.Name) and part.id == name
                for part in ast.walk(node.target)
            ):
                self.add(node.iter, scope, node.lineno)

    def _add_user(self, user: ast.expr, function: Function) -> None:
        if any(user is mark for mark in self._marks):
            return  # was not what is looked for
        marked = ast.copy_location(ast.Name(id="rank", ctx=ast.Load()), user)
        self._marks.append(marked)
        self._open.appendleft((marked, function, user.lineno))

    def _parameter(self, name: str, function: Function) -> None:
        position = function.parameters.index(name) - function.is_method
        callee = function.simple_name
        if callee == "__init__":
            callee = function.name.split(".")[-2]
        uses = self._program.calls.get(callee, [])
        if callee == "forward":
            # Where it is an autograd function's, `ctx` stands in the place of `self`.
            applied = self._program.applied(function)
            uses = applied or [*uses, *self._program.variables_called()]
        for use in uses:
            if isinstance(use.node, ast.Call):
                self.add_argument(use.node, use.function, name, position)

    def _attribute(self, name: str) -> None:
        for use in (
            *self._program.stored.get(name, ()),
            *self._program.items.get(name, ()),
            *self._program.keywords.get(name, ()),
        ):
            self.add(use.node, use.function, use.line)
        for function in self._program.functions:
            for use in self._program.assigned.get((function, name), ()):
                self.add(use.node, use.function, use.line)
        if any(map(is_property, self._program.named(name))):
            self._results(name)
        for use in self._program.calls.get("add_argument", ()):
            if isinstance(use.node, ast.Call) and _is_option(use.node, name):
                for keyword in use.node.keywords:
                    if keyword.arg == "default":
                        self.add(keyword.value, use.function, use.line)

    def _entry(self, name: str) -> None:
        for function in self._program.functions:
            for node in own_nodes(function.node):
                for value in _entries(node, name):
                    self.add(value, function, value.lineno)
        for use in self._program.keywords.get(name, ()):
            self.add(use.node, use.function, use.line)

    def _handed_over(self, name: str, call: ast.Call) -> None:
        """Take what a function makes that is given to a library, as `collate_fn` is."""
        given = [*call.args, *(one.value for one in call.keywords)]
        if any(isinstance(one, ast.Name) and one.id == name for one in given):
            self._results(name)

    def _returned(self, call: ast.Call) -> None:
        self._results(called(call))

    def _results(self, name: str) -> None:
        for function in self._program.named(name):
            for node in own_nodes(function.node):
                if isinstance(node, GIVING) and node.value is not None:
                    self.add(node.value, function, node.lineno)


def _is_name(value: ast.expr, name: str) -> bool:
    """Whether an expression is that name, and nothing is called by it."""
    return isinstance(value, ast.Name) and value.id == name


def _entries(node: ast.AST, name: str) -> Iterator[ast.expr]:
    """Values that a dictionary has, or is given, under a name."""
    match node:
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                if isinstance(key, ast.Constant) and key.value == name:
                    yield value
        case ast.Assign(targets=targets, value=given):
            for target in targets:
                match target:
                    case ast.Subscript(slice=ast.Constant(value=word)) if word == name:
                        yield given


def _is_option(call: ast.Call, name: str) -> bool:
    given = [one.value for one in call.args if isinstance(one, ast.Constant)]
    return any(str(one).lstrip("-").replace("-", "_") == name for one in given)


def is_rank(value: ast.expr) -> bool:
    """Whether an expression is the rank, and nothing is computed with it.

    Args:
        value: The expression.

    Returns:
        Whether it is a call such as `dist.get_rank()`, or an `int` of the variable that
        holds it.
    """
    match value:
        case ast.Call(func=ast.Name(id="int"), args=[inner]):
            return is_rank(inner) or any(
                isinstance(part, ast.Constant) and part.value in RANKS
                for part in ast.walk(inner)
            )
        case ast.Call():
            return called(value) in RANKS
    return False
