"""What happens when a process joins a job, and when it leaves, whatever joins them.

Nothing here needs torch: a job may do without.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import NamedTuple

from distdoctor.model.events import Left, Started
from distdoctor.probes import registry
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.groups import world
from distdoctor.probes.harmless import harmless
from distdoctor.probes.recorder import RECORDER

_watched: list[None] = []
_left_job: list[int] = []
"""How many ranks the job had that this process has left."""


class Listener(NamedTuple):
    """Who has more to do than is done here, and knows more.

    Attributes:
        joined: Called when the process has become a rank, behind all probes.
        left: Called when it is about to leave.
        described: Gives the version of torch, and "cuda" or "cpu".
    """

    joined: Callable[[], object]
    left: Callable[[], object]
    described: Callable[[], tuple[str, str]]


_listeners: list[Listener] = []


def listen(listener: Listener) -> None:
    """Have somebody told of all joining and leaving."""
    _listeners.append(listener)


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
    torch, device = "", "cpu"
    for listener in _listeners:
        listener.joined()
        torch, device = listener.described()
    RECORDER.tell(Started(world_size=size, backend=backend, torch=torch, device=device))


@harmless
def leave(size: int) -> None:
    """The process is about to leave a job.

    Args:
        size: The job's number of ranks.
    """
    RECORDER.finish()
    RECORDER.tell(Left(), call_site(4))
    _left_job[:] = [size]
    for listener in _listeners:
        listener.left()
