"""Imports what the probes need without touching, or hiding, the program's own modules.

A program may have a `random.py` or a `statistics.py` beside it, and means that one when
it imports the name. The probes mean Python's. So while probes are imported, such names
are looked up where nothing of the program's lies; and those that the program has a file
for are taken out of `sys.modules` afterwards, so that it finds its own.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_get_ident = __import__("_thread").get_ident

_NEEDED = {"xxhash"}
"""Packages beside Python's own that the probes import."""

_OWN = "distdoctor"


def places_of_environment() -> list[str]:
    """Folders of PYTHONPATH: they come before Python's own."""
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [os.path.abspath(one) for one in named if one]  # noqa: PTH100


def place_of_program() -> str | None:
    """The folder that Python is about to put first on `sys.path`; None if none.

    Asked before it does, which is after `sitecustomize`.
    """
    if sys.flags.safe_path or sys.flags.isolated:
        return None
    first = sys.argv[0] if sys.argv else ""
    if first in {"", "-c", "-m"}:
        return os.getcwd()  # noqa: PTH109 - pathlib costs 5 ms
    if os.path.isdir(first):  # noqa: PTH112
        return first
    return os.path.dirname(os.path.realpath(first))  # noqa: PTH120


class Apart:
    """Inside of it, this thread's imports of Python's own modules find those.

    Garbage is collected later: what is imported is none, and to look for some among all
    that torch has made takes longer than the imports.

    Args:
        places: Where the program's own modules lie.
    """

    def __init__(self, places: Sequence[str]) -> None:
        self._places = [*dict.fromkeys(places)]
        self._path = [one for one in sys.path if one not in self._places]
        self._thread = 0
        self._before: set[str] = set()
        self._collects = False

    def __enter__(self) -> None:
        self._collects = gc.isenabled()
        gc.disable()
        self._thread, self._before = _get_ident(), set(sys.modules)
        sys.meta_path.insert(0, self)

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)
        if self._collects:
            gc.enable()
        fresh = [name for name in sys.modules if name not in self._before]
        hidden = set(filter(self._has, {name.partition(".")[0] for name in fresh}))
        hidden.discard(_OWN)
        for name in fresh:
            if name.partition(".")[0] in hidden:
                del sys.modules[name]

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Find a module of Python's own as if the program's places were not there."""
        if path is not None or _get_ident() != self._thread:
            return None
        if fullname in sys.builtin_module_names:
            return None
        if fullname not in sys.stdlib_module_names and fullname not in _NEEDED:
            return None
        return PathFinder.find_spec(fullname, self._path, target)

    def _has(self, name: str) -> bool:
        """Whether the program has a module of a name."""
        return any(map(os.path.exists, _files(self._places, name)))


def _files(places: Sequence[str], name: str) -> Iterator[str]:
    for place in places:
        yield os.path.join(place, f"{name}.py")  # noqa: PTH118
        yield os.path.join(place, name, "__init__.py")  # noqa: PTH118


_known: list[str] = []
"""`sys.path` as it was before the program's first line, without the program's."""


def at_start() -> Apart:
    """For what is imported before the program's first line."""
    places = places_of_environment()
    _known[:] = [one for one in sys.path if one not in places]
    program = place_of_program()
    return Apart(places if program is None else [*places, program])


def later() -> Apart:
    """For what is imported while the program runs."""
    return Apart([one for one in sys.path if _known and one not in _known])
