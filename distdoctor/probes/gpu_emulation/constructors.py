"""Lets `torch.Generator("cuda")` and `torch.device(0)` be made without a GPU.

Both are classes of C that cannot be changed. What takes their names makes objects of
the very same classes, and says that those are its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from distdoctor.probes.gpu_emulation import arithmetic, mixed_devices
from distdoctor.probes.gpu_emulation.replacement import replace
from distdoctor.probes.gpu_emulation.tensor_devices import CPU, as_cuda
from distdoctor.probes.import_hooks import AroundImports, Load
from distdoctor.probes.recorder import RECORDER

_Generator = torch._C.Generator
_Device = torch._C.device

_KEEPS_TYPES = "torch._dynamo"  # in tables that it makes while it is imported

_OUR_FRAMES = 2  # between a user's line and torch.jit.script: it looks up names there

_given_back: list[bool] = []


def install() -> None:
    """Replace the two classes."""
    torch.Generator = Generator  # type: ignore[misc]
    torch.device = Device  # type: ignore[misc]
    if _KEEPS_TYPES not in sys.modules:
        AroundImports({_KEEPS_TYPES: _with_true_device})
    replace(torch, "compile", _compiling)
    replace(torch.jit, "script", _scripting)


def _give_back() -> None:
    """Compilers ask whether the type of a value *is* torch.device: let it be so."""
    _given_back.append(True)
    mixed_devices.give_back()
    arithmetic.give_back()
    torch.device = _Device  # type: ignore[misc]


def _compiling(made: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    _give_back()
    return made(*args, **kwargs)


def _scripting(
    made: Callable[..., Any],
    obj: Any,
    optimize: Any = None,
    _frames_up: int = 0,
    *args: Any,
    **kwargs: Any,
) -> Any:
    _give_back()
    return made(obj, optimize, _frames_up + _OUR_FRAMES, *args, **kwargs)


class _GivesOthers(type):
    """Metaclass whose classes construct instances of another class."""

    of: type

    def __instancecheck__(cls, other: object) -> bool:
        return isinstance(other, cls.of)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, cls.of)


class Generator(metaclass=_GivesOthers):
    """Stands in for `torch.Generator`, and constructs real generators."""

    of = _Generator

    def __new__(cls, device: Any = "cpu") -> Any:
        """A generator for a device."""
        if as_cuda(device) is not None:
            RECORDER.substituted("random")
            device = CPU
        return _Generator(device=device)


class Device(metaclass=_GivesOthers):
    """Stands in for `torch.device`: a number alone means a CUDA device."""

    of = _Device

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A device."""
        if len(args) == 1 and type(args[0]) is int and not kwargs:
            return _Device("cuda", args[0])
        return _Device(*args, **kwargs)


for kind, name in ((Generator, "Generator"), (Device, "device")):
    kind.__module__, kind.__qualname__ = "torch", name  # for pickle, which looks it up


def _with_true_device(load: Load, module: ModuleType) -> None:
    """Let a part of torch see the true `torch.device` while it is imported."""
    torch.device = _Device  # type: ignore[misc]
    try:
        load(module)
    finally:
        if not _given_back:
            torch.device = Device  # type: ignore[misc]
