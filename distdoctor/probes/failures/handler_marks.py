"""Rewrites the job's own functions so that they report exceptions they handle.

A handler that does nothing a probe sees (`except ValueError: continue`) would be told
of by nobody. So functions that have handlers get code that was compiled from the same
source, with a look at what is caught ahead of each handler's first statement. Lines,
names and results stay what they are. A function that is running keeps its old code.

The look is an import of a module of Python's own that is there already: then Python
asks the module's spec whether it is being initialised, and this spec looks. It can be
compiled by torch.compile, which refuses other objects among constants, and pickled to
where nobody looks: there it is an import, and no more.

Source of the way: a function's `__code__` can be replaced, see the data model of the
Python reference; pytest compiles assertions anew for the same purpose. CPython 3.11,
Python/import.c, import_ensure_initialized.
"""

from __future__ import annotations

import ast
import importlib
import sys
import tokenize
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import CodeType, FunctionType, ModuleType
from typing import Any

from distdoctor.model.source_text import syntax_tree
from distdoctor.probes.call_sites import is_users
from distdoctor.probes.failures.handled_exceptions import notice
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe

_MOST_TEXT = 1 << 20
"""Characters of files with handlers, which are compiled while the rank waits."""

_MOST_DECORATORS = 8

_MODULE = "colorsys"
"""Small, without imports of its own, as old as Python, and seldom asked for."""

_NAME = "_distdoctor_look_"

_LOOK = f"import {_MODULE} as {_NAME}\ndel {_NAME}"


class _LookingSpec(ModuleSpec):
    """A module spec that records the exception being handled when it is asked."""

    @property
    def _initializing(self) -> bool:
        notice()
        return False

    @_initializing.setter
    def _initializing(self, _value: bool) -> None:
        """Whoever loads the module anew sets it."""


def install() -> None:
    """Rewrite all functions of the user's that exist by now."""
    spec = importlib.import_module(_MODULE).__spec__
    if type(spec) is ModuleSpec:
        spec.__class__ = _LookingSpec
    if type(spec) is not _LookingSpec:
        return
    left = _MOST_TEXT
    for module, file in _users_modules():
        text = _text(file)
        left -= len(text)
        if left < 0:
            return
        _watch(module, file, text)


def _users_modules() -> list[tuple[ModuleType, str]]:
    """The program's own module first, and then those that it imported, with files."""
    modules = sorted(sys.modules.copy().items(), key=lambda one: one[0] != "__main__")
    return [
        (module, file)
        for _, module in modules
        if issubclass(type(module), ModuleType)
        if isinstance(file := vars(module).get("__file__"), str) and is_users(file)
    ]


def _text(file: str) -> str:
    """Of a file with handlers; empty of one that has none or cannot be read."""
    try:
        with tokenize.open(file) as stream:
            text = stream.read()
    except (OSError, SyntaxError, UnicodeDecodeError):
        return ""
    return text if "except" in text else ""


@harmless
def _watch(module: ModuleType, file: str, text: str) -> None:
    functions = [one for one in _functions(module) if one.__code__.co_filename == file]
    if not functions or not text:
        return
    tree, again = syntax_tree(text), syntax_tree(text)
    if tree is None or again is None:
        return
    plain, looking = _codes(tree, file), _looking(again, file)
    for function in functions:
        key = function.__code__.co_qualname, function.__code__.co_firstlineno
        new = looking.get(key)
        # The file may have been changed, or the function been made in another way.
        if new is not None and plain.get(key) == function.__code__ != new:
            function.__code__ = new


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """Those of a module and of its classes, also behind decorators.

    Nothing of the user's is run for that: a module may hold objects that answer to
    any attribute, or load something to do so.
    """
    owners: list[Any] = [module]
    seen = {id(module)}
    for owner in owners:
        for held in list(vars(owner).values()):
            if not issubclass(type(held), type):
                for one in _inner(held):
                    yield from _unwrapped(one)
            elif held.__module__ == module.__name__ and id(held) not in seen:
                seen.add(id(held))
                owners.append(held)


def _inner(held: Any) -> tuple[Any, ...]:
    kind = type(held)
    if kind in {staticmethod, classmethod}:
        return (held.__func__,)
    if kind is property:
        return (held.fget, held.fset)
    return (held,)


def _unwrapped(one: Any) -> Iterator[FunctionType]:
    for _ in range(_MOST_DECORATORS):
        if type(one) is not FunctionType:
            return
        yield one
        one = vars(one).get("__wrapped__")


def _looking(tree: ast.Module, file: str) -> dict[tuple[str, int], CodeType]:
    """The codes of a file's functions, with a look in each handler that goes on."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and not _only_raises(node):
            look = ast.parse(_LOOK).body
            for part in look:
                for inner in ast.walk(part):
                    ast.copy_location(inner, node.body[0])
            node.body[:0] = look
    return _codes(tree, file)


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


PROBE = Probe(install=install)
