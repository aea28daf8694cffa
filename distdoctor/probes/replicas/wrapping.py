"""Records which models are wrapped in DDP or FSDP, and for which ranks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from distdoctor.model.events import Wrapped
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.comparison import computed_values
from distdoctor.probes.environment import settings
from distdoctor.probes.harmless import harmless
from distdoctor.probes.optimizer_step import optimizers
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replicas import (
    ddp_reducers,
    registrations,
    weight_fingerprints,
)

_MOST_NAMES = 500


def _watch_ddp() -> None:
    """Go around the constructor of DistributedDataParallel."""
    ddp = torch.nn.parallel.DistributedDataParallel
    made = ddp.__init__

    @functools.wraps(made)
    def initialise(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(module, torch.nn.Module):  # torch says what it thinks of it
            made(self, module, *args, **kwargs)
            return
        ranks = _sharing(made, (self, module, *args), kwargs)
        _wrapping("ddp", module, ranks)
        made(self, module, *args, **kwargs)
        ddp_reducers.watch(self)
        weight_fingerprints.wrapped(self, ranks or ())
        optimizers.wrapped(self)

    ddp.__init__ = initialise  # type: ignore[method-assign]


def _watch_fsdp(module: ModuleType) -> None:
    """Right after `import torch.distributed.fsdp`."""
    made = getattr(module, "fully_shard", None)
    if made is None:
        return

    @functools.wraps(made)
    def fully_shard(wrapped: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(wrapped, torch.nn.Module):
            _wrapping("fsdp", wrapped, _sharing(made, (wrapped, *args), kwargs))
        return made(wrapped, *args, **kwargs)

    for name in ("state", "with_fsdp_mark"):  # attributes users reach through it
        if hasattr(made, name):
            setattr(fully_shard, name, getattr(made, name))
    module.fully_shard = fully_shard  # type: ignore[attr-defined]


@harmless
def _wrapping(how: str, module: torch.nn.Module, ranks: tuple[int, ...] | None) -> None:
    settings.OPTIMIZERS.wrapped(module)
    computed_values.TRACE.wrapped(module)
    names = [
        name
        for name, parameter in module.named_parameters()
        if how == "fsdp" or parameter.requires_grad
    ][:_MOST_NAMES]
    if how == "ddp":
        registrations.tell(module, names)
    event = Wrapped(how=how, parameters=tuple(names), ranks=ranks or ())
    RECORDER.tell(event, call_site(4))


@harmless
def _sharing(
    made: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[int, ...]:
    """The ranks that a model is wrapped for, by its group or mesh; empty: all are."""
    try:
        given = inspect.signature(made).bind(*args, **kwargs).arguments
    except TypeError:  # torch will say so
        return ()
    mesh = given.get("device_mesh") or given.get("mesh")
    if mesh is not None:
        ranks = tuple(sorted(mesh.mesh.flatten().tolist()))
    else:
        group = given.get("process_group") or dist.group.WORLD
        ranks = tuple(dist.get_process_group_ranks(group))
    return () if ranks == tuple(range(dist.get_world_size())) else ranks


PROBE = Probe(joined=_watch_ddp, imports={"torch.distributed.fsdp": _watch_fsdp})
