"""Tracks on which device each tensor would lie if there were GPUs.

A tensor's place is that of its memory: views, `detach` and `data` share it, and a move
to another device gives new memory. So places are kept by storage. What an operation
makes of tensors gets no entry; once the job has used a GPU such a tensor is taken to be
there, because that is what scripts have GPUs for. What there is when the first one is
used gets one: nothing of it can be there, unless something could have put it there that
is not seen.

The table holds weak references: an address is not used again while it is in there
(torch 2.8 to 2.13, `torch.multiprocessing.reductions.StorageWeakRef` relies on it too).
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import UntypedStorage
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from distdoctor.probes.call_sites import call_site, frame_above
from distdoctor.probes.harmless import harmless
from distdoctor.probes.recorder import RECORDER

_Device = torch._C.device  # `torch.device` will be ours, and slow to ask

CPU = _Device("cpu")
"""Of tensors that are on the CPU for sure: no device was named, or `cpu()` asked."""

CPU_AS_NAMED = _Device("cpu")
"""Of those for which the CPU was named: it may be what torch has told the script of
another object. Equal to `CPU`, and not the same."""

_FIRST_LIMIT = 4096

_COMPILERS = ("torch._dynamo.", "torch._functorch.", "torch._inductor.")

_INSIDE = ("torch.", "distdoctor.")

_AS_USERS = {
    "torch.nn.modules.batchnorm",  # SyncBatchNorm refuses tensors of the CPU
    "torch.amp.autocast_mode",  # custom_fwd casts tensors of one device
    "torch.distributed.run",  # may be asked for a rank for each GPU
}
"""Modules of torch that are told what users are told."""

_OF_TESTS = "torch.testing._internal."
"""What users' tests are made with: it skips where it sees too few devices."""

is_outside: dict[str, bool] = {}
"""Whether a module is told what users are told, by its name; of those that asked."""

_known: dict[int, torch.device] = {}
_pinned: set[int] = set()
_lock = threading.Lock()
_plain = {torch.Tensor, torch.nn.Parameter}
_memory_of = torch._C.TensorBase.untyped_storage
_device_of = torch._C.TensorBase.device.__get__
_expired = UntypedStorage._expired
_forget = UntypedStorage._free_weak_ref


class _Current(threading.local):
    """The current CUDA device, one in each thread, initially 0."""

    index = 0


class _State:
    touched = False  # this process has put something on a GPU
    touched_at = ""  # the user's line that did so first
    doubtful = False  # something else may have, before it
    contexts = False  # a default device was ever set
    home = 0  # the device that was chosen last, in whatever thread
    tensor_type = False  # the default tensor type was set to one of CUDA
    left_gpu = False  # a result that has a gradient was moved to the CPU
    limit = _FIRST_LIMIT


state = _State()
current = _Current()


_touching = [threading.RLock()]


def _forked() -> None:
    # A worker of a DataLoader has its tensors on the CPU.
    state.doubtful |= state.touched
    state.touched = False
    _touching[:] = [threading.RLock()]


os.register_at_fork(after_in_child=_forked)


def asked_by_user(depth: int = 2) -> bool:
    """Whether code outside of torch calls; torch itself must see the truth.

    Args:
        depth: Number of frames from here up to the caller in question.
    """
    name = _module_above(depth)
    known = is_outside.get(name)
    if known is None:
        inside = name == "torch" or name.startswith(_INSIDE)
        as_users = name in _AS_USERS or name.startswith(_OF_TESTS)
        known = is_outside[name] = as_users or not inside
    return known


def asked_by_compiler(depth: int = 2) -> bool:
    """Whether torch.compile asks, which sets what it has read again when it is done.

    Args:
        depth: As of `asked_by_user`.
    """
    return _module_above(depth).startswith(_COMPILERS)


def moves_for_user(depth: int = 2) -> bool:
    """Whether a move to the CPU is the user's, perhaps through `Module.to`."""
    name = _module_above(depth)
    return name == "torch.nn.modules.module" or not name.startswith(_INSIDE)


def _module_above(depth: int) -> str:
    """Whose line is `depth` frames above the caller; that of C++ counts as torch's."""
    frame = frame_above(depth + 1)
    name = "torch" if frame is None else frame.f_globals.get("__name__")
    return name or ""


def touch() -> None:
    """Note that this process puts something on a GPU."""
    if not state.touched:
        with _touching[0]:  # no thread has anything there before this is through
            if _is_all_on_cpu():
                _leave_all()
            state.touched = True
            state.touched_at = state.touched_at or _users_line() or ""
        RECORDER.substituted("devices")


@harmless
def _users_line() -> str:
    return call_site(2)


def _is_all_on_cpu() -> bool:
    return not (state.touched or state.doubtful)


@harmless
def _leave_all() -> None:
    """Note that all tensors there are lie on the CPU, where nothing else was noted."""
    tensors = [one for one in gc.get_objects() if type(one) in _plain]
    here = [one for one in tensors if _device_of(one) == CPU]
    if any(map(_is_shared, here)):
        return  # what another process gave may lie anywhere, and what is made of it
    for one in here:
        if known_place(one) is None:
            put(one, CPU)


def _is_shared(tensor: torch.Tensor) -> bool:
    try:
        return _memory_of(tensor).is_shared()
    except (NotImplementedError, RuntimeError):  # it has none
        return False


def choose(index: int) -> None:
    """Set this thread's current device."""
    current.index = state.home = index


def is_cpu(device: Any) -> bool:
    """Whether a device argument names the CPU."""
    if type(device) is str:
        return device.startswith("cpu")
    return type(device) is _Device and device.type == "cpu"


def as_cuda(device: Any) -> torch.device | None:
    """The GPU that a device argument means, with its index; None if it is none."""
    kind = type(device)
    if kind is int:
        return cuda_at(device) if device >= 0 else None
    if kind is str:
        if not device.startswith("cuda"):
            return None
        device = _parsed(device)
    elif kind is not _Device:
        return None
    if device.type != "cuda":
        return None
    return cuda_at(current.index) if device.index is None else device


@cache
def cuda_at(index: int) -> torch.device:
    """The GPU of an index; always the same object for one index."""
    return _Device("cuda", index)


@cache
def _parsed(text: str) -> torch.device:
    return _Device(text)


def put(tensor: Any, device: torch.device) -> None:
    """Note on which device a tensor's storage lies."""
    if type(tensor) in _plain:
        try:
            put_storage(_memory_of(tensor), device)
        except (NotImplementedError, RuntimeError):  # it has none: sparse, functorch
            return


def put_storage(storage: UntypedStorage, device: torch.device) -> None:
    """Note on which device a storage lies."""
    key = storage._cdata
    if key not in _known:
        storage._weak_ref()
        if len(_known) > state.limit:
            _prune()
    _known[key] = device


def _prune() -> None:
    with _lock:
        for key in list(_known):
            if _expired(key) and _known.pop(key, None) is not None:
                _pinned.discard(key)
                _forget(key)  # type: ignore[no-untyped-call]
        state.limit = max(_FIRST_LIMIT, 2 * len(_known))


def known_place(tensor: Any) -> torch.device | None:
    """The device noted for a tensor; None if none was."""
    if type(tensor) not in _plain:
        return None
    try:
        return _known.get(_memory_of(tensor)._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def place_of(tensor: Any) -> torch.device:
    """The device of a tensor, as noted or else as assumed."""
    known = known_place(tensor)
    if known is not None:
        return known
    return cuda_at(state.home) if state.touched else CPU


def is_left_behind(tensor: Any) -> bool:
    """Whether a tensor would certainly be on the CPU."""
    return known_place(tensor) is CPU


def are_left_behind(tensors: Iterable[Any]) -> bool:
    """Whether tensors, at least one, would all certainly be on the CPU.

    Before anything was put on a GPU all are, but for those that another process gave.
    """
    all_here = _is_all_on_cpu()
    given = list(tensors)
    return bool(given) and all(
        is_left_behind(one)
        or (all_here and known_place(one) is None and _is_plainly_here(one))
        for one in given
    )


def _is_plainly_here(tensor: Any) -> bool:
    return (
        type(tensor) in _plain and _device_of(tensor) == CPU and not _is_shared(tensor)
    )


def is_surely_there(tensor: Any) -> bool:
    """Whether a tensor would certainly be on a GPU: made there, or copied there.

    The very object of `cuda_at` says so; an equal one that it may be so.
    """
    known = known_place(tensor)
    return known is not None and known.type == "cuda" and known is cuda_at(known.index)


def pin(tensor: torch.Tensor) -> None:
    """Note that a tensor's memory counts as pinned."""
    put(tensor, CPU)
    _pinned.add(_memory_of(tensor)._cdata)


def is_pinned(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory counts as pinned."""
    return known_place(tensor) == CPU and _memory_of(tensor)._cdata in _pinned


def default_place() -> torch.device:
    """The device on which tensors are made by default."""
    if state.contexts:
        modes = _get_current_function_mode_stack()
        for mode in reversed(modes):
            if isinstance(mode, DeviceContext):
                asked = getattr(mode, "asked", mode.device)
                return as_cuda(asked) or mode.device
        if state.tensor_type:
            return cuda_at(current.index)
    return CPU
