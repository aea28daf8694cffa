"""Sees how a rank lives: it joins, leaves, makes groups, wraps models, reads data.

There is no public hook for these, so functions are replaced wherever torch's own
modules hold them.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import multiprocessing
import os
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from distdoctor.journal.environment import SIMULATION_VARIABLE
from distdoctor.probes import conditions_registry
from distdoctor.probes.boot import reporting
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.checkpoints import checkpoint_io
from distdoctor.probes.data import numbered_names, samples
from distdoctor.probes.data.epoch_shortening import EpochShortening, of_environment
from distdoctor.probes.data.loaders import watch_loaders
from distdoctor.probes.gradients import clip_hooks
from distdoctor.probes.groups.backends import backend_of
from distdoctor.probes.harmless import excuse_while, harmless
from distdoctor.probes.optimizer_step import optimizers
from distdoctor.probes.patching import replace_everywhere
from distdoctor.probes.readability import is_transforming
from distdoctor.probes.recorder import RECORDER, blinded
from distdoctor.probes.rendezvous import own_ports, setup_calls
from distdoctor.probes.replicas import ddp_reducers, registrations, weight_fingerprints

if TYPE_CHECKING:
    from distdoctor.probes.collectives.interception import Collectives

_MOST_NAMES = 500

_TELLS_REDUCE_OPS = (2, 10)  # the release of torch from which on a kernel can read them

_installed: list[Any] = []
_watched: list[None] = []
_left_job: list[int] = []
"""How many ranks the job had that this process has left."""

_shortening: list[EpochShortening | None] = [None]


def install() -> None:
    """Right after `import torch`: only what is cheap."""
    if not dist.is_available():
        return
    excuse_while(is_transforming)
    if _is_simulated():
        from distdoctor.probes.collectives import fake_backend

        fake_backend.install()
    else:
        harmless(own_ports.install)()
    harmless(samples.install)()  # before the user's program makes a dataset
    harmless(optimizers.watch)()  # they may be made before the rank joins
    harmless(weight_fingerprints.install)()
    harmless(numbered_names.watch)()
    harmless(checkpoint_io.install)()
    harmless(clip_hooks.install)()  # user's files import the functions by name
    if not _is_simulated():
        conditions_registry.install()
    harmless(_watch_steps)()  # also of ranks that never join, and train for themselves
    replace_everywhere(dist.init_process_group, _init_process_group)
    replace_everywhere(dist.destroy_process_group, _destroy_process_group)
    replace_everywhere(dist.new_group, setup_calls.new_group)
    replace_everywhere(dist.batch_isend_irecv, _batch_isend_irecv)
    # torch.multiprocessing.spawn is also a function of that name.
    torch_spawn = importlib.import_module("torch.multiprocessing.spawn")
    wrapped = torch_spawn._wrap

    @functools.wraps(wrapped)
    def _wrap(fn: Callable[..., Any], *args: Any) -> Any:
        RECORDER.spawned = args[0] if args and isinstance(args[0], int) else -1
        return wrapped(functools.partial(reporting, fn), *args)

    torch_spawn._wrap = _wrap  # type: ignore[attr-defined]


def _is_simulated() -> bool:
    """Whether this process plays a rank of a job without the others."""
    return SIMULATION_VARIABLE in os.environ


# --- joining and leaving ---


def _init_process_group(made: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if dist.is_initialized():
        return made(*args, **kwargs)  # torch refuses it at once; nobody is to meet
    members: tuple[int, ...] = ()
    address = ""
    try:
        members, address = _joining(args, kwargs)
    except Exception as error:  # noqa: BLE001 - torch will say what is wrong, if it is
        blinded("init_process_group", error)
    result = setup_calls.around(
        "init_process_group", lambda: made(*args, **kwargs), members, (address,)
    )
    _joined()
    return result


def _joining(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[int, ...], str]:
    """Who is to meet, as far as that is known, and where."""
    named = dict(
        zip(
            ("backend", "init_method", "timeout", "world_size", "rank"),
            args,
            strict=False,
        )
    )
    named.update(kwargs)
    rank, size = (
        _asked(named, "rank", "RANK"),
        _asked(named, "world_size", "WORLD_SIZE"),
    )
    if rank >= 0:
        if _begins_anew(rank, size):
            RECORDER.turn(RECORDER.folder, rank, size, again=True)
        writer = RECORDER.open(rank, max(size, 0))
        if writer is not None and writer.rank < 0:
            writer.become(rank, max(size, 0))
    RECORDER.note("start", call_site(4), world_size=size)
    own_ports.joining(named)
    known = 0 <= rank < size
    return tuple(range(size)) if known else (), setup_calls.address_of(named)


def _begins_anew(rank: int, size: int) -> bool:
    """Whether a process that left a job plays in another one now.

    A worker of a pool is given a rank with each of its tasks. Who is started for one
    rank, and joins again as that, goes on.
    """
    writer = RECORDER.writer
    if writer is None or not _left_job:
        return False
    in_a_pool = multiprocessing.parent_process() is not None and RECORDER.spawned < 0
    return in_a_pool or rank != writer.rank or (size > 0 and size != _left_job[0])


def _asked(named: dict[str, Any], name: str, variable: str) -> int:
    value = named.get(name, -1)
    if isinstance(value, int) and value >= 0:
        return value
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else -1


@harmless
def _joined() -> None:
    _left_job.clear()
    rank, size = dist.get_rank(), dist.get_world_size()
    first = RECORDER.writer is None
    writer = RECORDER.open(rank, size)
    if writer is None:
        return
    if first:
        RECORDER.note("start", call_site(4), world_size=size)
    if not _watched:
        writer.become(rank, size)
        _watched.append(None)
        _watch()
    if _installed:
        _installed[0].forget_groups()
    else:
        blinded("communication", RuntimeError("no call of this process can be seen"))
    if _shortening[0] is not None:
        _shortening[0].joined()
    RECORDER.note(
        "started",
        world_size=size,
        backend=backend_of(),
        torch=torch.__version__,
        device="cuda" if torch.cuda.is_available() else "cpu",
    )


def _watch() -> None:
    """At the first `init_process_group`: all that costs something."""
    training = [] if _is_simulated() else [_watch_training, conditions_registry.joined]
    for watch in (
        _watch_communication,
        setup_calls.watch_stores,
        _watch_ddp,
        _watch_loaders,
        *training,
    ):
        harmless(watch)()


def _watch_communication() -> None:
    from distdoctor.probes.collectives import reduce_ops
    from distdoctor.probes.collectives.waits import watch_waits

    collectives = _collectives()
    _installed.extend([collectives, watch_waits(collectives)])
    RECORDER.on_turn.append(collectives.turn)
    if tuple(map(int, torch.__version__.split(".")[:2])) < _TELLS_REDUCE_OPS:
        reduce_ops.watch()


def _collectives() -> Collectives:
    if _is_simulated():
        from distdoctor.probes.collectives.fake_backend import SimulatedCollectives

        return SimulatedCollectives()
    from distdoctor.probes.collectives.interception import Collectives

    return Collectives()


def _destroy_process_group(made: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    group = args[0] if args else kwargs.get("group")
    if dist.is_initialized() and (group is None or group is dist.group.WORLD):
        # Before: peers notice the closed connections at once. Of a job that was left
        # already, as by a `finally` behind the end of it, torch refuses the call.
        _leaving()
    return made(*args, **kwargs)


@harmless
def _leaving() -> None:
    RECORDER.finish()
    RECORDER.note("leave", call_site(4))
    _left_job[:] = [dist.get_world_size()]
    if _installed:
        _installed[0].forget_groups()


def _batch_isend_irecv(made: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Its calls are one exchange: in NCCL their order among them does not count."""
    thread = RECORDER.thread()
    RECORDER.batching.add(thread)
    try:
        return made(*args, **kwargs)
    finally:
        RECORDER.batching.discard(thread)


# --- models, data, steps ---


def _watch_ddp() -> None:
    ddp = torch.nn.parallel.DistributedDataParallel
    made = ddp.__init__

    @functools.wraps(made)
    def initialise(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        ranks = _sharing(made, (self, module, *args), kwargs)
        _wrapping("ddp", module, ranks)
        made(self, module, *args, **kwargs)
        ddp_reducers.watch(self)
        weight_fingerprints.wrapped(self, ranks or ())
        optimizers.wrapped(self)

    ddp.__init__ = initialise  # type: ignore[method-assign]
    ddp_reducers.install()


def watch_fsdp(module: ModuleType) -> None:
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
    conditions_registry.wrapped(module)
    names = [
        name
        for name, parameter in module.named_parameters()
        if how == "fsdp" or parameter.requires_grad
    ][:_MOST_NAMES]
    if how == "ddp":
        registrations.tell(module, names)
    RECORDER.note(
        "wrap",
        call_site(4),
        how=how,
        parameters=names,
        ranks=ranks or (),
    )


@harmless
def _sharing(
    made: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[int, ...]:
    """The ranks that a model is wrapped for, by its group or mesh; empty: all are."""
    given = inspect.signature(made).bind(*args, **kwargs).arguments
    mesh = given.get("device_mesh") or given.get("mesh")
    if mesh is not None:
        ranks = tuple(sorted(mesh.mesh.flatten().tolist()))
    else:
        group = given.get("process_group") or dist.group.WORLD
        ranks = tuple(dist.get_process_group_ranks(group))
    return () if ranks == tuple(range(dist.get_world_size())) else ranks


def _watch_loaders() -> None:
    if _is_simulated() or not _installed:
        _shortening[:] = [None]
    else:
        world, met = dist.get_world_size, _installed[0].met
        _shortening[:] = [of_environment(world, met, torch.is_grad_enabled)]
    watch_loaders(_shortening[0])


@harmless
def _watch_training() -> None:
    from distdoctor.probes.optimizer_step import step_wiring

    step_wiring.install()
    RECORDER.on_turn.append(step_wiring.turn)


def _watch_steps() -> None:
    def stepped(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        _step(optimizer)

    register_optimizer_step_post_hook(stepped)


@harmless
def _step(optimizer: Any) -> None:
    if RECORDER.writer is not None:
        RECORDER.writer.step()
        conditions_registry.stepped(optimizer)
    if _shortening[0] is not None:
        _shortening[0].stepped()
