"""Where variables have their values from: assignments, and calls that give them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.analysis.source.classes import is_own
from distdoctor.analysis.source.program import (
    MODULE,
    Function,
    Use,
    all_parameters,
)
from distdoctor.analysis.source.search_effort import SearchStep
from distdoctor.analysis.source.value_spots import (
    Scene,
    Spot,
    given_by,
    spot_of,
    the_only,
)
from distdoctor.model.events import Place


class Bindings(SearchStep):
    """The variables of a program, as one rank would look for their values."""

    def before(self, node: ast.Name, scene: Scene, trail: list[Place]) -> Spot | None:
        """Where the value of a variable was before; None: nobody knows.

        Args:
            node: The variable, where it is used.
            scene: The function in which it is.
            trail: Is given the lines that lie between.

        Returns:
            The spot, or None.
        """
        name = node.id
        function: Function | None = scene.function
        while function is not None:
            if self._program.is_looped(function, name):
                return None
            here = scene if function is scene.function else Scene(function)
            line = node.lineno if function is scene.function else 0
            uses = [
                *self._program.assigned.get((function, name), ()),
                *self._program.unpacked.get((function, name), ()),
            ]
            if uses or name in all_parameters(function):
                return self._bound(name, uses, line, here, trail)
            if self._program.binds(function, name):
                return None
            function = function.outer
        modules = [one for one in self._program.functions if one.name == MODULE]
        found = [
            use
            for module in modules  # it may be imported
            for use in self._program.assigned.get((module, name), ())
        ]
        return spot_of(found[0], scene) if len(found) == 1 else None

    def _bound(
        self, name: str, uses: list[Use], line: int, scene: Scene, trail: list[Place]
    ) -> Spot | None:
        """What a variable of a function is at a line; 0: at any."""
        before = [use for use in uses if not line or use.line < line]
        passed = name in all_parameters(scene.function)
        if not before and not passed:
            before = uses
        left = self._reading.reached(before, scene)
        came = (self._reading.truth(use, scene) is True for use in before)
        if passed and not any(came):
            return None if left else self._parameter(name, scene, trail)
        return spot_of(left[0], scene) if len(left) == 1 else None

    def _parameter(self, name: str, scene: Scene, trail: list[Place]) -> Spot | None:
        function = scene.function
        if scene.given is not None:
            return scene.given.get(name)
        if is_own(function, name):
            return None
        found = []
        for call, where in self._calls_of(function):
            given = given_by(call, Scene(where), function)
            if given is None or name not in given:
                return None
            if given[name].scene.function is not where:  # a default
                trail.append(Place(where.file, call.lineno, where.name))
            found.append(given[name])
        only = the_only(found, self._end)
        if only is None or len(found) > 1:
            trail.clear()
        return only

    def _calls_of(self, function: Function) -> Iterator[tuple[ast.Call, Function]]:
        name = function.simple_name
        owner = self._classes.of(function)
        if name == "__init__" and owner is not None:
            name = owner.node.name
        elif len(self._program.named(name)) > 1:
            return
        for use in self._program.calls.get(name, ()):
            assert isinstance(use.node, ast.Call)
            if not self._program.is_library(use.node, use.function):
                yield use.node, use.function
        if owner is not None and function.simple_name == "__init__":
            yield from owner.makings()
