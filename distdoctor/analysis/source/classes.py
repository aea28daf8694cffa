"""The classes of a program: their fields, and which calls make an object of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from distdoctor.analysis.source.program import (
    MODULE,
    Function,
    Program,
    called,
    calls_in,
)


@dataclass(frozen=True, slots=True, eq=False)
class Class:
    """A class of the user's.

    Attributes:
        node: Its definition.
        scope: What stands around it.
        bases: Of the user's, that it derives from.
        functions: Its methods by name, without those of its bases.
    """

    node: ast.ClassDef
    scope: Function
    bases: tuple[Class, ...]
    functions: dict[str, Function]

    def method(self, name: str) -> Function | None:
        """A method, its own or a base's.

        Args:
            name: The method's name.

        Returns:
            The method, or None.
        """
        if name in self.functions:
            return self.functions[name]
        found = (base.method(name) for base in self.bases)
        return next((one for one in found if one is not None), None)

    def derives(self, function: Function) -> bool:
        """Whether a function is a method of the class or of a base.

        Args:
            function: A function of the program.

        Returns:
            Whether it is one.
        """
        return function in self.functions.values() or any(
            base.derives(function) for base in self.bases
        )

    def makings(self) -> Iterator[tuple[ast.Call, Function]]:
        """Calls by which its class methods make an object, and the methods.

        Yields:
            Calls of `cls`, each with its method.
        """
        for method in self.functions.values():
            if is_decorated(method, "classmethod"):
                for call in calls_in(method):
                    if called(call) == "cls":
                        yield call, method

    def fields(self) -> dict[str, ast.expr | None]:
        """Names with a type that its body declares, in order, and their defaults.

        Returns:
            The defaults by name, None where there is none; those of bases come first.
        """
        found: dict[str, ast.expr | None] = {}
        for base in self.bases:
            found |= base.fields()
        for statement in self.node.body:
            match statement:
                case ast.AnnAssign(target=ast.Name(id=name), value=value):
                    found[name] = value
        return found

    def value(self, name: str) -> ast.expr | None:
        """What its body, or that of a base, gives a name.

        Args:
            name: The attribute's name.

        Returns:
            The expression, or None.
        """
        for statement in self.node.body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=given)], value=value):
                    if given == name:
                        return value
        own = self.fields().get(name)
        inherited = (base.value(name) for base in self.bases)
        return own or next((one for one in inherited if one is not None), None)


class Classes:
    """The classes of a program by their names, as far as a name has only one."""

    def __init__(self, program: Program) -> None:
        nodes: dict[str, list[tuple[ast.ClassDef, Function]]] = {}
        for module in program.functions:
            if module.name == MODULE:
                for node in ast.walk(module.node):
                    if isinstance(node, ast.ClassDef):
                        nodes.setdefault(node.name, []).append((node, module))
        self._nodes = {name: one[0] for name, one in nodes.items() if len(one) == 1}
        self._functions: dict[tuple[str, str], dict[str, Function]] = {}
        for function in program.functions:
            if function.is_method:
                owner = function.name.split(".")[-2]
                methods = self._functions.setdefault((function.file, owner), {})
                methods[function.simple_name] = function
        self._known: dict[str, Class | None] = {}

    def named(self, name: str) -> Class | None:
        """The class of a name.

        Args:
            name: A simple name.

        Returns:
            The class, or None if there is none, or several of the name.
        """
        if name not in self._known:
            self._known[name] = None  # while its bases are looked for
            if name in self._nodes:
                node, module = self._nodes[name]
                bases = [
                    self.named(base.id)
                    for base in node.bases
                    if isinstance(base, ast.Name)
                ]
                self._known[name] = Class(
                    node,
                    module,
                    tuple(base for base in bases if base is not None),
                    self._functions.get((module.file, name), {}),
                )
        return self._known[name]

    def of(self, function: Function) -> Class | None:
        """The class that a function is a method of.

        Args:
            function: A function of the program.

        Returns:
            The class, or None if it is no method.
        """
        return self.named(function.name.split(".")[-2]) if function.is_method else None


def is_decorated(function: Function, name: str) -> bool:
    """Whether a function has a decorator of this name.

    Args:
        function: A function of the program.
        name: The decorator's name, without its module.

    Returns:
        Whether it has one.
    """
    decorators = getattr(function.node, "decorator_list", [])
    return any(ast.unparse(node).rpartition(".")[2] == name for node in decorators)


def is_own(function: Function, name: str) -> bool:
    """Whether a name is that of the object, or the class, that a method belongs to.

    Args:
        function: A function of the program.
        name: A simple name.

    Returns:
        Whether it is the first parameter, such as `self`, of a method that is not
        static.
    """
    return (
        function.is_method
        and not is_decorated(function, "staticmethod")
        and function.parameters[:1] == [name]
    )
