"""Attributes of what a library's function makes: options, fields of namespaces.

Those of a command line are declared by `add_argument`; a namespace is given its own by
keyword, and so is a copy that is made by `replace`.
"""

from __future__ import annotations

import ast

from distdoctor.analysis.source.program import Program, called
from distdoctor.analysis.source.value_spots import Scene, Spot, attribute_of, item_of

_PARSES = frozenset({"parse_args", "parse_known_args"})

_NAMESPACES = frozenset({"SimpleNamespace", "Namespace"})


def of_made(program: Program, call: ast.Call, scene: Scene, name: str) -> Spot | None:
    """An attribute of what a call of a library's function makes.

    Args:
        program: The user's files.
        call: The call.
        scene: Where it stands.
        name: That of the attribute.

    Returns:
        The spot, or None if nobody knows.
    """
    word = called(call)
    if word in _PARSES:
        return _option(program, name)
    if word in {*_NAMESPACES, "replace", "_replace"}:
        if is_changed(program, name):
            return None
        for keyword in reversed(call.keywords):
            if keyword.arg == name:
                return Spot(keyword.value, scene)
            if keyword.arg is None:
                return Spot(item_of(keyword.value, name), scene)
        if word not in _NAMESPACES:
            inner = call.args[0] if call.args else call.func
            if inner is call.func and isinstance(call.func, ast.Attribute):
                inner = call.func.value
            return Spot(attribute_of(inner, name, call), scene)
    return None


def is_changed(program: Program, name: str) -> bool:
    """Whether an attribute is set on an object from outside of its class.

    Args:
        program: The user's files.
        name: The attribute's name.

    Returns:
        Whether any line of the program does so.
    """
    return any(not use.function.is_method for use in program.stored.get(name, ()))


def _option(program: Program, name: str) -> Spot | None:
    """Of a command line, as it was declared."""
    found = [
        use
        for use in program.calls.get("add_argument", ())
        if isinstance(use.node, ast.Call) and _is_option(use.node, name)
    ]
    if len(found) != 1 or is_changed(program, name):
        return None
    call, scene = found[0].node, Scene(found[0].function)
    assert isinstance(call, ast.Call)
    default = [one.value for one in call.keywords if one.arg == "default"]
    return Spot(default[0] if default else call.args[0], scene)


def _is_option(call: ast.Call, name: str) -> bool:
    words = [one.value for one in call.args if isinstance(one, ast.Constant)]
    words += [
        one.value.value
        for one in call.keywords
        if one.arg == "dest" and isinstance(one.value, ast.Constant)
    ]
    return any(str(one).lstrip("-").replace("-", "_") == name for one in words)
