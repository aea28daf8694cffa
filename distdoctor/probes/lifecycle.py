"""Records how a rank joins a job, by its process group, and how it leaves.

There is no public hook for these, so functions are replaced wherever torch's own
modules hold them.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from distdoctor.model.events import Left, Started
from distdoctor.probes import registry
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.collectives import interception
from distdoctor.probes.data import loaders
from distdoctor.probes.groups import world
from distdoctor.probes.groups.backends import backend_of
from distdoctor.probes.harmless import excuse_while, harmless
from distdoctor.probes.patching import replace_everywhere
from distdoctor.probes.probe import Probe
from distdoctor.probes.readability import is_transforming
from distdoctor.probes.recorder import RECORDER, blinded
from distdoctor.probes.rendezvous import own_ports, setup_calls

_watched: list[None] = []
_left_job: list[int] = []
"""How many ranks the job had that this process has left."""


def install() -> None:
    """Wrap the functions that begin and end a job, right after `import torch`."""
    excuse_while(is_transforming)
    replace_everywhere(dist.init_process_group, _init_process_group)
    replace_everywhere(dist.destroy_process_group, _destroy_process_group)


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
    joins(rank, size)
    own_ports.joining(named)
    known = 0 <= rank < size
    return tuple(range(size)) if known else (), setup_calls.address_of(named)


def joins(rank: int, size: int) -> None:
    """The process tries to join a job: it has a journal from here on, and tells it.

    Args:
        rank: The rank it will play; negative: not known.
        size: The job's number of ranks; not positive: not known.
    """
    if rank >= 0:
        if _begins_anew(rank, size):
            RECORDER.begin_run(RECORDER.folder, rank, size, again=True)
        writer = RECORDER.open(rank, max(size, 0))
        if writer is not None and writer.rank < 0:
            writer.become(rank, max(size, 0))
    RECORDER.tell(Started(world_size=size, joined=False), call_site(5))


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
    become(dist.get_rank(), dist.get_world_size(), str(backend_of()))


def become(rank: int, size: int, backend: str) -> None:
    """The process is a rank now: install the last probes, and record it.

    Args:
        rank: Its global rank.
        size: The job's number of ranks.
        backend: What carries its collectives.
    """
    _left_job.clear()
    world.set_size(size)
    first = RECORDER.writer is None
    writer = RECORDER.open(rank, size)
    if writer is None:
        return
    if first:
        RECORDER.tell(Started(world_size=size, joined=False), call_site(4))
    if not _watched:
        writer.become(rank, size)
        _watched.append(None)
        registry.joined()
    if (collectives := interception.installed()) is not None:
        collectives.forget_groups()
    else:
        blinded("communication", RuntimeError("no call of this process can be seen"))
    if (shortening := loaders.shortening()) is not None:
        shortening.joined()
    event = Started(
        world_size=size,
        backend=backend,
        torch=str(torch.__version__),
        device="cuda" if torch.cuda.is_available() else "cpu",
    )
    RECORDER.tell(event)


def _destroy_process_group(made: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    group = args[0] if args else kwargs.get("group")
    if dist.is_initialized() and (group is None or group is dist.group.WORLD):
        # Before: peers notice the closed connections at once. Of a job that was left
        # already, as by a `finally` behind the end of it, torch refuses the call.
        leave(dist.get_world_size())
    return made(*args, **kwargs)


@harmless
def leave(size: int) -> None:
    """The process is about to leave a job.

    Args:
        size: The job's number of ranks.
    """
    RECORDER.finish()
    RECORDER.tell(Left(), call_site(4))
    _left_job[:] = [size]
    if (collectives := interception.installed()) is not None:
        collectives.forget_groups()


PROBE = Probe(install=install)
