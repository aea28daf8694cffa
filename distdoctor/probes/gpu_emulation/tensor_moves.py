"""Emulates moving tensors and modules to GPUs, while they stay on the CPU.

A move copies where it would copy on a GPU, so that later in-place changes go to the
copy; values are those of the same script on the CPU.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.jit import _builtins
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils.data import dataloader

from distdoctor.probes.gpu_emulation.replacement import replace
from distdoctor.probes.gpu_emulation.tensor_devices import (
    CPU,
    CPU_AS_NAMED,
    as_cuda,
    asked_by_user,
    cuda_at,
    current,
    default_place,
    is_cpu,
    is_left_behind,
    is_outside,
    is_pinned,
    known_place,
    moves_for_user,
    pin,
    place_of,
    put,
    put_storage,
    state,
    touch,
)
from distdoctor.probes.patching import call_as
from distdoctor.probes.recorder import RECORDER

_LIKE = ("empty", "full", "ones", "rand", "randint", "randn", "zeros")
_NEW = ("empty", "empty_strided", "full", "ones", "tensor", "zeros")
_OF_MEMORY = ("from_file", "from_numpy", "frombuffer")
_ADOPTS = ("as_tensor", "asarray")
_TYPES = {
    name: getattr(torch, name)
    for kind in (
        *("Float", "Double", "Half", "BFloat16", "Bool"),
        *("Long", "Int", "Short", "Char", "Byte"),
    )
    if hasattr(torch, name := f"{kind}Tensor")
}

_Device = torch._C.device
_made_to = torch._C.TensorBase.to
_device_of = torch._C.TensorBase.device.__get__


def install() -> None:
    """Replace the functions and methods that move or make tensors."""
    _watch_moves()
    _watch_questions()
    _watch_factories()
    _watch_defaults()
    replace(torch, "load", _load)
    replace(torch._utils, "_get_restore_location", _rebuilt_at)
    # It is said of loaders that pin memory, and meant for whoever could do otherwise.
    dataloader.warnings = _PinningWithoutWarning()  # type: ignore[attr-defined, assignment]


class _PinningWithoutWarning:
    """Python's `warnings`, as loaders see it, without one that holds for no GPU job."""

    def __getattr__(self, name: str) -> Any:
        return getattr(warnings, name)

    def warn(
        self, message: Any, category: Any = None, stacklevel: int = 1, **named: Any
    ) -> None:
        """Warn, unless it is of memory that cannot be pinned."""
        if not str(message).startswith("'pin_memory' argument is set as true"):
            warnings.warn(message, category, stacklevel + 1, **named)


# --- moves ---


def _watch_moves() -> None:
    Tensor.to = _to  # type: ignore[method-assign, assignment]
    Tensor.cuda = _cuda  # type: ignore[method-assign, assignment]
    replace(Tensor, "cpu", _cpu)
    replace(Tensor, "pin_memory", _pin_memory)
    replace(Tensor, "is_pinned", _is_pinned)
    replace(Tensor, "type", _type)
    replace(Tensor, "type_as", _type_as)
    replace(Tensor, "record_stream", _record_stream)
    replace(torch.nn.Module, "to", _module_to)
    replace(UntypedStorage, "cuda", _storage_cuda)


@functools.wraps(Tensor.to)
def _to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    first = args[0] if args else kwargs.get("device")
    kind = type(first)
    if kind is torch.dtype or first is None:
        return _made_to(self, *args, **kwargs)
    if isinstance(first, Tensor):
        return _to_that_of(self, first, args, kwargs)
    target = as_cuda(first)
    if target is None:
        if state.touched and is_cpu(first):
            _note_return(self)
            if moves_for_user():
                return _to_cpu(self, args, kwargs)
            if is_left_behind(self):  # torch may move it to the device of a mesh
                put(self, CPU_AS_NAMED)
        return _made_to(self, *args, **kwargs)
    return _to_cuda(self, target, args, kwargs)


def _to_cuda(
    self: Tensor, target: torch.device, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    touch()
    known = known_place(self)
    if args:
        args = (CPU, *args[1:])
    else:
        kwargs = {**kwargs, "device": CPU}
    # Of what is not known to be elsewhere one may hope that it is there already.
    if known is not None and known != target and len(args) < _AT_COPY:
        kwargs = {**kwargs, "copy": True}
    moved = _made_to(self, *args, **kwargs)
    if moved is not self:
        put(moved, cuda_at(target.index))
    elif known is None or known != target:
        put(
            moved, _Device("cuda", target.index)
        )  # perhaps it is; see `is_surely_there`
    return moved


def _note_return(self: Tensor) -> None:
    if self.requires_grad and not self.is_leaf:
        state.left_gpu = True


_AT_COPY = 4  # to(device, dtype, non_blocking, copy)


def _to_cpu(self: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    _note_return(self)
    if place_of(self).type != "cuda" or len(args) >= _AT_COPY:
        return _made_to(self, *args, **kwargs)
    moved = _made_to(self, *args, **{**kwargs, "copy": True})
    put(moved, CPU_AS_NAMED)
    return moved


def _to_that_of(
    self: Tensor, other: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    """`to(other)`: to its device and dtype."""
    if not state.touched or len(args) > 1:
        return _made_to(self, *args, **kwargs)
    target = place_of(other)
    if target.type == "cuda":
        return _to_cuda(self, target, (target, other.dtype), kwargs)
    return _to_cpu(self, (CPU, other.dtype), kwargs)


def _type_as(made: Callable[..., Any], self: Tensor, other: Tensor) -> Any:
    if state.touched and type(self) is type(other) is Tensor:
        return _to_that_of(self, other, (), {})
    return made(self, other)


@functools.wraps(Tensor.cuda)
def _cuda(self: Tensor, device: Any = None, *args: Any, **kwargs: Any) -> Tensor:
    target = cuda_at(current.index) if device is None else as_cuda(device)
    if target is None:
        if type(device) is str:
            _Device(device)  # torch first says whether it is one
        raise ValueError(f"Invalid device, must be cuda device: {device}")
    kwargs.pop("async", None)
    if args:
        kwargs["non_blocking"] = args[0]
    return _to_cuda(self, target, (target,), kwargs)


def _cpu(made: Callable[..., Any], self: Tensor, *args: Any, **kwargs: Any) -> Any:
    _note_return(self)
    if state.touched and moves_for_user(3) and not args:
        there = _to_cpu(self, (CPU,), kwargs)
        if there is not self:
            put(there, CPU)
        return there
    return made(self, *args, **kwargs)


def _module_to(
    made: Callable[..., Any], self: torch.nn.Module, *args: Any, **kwargs: Any
) -> Any:
    if args and type(args[0]) is int:
        args = (as_cuda(args[0]), *args[1:])
    elif type(kwargs.get("device")) is int:
        kwargs["device"] = as_cuda(kwargs["device"])
    return made(self, *args, **kwargs)


def _pin_memory(made: Callable[..., Any], self: Tensor, *args: Any) -> Any:
    if _device_of(self) != CPU:
        return made(self, *args)
    RECORDER.substituted("pinned")
    if is_pinned(self):
        return self
    copy = self.clone()
    pin(copy)
    return copy


def _is_pinned(_made: Callable[..., Any], self: Tensor, *_args: Any) -> bool:
    return is_pinned(self)


def _record_stream(_made: Callable[..., Any], _self: Tensor, _stream: Any) -> None:
    RECORDER.substituted("streams")


def _type(made: Callable[..., Any], self: Tensor, *args: Any, **kwargs: Any) -> Any:
    dtype = args[0] if args else kwargs.pop("dtype", None)
    if dtype is None:
        type_name: str = made(self)
        if type_name.startswith("torch.") and asked_by_user(3) and _is_cuda(self):
            return "torch.cuda." + type_name.removeprefix("torch.")
        return type_name
    _note_return(self)
    if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
        plain = made(self, "torch." + dtype.removeprefix("torch.cuda."))
        return plain.cuda()
    return made(self, dtype, *args[1:], **kwargs)


def _storage_cuda(
    _made: Callable[..., Any], self: UntypedStorage, device: Any = None, **_kw: Any
) -> UntypedStorage:
    touch()
    target = as_cuda(device) if device is not None else None
    put_storage(self, target or cuda_at(current.index))
    return self


# --- questions ---


def _watch_questions() -> None:
    kinds: dict[str, Callable[..., Any]] = {
        "device": _device,
        "is_cuda": _is_cuda,
        "is_cpu": _is_cpu,
    }
    for name, answer in kinds.items():
        setattr(Tensor, name, _property(name, answer))
    replace(Tensor, "get_device", _get_device)


def _property(name: str, answer: Callable[[Tensor], Any]) -> property:
    truth = getattr(torch._C.TensorBase, name).__get__
    frame_at = sys._getframe

    # Written out: an optimizer asks for each parameter.
    def ask(self: Tensor) -> Any:
        if state.touched:
            try:
                outside = is_outside[frame_at(1).f_globals["__name__"]]
            except (KeyError, ValueError):
                outside = asked_by_user()
            if outside:
                return answer(self)
        return truth(self)

    return property(ask, doc=f"See torch's documentation of Tensor.{name}.")


def _device(self: Tensor) -> torch.device:
    real: torch.device = _device_of(self)
    return place_of(self) if real.type == "cpu" else real


def _is_cuda(self: Tensor) -> bool:
    return _device(self).type == "cuda"


def _is_cpu(self: Tensor) -> bool:
    return _device(self).type == "cpu"


def _get_device(made: Callable[..., Any], self: Tensor) -> Any:
    if state.touched and asked_by_user(3) and _is_cuda(self):
        return _device(self).index
    return made(self)


# --- new tensors ---


def _watch_factories() -> None:
    makers = {id(function) for function in _device_constructors()}
    for namespace in (torch, torch.fft, torch.nested):
        for name, function in list(vars(namespace).items()):
            if id(function) in makers:
                around = _adopting if name in _ADOPTS else _factory
                _put(namespace, name, around)
    for name in ("normal", *_OF_MEMORY):
        _put(torch, name, _factory)
    for name in _LIKE:
        _put(torch, f"{name}_like", _alike)
    for name in _NEW:
        _put(Tensor, f"new_{name}", _alike)
    for name in _TYPES:
        if hasattr(torch.cuda, name):
            delattr(torch.cuda, name)
    torch.cuda.__getattr__ = _type_of_cuda  # type: ignore[method-assign]


def _type_of_cuda(name: str) -> Any:
    """`torch.cuda.FloatTensor`: what it makes cannot be told from what torch's does."""
    if name not in _TYPES:
        raise AttributeError(f"module 'torch.cuda' has no attribute '{name}'")
    state.doubtful = True
    return _TYPES[name]


def _put(owner: Any, name: str, around: Callable[..., Any]) -> None:
    made = getattr(owner, name)
    function = around(made)
    setattr(owner, name, function)
    # TorchScript knows functions by their identity.
    scripted: dict[int, str] | None = _builtins._builtin_table
    if scripted is not None and id(made) in scripted:
        scripted[id(function)] = scripted[id(made)]


def _factory(made: Callable[..., Any]) -> Callable[..., Any]:
    """Around a function that makes a tensor of what is none."""

    @functools.wraps(made)
    def make(*args: Any, **kwargs: Any) -> Any:
        if "out" in kwargs:
            return made(*args, **kwargs)
        device = kwargs.get("device")
        target = as_cuda(device)
        if target is not None:
            return _made_there(made, args, kwargs, target)
        pinned = kwargs.get("pin_memory") and kwargs.pop("pin_memory")
        result = _made_of(made, args, kwargs)
        if device is None:
            put(result, default_place())
        else:
            _put_if_named(result)
        if pinned:
            RECORDER.substituted("pinned")
            pin(result)
        return result

    return make


def _made_of(
    made: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], up: int = 0
) -> Any:
    """What a function makes; it warns, at its caller's line, where a tensor is given.

    Args:
        made: The function.
        args: What it is called with.
        kwargs: And by name.
        up: Frames of ours between this one's caller and the user's line.
    """
    if made in _WARNING and any(isinstance(one, Tensor) for one in args[-1:]):
        return call_as(sys._getframe(2 + up), made, args, kwargs)
    return made(*args, **kwargs)


_WARNING = {torch.tensor, Tensor.new_tensor}


def _made_there(
    made: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    target: torch.device,
) -> Any:
    touch()
    result = _made_of(made, args, {**kwargs, "device": CPU}, 1)
    put(result, cuda_at(target.index))
    return result


def _put_if_named(result: Tensor) -> None:
    """Note that a line of the user's, two frames up, named the CPU."""
    if asked_by_user(_TWO_UP) and _device_of(result) == CPU:
        put(result, CPU_AS_NAMED)


_TWO_UP = 3  # `asked_by_user` counts its own caller too


def _adopting(made: Callable[..., Any]) -> Callable[..., Any]:
    """Around a function that makes a tensor, or takes the one that it is given."""

    @functools.wraps(made)
    def make(*args: Any, **kwargs: Any) -> Any:
        target = as_cuda(kwargs.get("device"))
        if target is None:
            if args and isinstance(args[0], Tensor):
                _note_return(args[0])
            return made(*args, **kwargs)
        kwargs["device"] = CPU
        result = made(*args, **kwargs)
        if not (args and isinstance(args[0], Tensor)):
            put(result, CPU)  # the memory may be that of an array
        return _to_cuda(result, target, (target,), {})

    return make


def _alike(made: Callable[..., Any]) -> Callable[..., Any]:
    """Around a function that makes a tensor after the likeness of another."""

    @functools.wraps(made)
    def make(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("pin_memory"):
            del kwargs["pin_memory"]
        device = kwargs.get("device")
        target = as_cuda(device)
        if target is not None:
            return _made_there(made, args, kwargs, target)
        result = _made_of(made, args, kwargs)
        if device is not None:
            _put_if_named(result)
            return result
        known = known_place(args[0]) if args else None
        if known is not None and asked_by_user():
            put(result, known)
        return result

    return make


# --- defaults ---


def _watch_defaults() -> None:
    made = DeviceContext.__init__

    @functools.wraps(made)
    def initialise(self: Any, device: Any) -> None:
        target = as_cuda(device)
        state.contexts = True
        made(self, device if target is None else CPU)
        if target is not None:
            touch()
            self.asked = torch.device(device) if type(device) is str else target

    DeviceContext.__init__ = initialise  # type: ignore[method-assign]
    replace(torch, "get_default_device", _get_default_device)
    replace(torch, "set_default_tensor_type", _set_default_tensor_type)


def _get_default_device(made: Callable[..., Any]) -> Any:
    return default_place() if asked_by_user(3) else made()


def _set_default_tensor_type(made: Callable[..., Any], kind: Any, /) -> None:
    name = kind if isinstance(kind, str) else ""
    if name.startswith("torch.cuda."):
        touch()
        state.contexts = state.tensor_type = True
        kind = "torch." + name.removeprefix("torch.cuda.")
    made(kind)


# --- files ---


def _load(made: Callable[..., Any], f: Any, *args: Any, **kwargs: Any) -> Any:
    asked = args[0] if args else kwargs.pop("map_location", None)
    return made(f, _mapped(asked), *args[1:], **kwargs)


def _rebuilt_at(made: Callable[..., Any], device: Any) -> Any:
    """Where torch makes a tensor anew that stands for others, such as a DTensor.

    torch asks for that where storages are mapped by a function, and refuses.
    """
    mapping: object = torch.serialization._serialization_tls.map_location
    return "cpu" if isinstance(mapping, _Mapping) else made(device)


class _Mapping:
    """A `map_location` that leaves all on the CPU and notes where it would be."""

    def __init__(self, target_of: Callable[[str], torch.device | None]) -> None:
        self._target_of = target_of

    def __call__(self, storage: UntypedStorage, location: str) -> Any:
        target = self._target_of(location)
        if target is not None:
            return _laid(storage, target)
        return storage if location.startswith("cuda") else None


def _mapped(asked: Any) -> Any:
    """What torch is given for a `map_location` of the user's."""
    if isinstance(asked, (str, torch.device)):
        target = as_cuda(asked) or CPU_AS_NAMED
        if target is CPU_AS_NAMED and not is_cpu(asked):
            return asked
        return _Mapping(lambda _: target)
    if asked is None or isinstance(asked, dict):
        names: dict[Any, Any] = asked or {}

        def target_of(location: str) -> torch.device | None:
            wanted = names.get(location, location)
            target = as_cuda(wanted)
            # What was saved is told to be on the CPU, wherever it would have been.
            state.doubtful |= target is None and wanted is location
            return target

        return _Mapping(target_of)
    return asked


def _laid(storage: UntypedStorage, target: torch.device) -> UntypedStorage:
    if target.type == "cuda":
        touch()
    put_storage(storage, target)
    return storage
