"""Has the job's own functions tell which exceptions they handle.

A handler that does nothing a probe sees (`except ValueError: continue`) would be told
of by nobody. So functions that have handlers get code that was compiled from the same
source, with a look at what is caught ahead of each handler's first statement. Lines,
names and results stay what they are. A function that is running keeps its old code.

Source of the way: a function's `__code__` can be replaced, see the data model of the
Python reference; pytest compiles assertions anew for the same purpose.
"""

from __future__ import annotations

import ast
import sys
import tokenize
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from distdoctor.probes.handling import notice
from distdoctor.probes.harmless import harmless
from distdoctor.probes.sites import is_users

_LARGEST = 1 << 20  # characters of a file

_MOST_FILES = 64

_STAND_IN = b"\0distdoctor: what is caught"
"""Constant in whose place the look comes."""


class Look:
    """Looks at the exception that is being handled, when its attribute is read.

    An attribute and no call, for a call of a constant makes the compiler warn.
    """

    __slots__ = ()

    @property
    def caught(self) -> None:
        """Note it."""
        notice()

    def __reduce__(self) -> str:
        """Pickle functions that hold it as those of a process that looks."""
        return "LOOK"


LOOK = Look()


@harmless
def watch() -> None:
    """Let the handlers of all functions that are there by now tell what they catch."""
    modules = [
        (module, file)
        for module in list(sys.modules.values())
        if isinstance(file := getattr(module, "__file__", None), str) and is_users(file)
    ]
    for module, file in modules[:_MOST_FILES]:
        _watch(module, file)


@harmless
def _watch(module: ModuleType, file: str) -> None:
    functions = [one for one in _functions(module) if one.__code__.co_filename == file]
    if not functions:
        return
    with tokenize.open(file) as stream:
        text = stream.read(_LARGEST + 1)
    if "except" not in text or len(text) > _LARGEST:
        return
    plain, looking = _codes(ast.parse(text), file), _looking(text, file)
    for function in functions:
        key = function.__code__.co_qualname, function.__code__.co_firstlineno
        new = looking.get(key)
        # The file may have been changed, or the function been made in another way.
        if new is not None and plain.get(key) == function.__code__ != new:
            function.__code__ = new


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """Those of a module and of its classes, also behind decorators."""
    owners: list[Any] = [module]
    seen = {id(module)}
    for owner in owners:
        for held in list(vars(owner).values()):
            if isinstance(held, type) and held.__module__ == module.__name__:
                if id(held) not in seen:
                    seen.add(id(held))
                    owners.append(held)
                continue
            for one in _inner(held):
                yield from _unwrapped(one)


def _inner(held: Any) -> tuple[Any, ...]:
    if isinstance(held, staticmethod | classmethod):
        return (held.__func__,)
    if isinstance(held, property):
        return (held.fget, held.fset)
    return (held,)


def _unwrapped(one: Any) -> Iterator[FunctionType]:
    for _ in range(8):
        if isinstance(one, FunctionType):
            yield one
        one = getattr(one, "__wrapped__", None) if callable(one) else None
        if one is None:
            return


def _looking(text: str, file: str) -> dict[tuple[str, int], CodeType]:
    """The codes of a file's functions, with a look in each handler that goes on."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and not _only_raises(node):
            first = node.body[0]
            stand_in = ast.copy_location(ast.Constant(_STAND_IN), first)
            asked = ast.copy_location(
                ast.Attribute(stand_in, "caught", ast.Load()), first
            )
            node.body.insert(0, ast.copy_location(ast.Expr(asked), first))
    found = _codes(tree, file)
    return {key: _with_look(code) for key, code in found.items()}


def _only_raises(handler: ast.ExceptHandler) -> bool:
    return isinstance(handler.body[0], ast.Raise)


def _codes(tree: ast.Module, file: str) -> dict[tuple[str, int], CodeType]:
    """The code of each function, by its qualified name and first line."""
    found: dict[tuple[str, int], CodeType] = {}
    waiting = [compile(tree, file, "exec", dont_inherit=True)]
    for code in waiting:
        found[code.co_qualname, code.co_firstlineno] = code
        waiting += [one for one in code.co_consts if isinstance(one, CodeType)]
    return found


def _with_look(code: CodeType) -> CodeType:
    consts = tuple(
        LOOK
        if one == _STAND_IN
        else _with_look(one)
        if isinstance(one, CodeType)
        else one
        for one in code.co_consts
    )
    return code if consts == code.co_consts else code.replace(co_consts=consts)
