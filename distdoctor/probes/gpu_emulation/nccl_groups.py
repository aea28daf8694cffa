"""Maps process groups, meshes and wrappers that ask for CUDA to the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DataParallel, DistributedDataParallel

from distdoctor.probes.gpu_emulation import mixed_devices, shared_gpus
from distdoctor.probes.gpu_emulation.replacement import replace
from distdoctor.probes.gpu_emulation.tensor_devices import (
    as_cuda,
    asked_by_user,
    is_left_behind,
    state,
)
from distdoctor.probes.patching import replace_everywhere
from distdoctor.probes.recorder import RECORDER

_asked: dict[str, str] = {}
"""By a group's name, the backend that was asked for."""

_meshes: set[str] = set()
"""Holds "cuda" once a mesh of GPUs was asked for; its parts are made by torch."""

_REFUSES_BATCH_NORM = "_passing_sync_batchnorm_handle"

_AT_OPTIONS = {"init_process_group": 7, "new_group": 3}  # positions of `pg_options`
_AT_BACKEND = {"init_process_group": 0, "new_group": 2}


def install() -> None:
    """Replace the functions and classes."""
    _watch_wrappers()
    if not dist.is_available():
        return
    replace_everywhere(dist.init_process_group, _init_process_group)
    replace_everywhere(dist.new_group, _new_group)
    replace_everywhere(dist.get_backend, _get_backend)
    replace_everywhere(dist.is_nccl_available, _is_nccl_available)
    replace_everywhere(dist.is_backend_available, _is_backend_available)
    for module in (dist, distributed_c10d):
        if not hasattr(module, "ProcessGroupNCCL"):
            module.ProcessGroupNCCL = ProcessGroupNCCL  # type: ignore[attr-defined]
    _watch_meshes(DeviceMesh)


def served(backend: Any) -> Any:
    """The backend that serves the CPU in place of one for GPUs.

    >>> served("nccl"), served("cpu:gloo,cuda:nccl"), served("cuda:nccl"), served("mpi")
    ('gloo', 'cpu:gloo', 'cpu:gloo', 'mpi')
    """
    if not isinstance(backend, str):
        return backend
    text = backend.lower()
    if ":" not in text:
        return "gloo" if text == "nccl" else backend
    parts = dict(part.strip().split(":", 1) for part in text.split(",") if ":" in part)
    if "cuda" not in parts and "nccl" not in parts.values():
        return backend
    own = parts.get("cpu", "gloo")
    return f"cpu:{'gloo' if own == 'nccl' else own}"


def _init_process_group(made: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    args, kwargs, asked = _fitting("init_process_group", args, kwargs)
    result = made(*args, **kwargs)
    _remember(dist.group.WORLD, asked)
    return result


def _new_group(made: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    args, kwargs, asked = _fitting("new_group", args, kwargs)
    group = made(*args, **kwargs)
    world = getattr(dist.group.WORLD, "group_name", "")
    _remember(group, asked if isinstance(asked, str) else _asked.get(world))
    return group


def _fitting(
    function: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """Arguments with which no GPU is needed, and the backend that was asked for."""
    given, at = list(args), _AT_BACKEND[function]
    if len(given) > at:
        asked = given[at]
        given[at] = served(asked)
    else:
        asked = kwargs.get("backend")
        if asked is not None:
            kwargs["backend"] = served(asked)
    if "nccl" in str(asked).lower():
        RECORDER.substituted("nccl")
    options = _AT_OPTIONS[function]
    if len(given) > options and isinstance(given[options], ProcessGroupNCCL.Options):
        given[options] = None
    if isinstance(kwargs.get("pg_options"), ProcessGroupNCCL.Options):
        kwargs["pg_options"] = None
    if as_cuda(kwargs.get("device_id")) is not None:
        kwargs["device_id"] = None
    return tuple(given), kwargs, asked


def _remember(group: Any, asked: Any) -> None:
    name = getattr(group, "group_name", None)
    if isinstance(name, str):
        _asked.pop(name, None)
        if isinstance(asked, str):
            _asked[name] = asked.lower()


def _get_backend(made: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    real = made(*args, **kwargs)
    if not asked_by_user(3):
        return real
    group = args[0] if args else kwargs.get("group")
    asked = asked_backend(group or dist.group.WORLD)
    return dist.Backend("nccl") if asked == "nccl" else real


def asked_backend(group: Any) -> str:
    """The backend that the user asked for when making a group; "" if none."""
    return _asked.get(getattr(group, "group_name", ""), "")


def _is_nccl_available(made: Callable[..., Any]) -> Any:
    return True if asked_by_user(3) else made()


def _is_backend_available(made: Callable[..., Any], backend: str) -> Any:
    return (backend.lower() == "nccl" and asked_by_user(3)) or made(backend)


class ProcessGroupNCCL:
    """Stands in for `ProcessGroupNCCL`; it holds only its options."""

    class Options:
        """NCCL options, which are accepted and ignored."""

        def __init__(self, *_args: Any, **_kwargs: Any) -> None:
            self.config = _Config()
            self.is_high_priority_stream = False


class _Config:
    """An NCCL configuration that accepts any attribute."""


# --- wrappers ---


def _watch_wrappers() -> None:
    made = DistributedDataParallel.__init__

    @functools.wraps(made)
    def initialise(
        self: Any,
        module: Any,
        device_ids: Any = None,
        output_device: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if device_ids is not None and not _was_left_behind(module):
            RECORDER.substituted("devices")
            device_ids = output_device = None
            mixed_devices.movers.add(self)
        group = kwargs.get("process_group") or dist.group.WORLD
        if asked_backend(group) == "nccl":
            shared_gpus.refuse_shared(group, module.parameters())
        made(self, module, device_ids, output_device, *args, **kwargs)

    DistributedDataParallel.__init__ = initialise  # type: ignore[method-assign]
    replace(DistributedDataParallel, _REFUSES_BATCH_NORM, _pass_batch_norm)
    replace(DataParallel, "__init__", _data_parallel)


def _pass_batch_norm(made: Callable[..., Any], self: Any, module: Any) -> None:
    """SyncBatchNorm on the CPU is what `batch_norm` gives it kernels for."""
    if _was_left_behind(module):
        made(self, module)


def _was_left_behind(module: Any) -> bool:
    """Whether a model was never moved to its device: torch then refuses the ids."""
    parameters = list(module.parameters())
    return bool(parameters) and all(map(is_left_behind, parameters))


def _data_parallel(made: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    RECORDER.substituted("replicas")
    made(*args, **kwargs)


def _watch_meshes(mesh: Any) -> None:
    made = mesh.__init__

    @functools.wraps(made)
    def initialise(self: Any, device_type: Any, *args: Any, **kwargs: Any) -> None:
        shared_gpus.excuse()
        state.doubtful = True  # tensors are moved to it by torch
        if device_type == "cuda":
            _meshes.add("cuda")
            device_type = "cpu"
        made(self, device_type, *args, **kwargs)

    mesh.__init__ = initialise
    descriptor = vars(mesh).get("device_type")
    if isinstance(descriptor, property) and descriptor.fget is not None:
        truth = descriptor.fget

        def device_type(self: Any) -> Any:
            real = truth(self)
            asked = real == "cpu" and _meshes and asked_by_user()
            return "cuda" if asked else real

        mesh.device_type = property(device_type)


def _copied_to_cpu(
    made: Callable[..., Any], self: Any, *args: Any, **kwargs: Any
) -> None:
    """What is on the CPU already is copied only if it is not asked to be moved there.

    Else torch reads what it gathered when that is freed: a segmentation fault.
    """
    made(self, *args, **kwargs)
    self.offload_to_cpu = False


def watch_fsdp(module: ModuleType) -> None:
    """Wrap FSDP, right after `import torch.distributed.fsdp`."""
    config = getattr(module, "FullStateDictConfig", None)
    if config is not None:
        replace(config, "__init__", _copied_to_cpu)
    wrapper = getattr(module, "FullyShardedDataParallel", None)
    if wrapper is None:
        return
    made = wrapper.__init__

    @functools.wraps(made)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        state.doubtful = True  # it moves its parameters
        # Without this it looks for an accelerator and gives up.
        kwargs["device_id"] = torch.device("cpu")
        made(self, *args, **kwargs)

    wrapper.__init__ = initialise
    utilities = getattr(module, "_init_utils", None)
    name = "_check_module_states_for_sync_module_states"
    if hasattr(utilities, name):
        setattr(utilities, name, lambda _states: None)
