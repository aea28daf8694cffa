"""Where a value is on its way: an expression, in a function as it was entered."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from distdoctor.analysis.source.classes import is_decorated
from distdoctor.analysis.source.program import (
    Function,
    Use,
    all_parameters,
    defaults_of,
)
from distdoctor.model.events import Place

_MOST_CALLS = 8  # calls of a function that are asked for an argument


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """A function as it was entered.

    Attributes:
        given: Its parameters, as one call gave them; None: nobody knows which call.
    """

    function: Function
    given: Mapping[str, Spot] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Spot:
    """An expression, where a value is on its way."""

    node: ast.expr
    scene: Scene

    @property
    def place(self) -> Place:
        """Its line."""
        function = self.scene.function
        return Place(function.file, self.node.lineno, function.name)

    @property
    def key(self) -> tuple[str, int, str]:
        """What it is known by: parts of an expression may be made up on the way."""
        place = self.place
        return place.file, place.line, ast.dump(self.node)


End = Callable[[Spot], Spot]
"""Where the way of a value ends that is at a spot."""


def spot_of(use: Use, scene: Scene) -> Spot:
    """A value that is stored, if it is in the scene's function as that was entered.

    Args:
        use: The value, and the function it is stored in.
        scene: The function, as one call entered it.

    Returns:
        The spot; in another function nothing is known of the parameters.
    """
    same = use.function is scene.function
    return Spot(use.node, scene if same else Scene(use.function))


def the_only(spots: Sequence[Spot], end: End) -> Spot | None:
    """One of several, if all come from one place.

    Args:
        spots: Where the value may come from.
        end: Goes from a spot to where its value comes from.

    Returns:
        One spot, or None if there are none, too many, or several ends.
    """
    if len(spots) < 2:
        return spots[0] if spots else None
    if len(spots) > _MOST_CALLS:
        return None
    ends = {end(spot).key for spot in spots}
    return spots[0] if len(ends) == 1 else None


def given_by(
    call: ast.Call, scene: Scene, function: Function, receiver: Spot | None = None
) -> dict[str, Spot] | None:
    """The parameters of a function in one call; None if it is not plain.

    Args:
        call: The call.
        scene: Where it stands.
        function: What is called.
        receiver: The object whose method that is.

    Returns:
        Spots by the names of parameters, or None.
    """
    if any(isinstance(part, ast.Starred) for part in call.args):
        return None
    names = function.parameters
    given: dict[str, Spot] = {}
    if function.is_method and not is_decorated(function, "staticmethod"):
        if names and receiver is not None:
            given[names[0]] = receiver
        names = names[1:]
    outer = Scene(function.outer or function)
    for name, value in defaults_of(function).items():
        given[name] = Spot(value, outer)
    for name, value in zip(names, call.args, strict=False):
        given[name] = Spot(value, scene)
    for keyword in call.keywords:
        if keyword.arg:
            given[keyword.arg] = Spot(keyword.value, scene)
            continue
        for name in all_parameters(function) - set(given):
            given[name] = Spot(item_of(keyword.value, name), scene)
    return given


# --- expressions that stand nowhere, and are made up on the way ---


def item_of(base: ast.expr, name: str) -> ast.expr:
    """`base[name]`, on the line of the base.

    Args:
        base: The dictionary or table.
        name: The key.

    Returns:
        A new expression.
    """
    item = ast.Subscript(base, ast.copy_location(ast.Constant(name), base), ast.Load())
    return ast.copy_location(item, base)


def attribute_of(base: ast.expr, name: str, line: ast.expr) -> ast.expr:
    """`base.name`, on the line of another expression.

    Args:
        base: The object.
        name: The attribute's name.
        line: The expression whose line is taken.

    Returns:
        A new expression.
    """
    return ast.copy_location(ast.Attribute(base, name, ast.Load()), line)
