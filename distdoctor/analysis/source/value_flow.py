"""The way of a value: from where it is used back to where it comes from.

It is followed as one rank would: through variables, attributes of objects that are made
by the user's classes, results of the user's functions, entries of dictionaries and
tables, and options of a command line. A way that forks, because several assignments,
calls or returns may be meant, is not told.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from distdoctor.analysis.source.attributes import Attributes
from distdoctor.analysis.source.bindings import Bindings
from distdoctor.analysis.source.call_results import Returns
from distdoctor.analysis.source.classes import Classes
from distdoctor.analysis.source.program import (
    Program,
    called,
    calls_in,
    own_nodes,
)
from distdoctor.analysis.source.rank_evaluation import Value
from distdoctor.analysis.source.search_effort import Effort, SourceReading
from distdoctor.analysis.source.subscripts import Lookups
from distdoctor.analysis.source.value_spots import Scene, Spot, item_of
from distdoctor.model.events import Place

_LONGEST = 24  # steps of a way


@dataclass(frozen=True, slots=True)
class ValueWay:
    """Where a value has come along.

    Attributes:
        places: Lines, from the one where it is used to the one that it comes from.
        end: The expression that it comes from.
    """

    places: tuple[Place, ...]
    end: Spot

    def last(self, most: int) -> list[Place]:
        """The last lines, the one that it comes from first, without that of its use.

        Args:
            most: How many lines at most.

        Returns:
            The lines, each once.
        """
        used = self.places[0]
        others = [
            place
            for place in dict.fromkeys(reversed(self.places))
            if (place.file, place.line) != (used.file, used.line)
        ]
        return others[:most]

    def others(self) -> list[Place]:
        """Where the function that it ends in gives something else, and what keeps it.

        These are its other `return` statements, and its decorators: what was asked for
        before may be kept.

        Returns:
            The lines, ascending; empty for a function with less than two `return`
            statements.
        """
        function = self.end.scene.function
        decorators = getattr(function.node, "decorator_list", [])
        every = own_nodes(function.node)
        returns = [one for one in every if isinstance(one, ast.Return)]
        if len(returns) < 2:
            return []
        lines = sorted({one.lineno for one in (*decorators, *returns)})
        return [
            Place(function.file, line, function.name)
            for line in lines
            if line != self.end.node.lineno
        ]


class ValueFlow:
    """Follows values through a program as one rank would.

    Args:
        program: The user's files.
        rank: The rank.
        size: Number of ranks.
    """

    def __init__(self, program: Program, rank: int, size: int) -> None:
        classes = Classes(program)
        self._program = program
        self._effort = Effort()
        self._reading = reading = SourceReading(program, rank, size, self._effort)
        self._bindings = Bindings(program, classes, reading, self._end)
        self._attributes = Attributes(program, classes, reading, self._end)
        self._lookups = Lookups(program, reading, self._effort, self._end)
        self._returns = Returns(
            program, classes, reading, self._attributes, self._lookups, self._end
        )

    @property
    def steps(self) -> int:
        """How many the last way took, with all that were gone for its sake."""
        return self._effort.work

    def argument(
        self, place: Place, name: str, position: int = -1, callee: str = ""
    ) -> ValueWay | None:
        """The way of an argument of the call at a line; None if it forks.

        Args:
            place: The line.
            name: The argument's keyword; a dictionary among the arguments, such as a
                group of parameters, may have it as well.
            position: Its position; -1: it has none.
            callee: Simple name of what is called; "": any call with such a keyword.

        Returns:
            The way with its lines, or None.
        """
        function = self._program.at(place.file, place.line)
        if function is None:
            return None
        scene = Scene(function)
        found: list[ast.expr] = []
        for call in calls_in(function):
            if not call.lineno <= place.line <= (call.end_lineno or 0):
                continue
            if callee and called(call) != callee:
                continue
            found += _argument(call, name, position)
        if len(found) != 1:
            return None
        return self.of(Spot(found[0], scene))

    def of(self, spot: Spot) -> ValueWay | None:
        """The way of a value from where it is used; None if it forks.

        Args:
            spot: The expression, and the function it stands in.

        Returns:
            The way with its lines, or None.
        """
        self._effort.work = 0
        way = self._way(spot)
        if self._effort.is_spent or self._is_fork(way.end.node):
            return None  # nobody knows how it goes on
        return way

    def end(self, spot: Spot) -> Spot:
        """Where the way of a value ends, or forks.

        Args:
            spot: The expression, and the function it stands in.

        Returns:
            The last spot that is known for certain.
        """
        self._effort.work = 0
        return self._end(spot)

    def value(self, spot: Spot) -> Value:
        """What an expression is on the rank.

        Args:
            spot: The expression, and the function it stands in.

        Returns:
            The value, unknown where the source does not tell it.
        """
        return self._reading.value(spot)

    def _is_fork(self, node: ast.expr) -> bool:
        """Whether nothing comes from here, and the way could not be gone further."""
        if isinstance(node, ast.Call):
            return bool(self._program.named(called(node)))
        return isinstance(node, ast.Name | ast.Attribute | ast.IfExp)

    def _way(self, spot: Spot) -> ValueWay:
        trail = [spot.place]
        if self._effort.is_deep or self._effort.is_spent:
            return ValueWay(tuple(trail), spot)
        self._effort.depth += 1
        for _ in range(_LONGEST):
            self._effort.work += 1
            before: list[Place] = []
            following = self._before(spot, before)
            if following is None or self._effort.is_spent:
                break
            spot = following
            trail += [*before, spot.place]
        self._effort.depth -= 1
        return ValueWay(tuple(trail), spot)

    def _end(self, spot: Spot) -> Spot:
        return self._way(spot).end

    def _before(self, spot: Spot, trail: list[Place]) -> Spot | None:
        """Where a value was before; None: it comes from here, or the way forks."""
        node, scene = spot.node, spot.scene
        match node:
            case ast.Name():
                return self._bindings.before(node, scene, trail)
            case ast.Attribute():
                return self._attributes.before(node, scene, trail)
            case ast.Subscript(value=base, slice=key):
                return self._lookups.before(Spot(base, scene), key)
            case ast.NamedExpr(value=value) | ast.Await(value=value):
                return Spot(value, scene)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                truth = self.value(Spot(test, scene)).truth
                if truth is None:
                    return None
                return Spot(body if truth else orelse, scene)
            case ast.Call():
                return self._returns.before(node, scene)
        return None


def _argument(call: ast.Call, name: str, position: int) -> list[ast.expr]:
    given = [one.value for one in call.keywords if one.arg == name]
    if 0 <= position < len(call.args) and not any(
        isinstance(part, ast.Starred) for part in call.args
    ):
        given.append(call.args[position])
    if not given:
        given = [item_of(one.value, name) for one in call.keywords if one.arg is None]
    if not given:
        given = [
            value
            for part in call.args
            for node in ast.walk(part)
            if isinstance(node, ast.Dict)
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant) and key.value == name
        ]
    return given
