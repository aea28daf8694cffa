"""Where what a call gives comes from: its arguments, or a `return` of the user's."""

from __future__ import annotations

import ast

from distdoctor.analysis.source.attributes import Attributes
from distdoctor.analysis.source.classes import Classes
from distdoctor.analysis.source.program import (
    Function,
    Program,
    Use,
    called,
    own_nodes,
)
from distdoctor.analysis.source.search_effort import SearchStep, SourceReading
from distdoctor.analysis.source.subscripts import Lookups, Missing
from distdoctor.analysis.source.value_spots import (
    End,
    Scene,
    Spot,
    attribute_of,
    given_by,
    the_only,
)

_CONVERSIONS = frozenset({"int", "float", "str", "bool"})


class Returns(SearchStep):
    """The results of a program's calls, as one rank would look where they come from.

    Args:
        program: As of every step, and so are those not named here.
        attributes: Tell whose method is called.
        lookups: Tell what a table has.
    """

    def __init__(
        self,
        program: Program,
        classes: Classes,
        reading: SourceReading,
        attributes: Attributes,
        lookups: Lookups,
        end: End,
    ) -> None:
        super().__init__(program, classes, reading, end)
        self._attributes = attributes
        self._lookups = lookups

    def before(self, node: ast.Call, scene: Scene) -> Spot | None:
        """Where the result of a call was before; None: nobody knows.

        Args:
            node: The call.
            scene: The function that it stands in, as one call entered it.

        Returns:
            The spot, or None.
        """
        match node:
            case ast.Call(func=ast.Name(id=name), args=[inner], keywords=[]) if (
                name in _CONVERSIONS
            ):
                return Spot(inner, scene)
            case ast.Call(
                func=ast.Name(id="getattr"), args=[base, ast.Constant(value=str(name))]
            ):
                return Spot(attribute_of(base, name, node), scene)
            case ast.Call(func=ast.Attribute(attr="get", value=base), args=[key, *_]):
                return self._get(node, base, key, scene)
        return self._returned(node, scene)

    def _get(
        self, node: ast.Call, base: ast.expr, key: ast.expr, scene: Scene
    ) -> Spot | None:
        """Of `dictionary.get(key, default)`."""
        found = self._lookups.entry(Spot(base, scene), key)
        if isinstance(found, Missing):
            return Spot(node.args[1], scene) if len(node.args) > 1 else None
        return found

    def _returned(self, node: ast.Call, scene: Scene) -> Spot | None:
        """What a function of the user's gives back."""
        callee = self._callee(node, scene)
        if callee is None:
            return None
        function, receiver = callee
        given = given_by(node, scene, function, receiver)
        inner = list(own_nodes(function.node))
        if any(isinstance(one, ast.Yield | ast.YieldFrom) for one in inner):
            return None
        here = Scene(function, given)
        left = []
        for one in inner:
            if isinstance(one, ast.Return) and one.value is not None:
                use = Use(function, one.value, one.lineno)
                truth = self._reading.truth(use, here)
                if truth is not False:
                    left.append(one.value)
                if truth is True:
                    break
        return the_only([Spot(value, here) for value in left], self._end)

    def _callee(
        self, node: ast.Call, scene: Scene
    ) -> tuple[Function, Spot | None] | None:
        """The function of the user's that is called, and whose method it is."""
        name = called(node)
        named = self._program.named(name)
        match node.func:
            case ast.Name():
                if self._classes.named(name) is not None:
                    return None
                plain = [one for one in named if not one.is_method]
                return (plain[0], None) if len(plain) == 1 else None
            case ast.Attribute(value=base):
                receiver = Spot(base, scene)
                owner = self._attributes.class_of(receiver)
                if owner is not None:
                    method = owner.method(name)
                    return None if method is None else (method, receiver)
                if len(named) == 1 and not named[0].is_method:
                    plainly = self._attributes.is_module(base)
                    return (named[0], None) if plainly else None
        return None
