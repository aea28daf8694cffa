"""Stands in for `torch.cuda` and `torch.accelerator`: devices and their properties.

There are as many devices as the node has ranks, each like a common GPU. torch itself,
when it asks, is told that there is none.
"""

from __future__ import annotations

import os
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace, TracebackType
from typing import Any

import torch

from distdoctor.probes.gpu_emulation.replacement import put_everywhere
from distdoctor.probes.gpu_emulation.tensor_devices import (
    asked_by_user,
    choose,
    current,
    place_of,
    state,
)
from distdoctor.probes.gpu_emulation.visible_gpus import number_of_devices
from distdoctor.probes.recorder import RECORDER

CAPABILITY = (8, 0)  # the oldest that has all that scripts ask for, bfloat16 for one
MEMORY_BYTES = 80 * 1024**3
NAME = "GPU simulated on the CPU"
NCCL = (2, 27, 5)
CUDNN = 91002

_SEED = 67280421310721  # of a generator that nobody has seeded (torch 2.13, c10)


def install() -> None:
    """Replace the functions of these modules."""
    cuda, accelerator = torch.cuda, torch.accelerator
    _put(_DEVICES, cuda)
    _put(_MEMORY, cuda, cuda.memory)
    _put(_RANDOM, cuda, cuda.random)
    _put(_NVTX, cuda.nvtx)
    _put(_PROFILER, cuda.profiler)
    _put({"version": _nccl_version, "is_available": _yes}, cuda.nccl)
    _put(
        {"version": _cudnn_version, "is_available": is_available}, torch.backends.cudnn
    )
    _put(_ACCELERATOR, accelerator)
    for name in ("empty_cache", "memory_stats", *_ALL_FIGURES, *_RESETS):
        if hasattr(accelerator, name):
            _put({name: _MEMORY[name]}, accelerator)


def _put(functions: dict[str, Any], *owners: ModuleType | Any) -> None:
    for name, function in functions.items():
        put_everywhere(name, function, *owners)


def index_of(device: Any) -> int:
    """The index of a device, given in any form that torch accepts."""
    if isinstance(device, int):
        return device
    if device is None or (named := torch.device(device)).index is None:
        return current.index
    return named.index


# --- devices ---


def is_available() -> bool:
    """Whether there are devices; stands in for `torch.cuda.is_available`."""
    return asked_by_user() and number_of_devices() > 0


def device_count() -> int:
    """The number of devices; stands in for `torch.cuda.device_count`."""
    return number_of_devices() if asked_by_user() else 0


def set_device(device: Any) -> None:
    """Set this thread's current device."""
    RECORDER.substituted("devices")
    if (index := index_of(device)) >= 0:
        choose(index)


def current_device() -> int:
    """The index of this thread's current device."""
    return current.index


class Chosen:
    """Context manager that stands in for `torch.cuda.device`."""

    def __init__(self, device: Any) -> None:
        self.idx = -1 if device is None else index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = current.index
        if self.idx >= 0:
            choose(self.idx)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        choose(self.prev_idx)


class ChosenBy(Chosen):
    """Context manager that stands in for `torch.cuda.device_of`."""

    def __init__(self, obj: Any) -> None:
        place = place_of(obj)
        super().__init__(place if place.type == "cuda" else None)


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """There is nothing to do."""


def _zero(*_args: Any, **_kwargs: Any) -> int:
    return 0


def _yes(*_args: Any, **_kwargs: Any) -> bool:
    return True


def _name(_device: Any = None) -> str:
    RECORDER.substituted("properties")
    return NAME


def _capability(_device: Any = None) -> tuple[int, int]:
    RECORDER.substituted("properties")
    return CAPABILITY


def _properties(_device: Any = None) -> SimpleNamespace:
    RECORDER.substituted("properties")
    return SimpleNamespace(
        name=NAME,
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        total_memory=MEMORY_BYTES,
        multi_processor_count=108,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=166912,
        shared_memory_per_multiprocessor=167936,
        warp_size=32,
        L2_cache_size=41943040,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName="",
        uuid="",
        pci_bus_id=0,
        pci_device_id=0,
        pci_domain_id=0,
    )


def _is_initialized() -> bool:
    return state.touched and asked_by_user()


def _nccl_version() -> tuple[int, int, int]:
    return NCCL


def _cudnn_version() -> int | None:
    return CUDNN if asked_by_user() else None


def _cudart() -> SimpleNamespace:
    calls = (
        *("cudaProfilerStart", "cudaProfilerStop", "cudaDeviceSynchronize"),
        *("cudaHostRegister", "cudaHostUnregister", "cudaSetDevice"),
    )
    functions: dict[str, Any] = dict.fromkeys(calls, _zero)
    return SimpleNamespace(**functions, cudaMemGetInfo=_free_and_total)


_DEVICES: dict[str, Any] = {
    "is_available": is_available,
    "device_count": device_count,
    "set_device": set_device,
    "current_device": current_device,
    "device": Chosen,
    "device_of": ChosenBy,
    "synchronize": _nothing,
    "init": _nothing,
    "ipc_collect": _nothing,
    "is_initialized": _is_initialized,
    "is_bf16_supported": _yes,
    "is_tf32_supported": _yes,
    "can_device_access_peer": _yes,
    "get_device_name": _name,
    "get_device_capability": _capability,
    "get_device_properties": _properties,
    "get_arch_list": lambda: [f"sm_{CAPABILITY[0]}{CAPABILITY[1]}"],
    "get_sync_debug_mode": _zero,
    "set_sync_debug_mode": _nothing,
    "current_blas_handle": _zero,
    "cudart": _cudart,
    **dict.fromkeys(
        ("utilization", "memory_usage", "temperature", "power_draw", "clock_rate"),
        _zero,
    ),
    "device_memory_used": _zero,
}


# --- memory ---


def _free_and_total(_device: Any = None) -> tuple[int, int]:
    RECORDER.substituted("memory")
    return MEMORY_BYTES, MEMORY_BYTES


def _figure(*_args: Any, **_kwargs: Any) -> int:
    RECORDER.substituted("memory")
    return 0


def _figures(*_args: Any, **_kwargs: Any) -> dict[str, int]:
    RECORDER.substituted("memory")
    return defaultdict(int, OrderedDict())


def _summary(*_args: Any, **_kwargs: Any) -> str:
    RECORDER.substituted("memory")
    return "no device memory is used: the job runs on the CPU"


_ALL_FIGURES = (
    *("memory_allocated", "max_memory_allocated"),
    *("memory_reserved", "max_memory_reserved"),
)
_RESETS = ("reset_peak_memory_stats", "reset_accumulated_memory_stats")

_MEMORY: dict[str, Any] = {
    "mem_get_info": _free_and_total,
    "memory_stats": _figures,
    "memory_stats_as_nested_dict": _figures,
    "memory_summary": _summary,
    "list_gpu_processes": _summary,
    "memory_snapshot": lambda *_args, **_kwargs: [],
    **dict.fromkeys((*_ALL_FIGURES, "memory_cached", "max_memory_cached"), _figure),
    **dict.fromkeys(
        (
            *_RESETS,
            *("reset_max_memory_allocated", "reset_max_memory_cached"),
            *("empty_cache", "set_per_process_memory_fraction"),
            *("_record_memory_history", "_dump_snapshot"),
        ),
        _nothing,
    ),
}


# --- random numbers: each device remembers what it was told, and draws nothing ---

_seeds: defaultdict[int, tuple[int, int]] = defaultdict(lambda: (_SEED, 0))


def _seed_all(seed: int) -> None:
    """Also called by `torch.manual_seed`."""
    _seeds.clear()
    _seeds.default_factory = lambda: (int(seed), 0)


def _manual_seed(seed: int) -> None:
    RECORDER.substituted("random")
    _seeds[current.index] = int(seed), 0


def _manual_seed_all(seed: int) -> None:
    if asked_by_user():
        RECORDER.substituted("random")
    _seed_all(seed)


def _fresh_seed() -> None:
    _manual_seed(int.from_bytes(os.urandom(7)))


def _fresh_seeds() -> None:
    _manual_seed_all(int.from_bytes(os.urandom(7)))


def _initial_seed() -> int:
    return _seeds[current.index][0]


def _rng_state(device: Any = None) -> torch.Tensor:
    """16 bytes, as a device's generator has them: seed and offset."""
    RECORDER.substituted("random")
    seed, offset = _seeds[index_of(device)]
    data = (seed % 2**64).to_bytes(8, "little") + offset.to_bytes(8, "little")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    data = bytes(new_state.tolist())
    seed, offset = (int.from_bytes(part, "little") for part in (data[:8], data[8:16]))
    _seeds[index_of(device)] = seed, offset


def _rng_states() -> list[torch.Tensor]:
    return [_rng_state(index) for index in range(number_of_devices())]


def _set_rng_states(new_states: Iterable[torch.Tensor]) -> None:
    for index, new_state in enumerate(new_states):
        _set_rng_state(new_state, index)


_RANDOM: dict[str, Any] = {
    "manual_seed": _manual_seed,
    "manual_seed_all": _manual_seed_all,
    "seed": _fresh_seed,
    "seed_all": _fresh_seeds,
    "initial_seed": _initial_seed,
    "get_rng_state": _rng_state,
    "set_rng_state": _set_rng_state,
    "get_rng_state_all": _rng_states,
    "set_rng_state_all": _set_rng_states,
}


# --- profiling ---


def _mark(*_args: Any, **_kwargs: Any) -> int:
    RECORDER.substituted("profiling")
    return 0


@contextmanager
def _range(*_args: Any, **_kwargs: Any) -> Any:
    RECORDER.substituted("profiling")
    yield


_NVTX: dict[str, Any] = {
    **dict.fromkeys(("range_push", "range_pop", "range_start", "mark"), _mark),
    "range_end": _nothing,
    "range": _range,
}

_PROFILER: dict[str, Any] = {"start": _mark, "stop": _mark, "profile": _range}


# --- torch.accelerator ---

_current_accelerator = torch.accelerator.current_accelerator


def _accelerator(check_available: bool = False) -> torch.device | None:
    if asked_by_user():
        return torch.device("cuda") if number_of_devices() else None
    return None if check_available else _current_accelerator()


_ACCELERATOR: dict[str, Callable[..., Any]] = {
    "is_available": is_available,
    "device_count": device_count,
    "current_accelerator": _accelerator,
    "current_device_index": current_device,
    "current_device_idx": current_device,
    "set_device_index": set_device,
    "set_device_idx": set_device,
    "device_index": Chosen,
    "synchronize": _nothing,
    "get_memory_info": _free_and_total,
    "empty_host_cache": _nothing,
}
