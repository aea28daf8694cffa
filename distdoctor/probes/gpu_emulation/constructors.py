"""Lets `torch.Generator("cuda")` and `torch.device(0)` be made without a GPU.

Both are classes of C. They stay what they are, and only make their objects in another
way; where that cannot be, nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from distdoctor.probes.gpu_emulation import arithmetic, c_classes, mixed_devices
from distdoctor.probes.gpu_emulation.replacement import replace
from distdoctor.probes.gpu_emulation.tensor_devices import CPU, as_cuda
from distdoctor.probes.recorder import RECORDER

_OUR_FRAMES = 2  # between a user's line and torch.jit.script: it looks up names there


def install() -> None:
    """Go around the making of generators and devices, and around compilers."""
    c_classes.make_by(torch._C.Generator, _generator)
    c_classes.make_by(torch._C.device, _device)
    replace(torch, "compile", _compiling)
    replace(torch.jit, "script", _scripting)


def _give_back() -> None:
    """Let compilers see torch's own functions of tensors, which they know."""
    mixed_devices.give_back()
    arithmetic.give_back()


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


def _generator(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    device = args[0] if args else kwargs.get("device")
    if as_cuda(device) is not None:
        RECORDER.substituted("random")
        args, kwargs = (), {"device": CPU}
    return make(*args, **kwargs)


def _device(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A number alone means a CUDA device."""
    if len(args) == 1 and type(args[0]) is int and not kwargs:
        return make("cuda", args[0])
    return make(*args, **kwargs)
