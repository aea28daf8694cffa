"""Frozen dataclasses that cost next to nothing to declare, as ranks declare hundreds.

`dataclasses` writes and compiles the methods of each class: half a millisecond, in each
process of a job, before its first line. Here all classes share their methods.
"""

from __future__ import annotations

from collections.abc import Callable, KeysView
from dataclasses import MISSING, FrozenInstanceError, dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

__all__ = ["value"]

if TYPE_CHECKING:
    from dataclasses import dataclass as value

    class _Value:
        _names: KeysView[str]
        _defaults: dict[str, Any]
        _in_order: Callable[[object], Any]

else:

    def value(
        *, frozen: bool, slots: bool, kw_only: bool
    ) -> Callable[[type[Any]], type[Any]]:
        """Make a class a dataclass, as `dataclass` does with these three options.

        It may have no fields with a factory, and is made by names alone.

        Args:
            frozen: Always true, like the two after it; said where it is used, for
                type checkers take this for `dataclass`.
            slots: …
            kw_only: …
        """
        if not (frozen and slots and kw_only):
            raise TypeError("a value is frozen, has slots and is made by names")
        return _made


_put = object.__setattr__


def _made(kind: type[Any]) -> type[Any]:
    kind = dataclass(init=False, repr=False, eq=False, slots=True, kw_only=True)(kind)
    known = fields(kind)
    kind._names = dict.fromkeys(field.name for field in known).keys()
    kind._defaults = {
        field.name: field.default for field in known if field.default is not MISSING
    }
    kind._in_order = attrgetter(*kind._names or ["__class__"])
    for name, method in _METHODS.items():
        setattr(kind, name, method)
    return kind


def _init(self: _Value, /, **given: Any) -> None:
    values = {**self._defaults, **given}
    if values.keys() != self._names:
        wrong = ", ".join(sorted(values.keys() ^ self._names))
        raise TypeError(f"{type(self).__name__} lacks, or does not have: {wrong}")
    for name, one in values.items():
        _put(self, name, one)


def _is_equal(self: _Value, other: object) -> bool:
    if other.__class__ is not self.__class__:
        return NotImplemented  # type: ignore[no-any-return]
    equal: bool = self._in_order(self) == self._in_order(other)
    return equal


def _hash(self: _Value) -> int:
    return hash(self._in_order(self))


def _repr(self: _Value) -> str:
    told = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._names)
    return f"{type(self).__qualname__}({told})"


def _refuse(_: _Value, name: str, *_to: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _state(self: _Value) -> dict[str, Any]:
    return {name: getattr(self, name) for name in self._names}


def _set_state(self: _Value, state: dict[str, Any]) -> None:
    for name, one in state.items():
        _put(self, name, one)


_METHODS = {
    "__init__": _init,
    "__eq__": _is_equal,
    "__hash__": _hash,
    "__repr__": _repr,
    "__setattr__": _refuse,
    "__delattr__": _refuse,
    "__getstate__": _state,
    "__setstate__": _set_state,
}
