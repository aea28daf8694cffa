"""Lets `torch.Generator("cuda")` and `torch.device(0)` be made without a GPU.

Both are classes of C that cannot be changed. What takes their names makes objects of
the very same classes, and says that those are its own.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.stand_ins.places import CPU, as_cuda

_Generator = torch._C.Generator
_Device = torch._C.device

_ASKS_FOR_TYPES = "torch._dynamo"  # whether the type of a value *is* torch.device


def install() -> None:
    """Put the replacements in place."""
    torch.Generator = Generator  # type: ignore[misc]
    if _ASKS_FOR_TYPES not in sys.modules:
        torch.device = Device  # type: ignore[misc]
        sys.meta_path.insert(0, _UntilAskedFor())


class _GivesOthers(type):
    """A class whose instances are those of another."""

    of: type

    def __instancecheck__(cls, other: object) -> bool:
        return isinstance(other, cls.of)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, cls.of)


class Generator(metaclass=_GivesOthers):
    """Makes generators."""

    of = _Generator

    def __new__(cls, device: Any = "cpu") -> Any:
        """A generator for a device."""
        if as_cuda(device) is not None:
            RECORDER.substituted("random")
            device = CPU
        return _Generator(device=device)


class Device(metaclass=_GivesOthers):
    """Makes devices: a number alone is one of CUDA's."""

    of = _Device

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A device."""
        if len(args) == 1 and type(args[0]) is int and not kwargs:
            return _Device("cuda", args[0])
        return _Device(*args, **kwargs)


for kind, name in ((Generator, "Generator"), (Device, "device")):
    kind.__module__, kind.__qualname__ = "torch", name  # for pickle, which looks it up


class _UntilAskedFor(importlib.abc.MetaPathFinder):
    """Gives `torch.device` back when that part of torch is about to be imported."""

    def find_spec(
        self,
        fullname: str,
        _path: Sequence[str] | None = None,
        _target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Find nothing."""
        if fullname == _ASKS_FOR_TYPES:
            torch.device = _Device  # type: ignore[misc]
            if self in sys.meta_path:
                sys.meta_path.remove(self)
        return None
