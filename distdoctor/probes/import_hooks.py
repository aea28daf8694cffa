"""Runs code of ours around the import of a module, whenever that happens."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

Load = Callable[[ModuleType], None]
"""Runs a module's code."""


class AroundImports(importlib.abc.MetaPathFinder):
    """A finder, first on `sys.meta_path`, that wraps the loading of modules once.

    Args:
        around: By a module's full name, what is called in place of its loading, with
            the loading itself and the module.
    """

    def __init__(
        self, around: Mapping[str, Callable[[Load, ModuleType], None]]
    ) -> None:
        self._waiting = dict(around)
        sys.meta_path.insert(0, self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Find a module as Python would, and wrap its loader."""
        around = self._waiting.pop(fullname, None)
        if around is None:
            return None
        if not self._waiting and self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module
            spec.loader.exec_module = (  # type: ignore[method-assign]
                lambda module: around(load, module)
            )
        return spec
