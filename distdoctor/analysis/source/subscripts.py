"""Where entries of dictionaries, lists and tuples have their values from."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Final

from distdoctor.analysis.source.program import Program, Use, called, own_nodes
from distdoctor.analysis.source.search_effort import Effort, SourceReading
from distdoctor.analysis.source.value_spots import End, Scene, Spot, attribute_of

_AS_DICT = frozenset({"vars", "asdict"})

_CHANGES = frozenset({"update", "setdefault", "pop", "clear", "popitem"})
"""Methods that change what a dictionary has."""


class Missing:
    """In place of an entry that a dictionary does not have."""


_MISSING: Final = Missing()


class Lookups:
    """What a program looks up in its tables, as one rank would find it.

    Args:
        program: The user's files.
        reading: What the rank makes of the source.
        effort: What was done so far, by others as well.
        end: Follows a value to its end.
    """

    def __init__(
        self, program: Program, reading: SourceReading, effort: Effort, end: End
    ) -> None:
        self._program = program
        self._reading = reading
        self._effort = effort
        self._end = end

    def before(self, base: Spot, key: ast.expr) -> Spot | None:
        """Where an entry was before; None: nobody knows, or there is none.

        Args:
            base: The dictionary, list or tuple.
            key: The key or index.

        Returns:
            The spot, or None.
        """
        found = self.entry(base, key)
        return None if isinstance(found, Missing) else found

    def entry(self, base: Spot, key: ast.expr) -> Spot | Missing | None:
        """An entry of a dictionary, list or tuple; None: nobody knows.

        Args:
            base: The table.
            key: Stands in the same function.

        Returns:
            The spot, `Missing` if there surely is no such entry, or None.
        """
        return self._entry(base, self._key(key, base.scene))

    def _key(self, key: ast.expr, scene: Scene) -> object:
        return self._reading.value(Spot(key, scene)).value

    def _entry(self, base: Spot, key: object) -> Spot | Missing | None:
        if not isinstance(key, str | int) or self._effort.is_spent:
            return None
        self._effort.work += 1
        if isinstance(base.node, ast.Name):
            set_later = self._set_later(base.node, base.scene, key)
            if not isinstance(set_later, Missing):
                return set_later
        end = self._end(base)
        node, scene = end.node, end.scene
        match node:
            case ast.Dict(keys=keys, values=values):
                pairs = list(zip(keys, values, strict=True))
                return self._of_pairs(pairs[::-1], scene, key)
            case ast.Call(args=args, keywords=keywords) if called(node) == "dict":
                given = [
                    (ast.Constant(one.arg) if one.arg else None, one.value)
                    for one in [*(ast.keyword(None, part) for part in args), *keywords]
                ]
                return self._of_pairs(given[::-1], scene, key)
            case ast.Call(func=ast.Attribute(attr="copy", value=inner), args=[]):
                return self._entry(Spot(inner, scene), key)
            case ast.Call(args=[inner]) if called(node) in {"copy", "deepcopy"}:
                return self._entry(Spot(inner, scene), key)
            case ast.Call(args=[inner]) if called(node) in _AS_DICT:
                return Spot(attribute_of(inner, str(key), node), scene)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return self._of_pairs([(None, right), (None, left)], scene, key)
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                plain = not any(isinstance(part, ast.Starred) for part in parts)
                if plain and isinstance(key, int) and -len(parts) <= key < len(parts):
                    return Spot(parts[key], scene)
        return None

    def _of_pairs(
        self,
        pairs: Sequence[tuple[ast.expr | None, ast.expr]],
        scene: Scene,
        key: object,
    ) -> Spot | Missing | None:
        """The first of these pairs that has the key; None stands for a whole merge."""
        for name, value in pairs:
            if name is None:
                found = self._entry(Spot(value, scene), key)
                if not isinstance(found, Missing):
                    return found
                continue
            known = self._key(name, scene)
            if not isinstance(known, str | int):
                return None
            if known == key:
                return Spot(value, scene)
        return _MISSING

    def _set_later(
        self, name: ast.Name, scene: Scene, key: object
    ) -> Spot | Missing | None:
        """What a dictionary is given under a key after it was made."""
        left: Spot | Missing | None = _MISSING
        file = scene.function.file
        for function in self._program.functions:
            for node in own_nodes(function.node) if function.file == file else ():
                match node:
                    case ast.Assign(
                        targets=[ast.Subscript(value=ast.Name(id=word), slice=slot)],
                        value=value,
                    ) if word == name.id:
                        known = self._key(slot, Scene(function))
                        if isinstance(known, str | int) and known != key:
                            continue
                    case ast.Call(func=ast.Attribute(value=ast.Name(id=word))) if (
                        word == name.id and called(node) in _CHANGES
                    ):
                        return None
                    case _:
                        continue
                if function is not scene.function:
                    return None
                if node.lineno > name.lineno:
                    continue
                truth = self._reading.truth(Use(function, value, node.lineno), scene)
                if truth is None or not isinstance(known, str | int):
                    return None
                if truth:
                    left = Spot(value, scene)
        return left
