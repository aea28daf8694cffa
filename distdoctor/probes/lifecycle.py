"""Records how a rank joins a job, by its process group, and how it leaves.

There is no public hook for these, so functions are replaced wherever torch's own
modules hold them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from distdoctor.model.events import Started
from distdoctor.probes import membership
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.collectives import interception
from distdoctor.probes.data import loaders
from distdoctor.probes.groups.backends import backend_of
from distdoctor.probes.harmless import excuse_while, harmless, lost
from distdoctor.probes.interruptions import is_interruption
from distdoctor.probes.patching import replace_everywhere
from distdoctor.probes.probe import Probe
from distdoctor.probes.readability import is_transforming
from distdoctor.probes.recorder import RECORDER, blinded
from distdoctor.probes.rendezvous import (
    meetings,
    own_ports,
    setup_calls,
    worker_groups,
)

_THREADED = "torch.testing._internal.distributed.multi_threaded_pg"
_one_thread = threading.Lock()
_threaded: list[None] = []


def install() -> None:
    """Wrap the functions that begin and end a job, right after `import torch`."""
    excuse_while(is_transforming)
    replace_everywhere(dist.init_process_group, _init_process_group)
    replace_everywhere(dist.destroy_process_group, _destroy_process_group)
    membership.listen(membership.Listener(_begun, _forget_groups, _described))


# --- joining and leaving ---


def _init_process_group(made: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if dist.is_initialized():
        return made(*args, **kwargs)  # torch refuses it at once; nobody is to meet
    if _ranks_are_threads():
        _threads_join(args, kwargs)
        return made(*args, **kwargs)
    members: tuple[int, ...] = ()
    address = ""
    try:
        members, address = _joining(args, kwargs)
    except Exception as error:  # torch will say what is wrong, if it is
        if is_interruption(error):
            raise
        blinded("init_process_group", error)
    result = meetings.around(
        "init_process_group", lambda: made(*args, **kwargs), members, (address,)
    )
    _joined()
    return result


def _ranks_are_threads() -> bool:
    """Whether each thread plays a rank of its own, as in torch's own test cases."""
    return type(c10d._world).__module__ == _THREADED


@harmless
def _threads_join(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Open one journal, and say that it tells no calls.

    Those of several ranks could not be told apart in it. All threads come at once, and
    again for each job that they play.
    """
    error = RuntimeError("ranks are threads of one process")
    with _one_thread:
        if _threaded:
            return
        _threaded.append(None)
        if interception.installed() is not None:  # the process was a rank before
            blinded("communication", error)
            return
        named = _named(args, kwargs)
        size = _asked(named, "world_size", "WORLD_SIZE")
        membership.joins(_asked(named, "rank", "RANK"), size)
        RECORDER.tell(Started(world_size=size, backend="threaded"), call_site(4))
        lost("communication", error)


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = ("backend", "init_method", "timeout", "world_size", "rank")
    return dict(zip(names, args, strict=False)) | kwargs


def _joining(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[int, ...], str]:
    """Who is to meet, as far as that is known, and where."""
    named = _named(args, kwargs)
    rank, size = (
        _asked(named, "rank", "RANK"),
        _asked(named, "world_size", "WORLD_SIZE"),
    )
    RECORDER.apart = worker_groups.is_apart(setup_calls.address_of(named))
    membership.joins(rank, size)
    own_ports.joining(named)
    known = 0 <= rank < size
    return tuple(range(size)) if known else (), setup_calls.address_of(named)


def _asked(named: dict[str, Any], name: str, variable: str) -> int:
    value = named.get(name, -1)
    if isinstance(value, int) and value >= 0:
        return value
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else -1


@harmless
def _joined() -> None:
    membership.become(dist.get_rank(), dist.get_world_size(), str(backend_of()))


def _begun() -> None:
    """The process has become a rank of a job, of torch's own or of another kind."""
    if interception.installed() is None:
        blinded("communication", RuntimeError("no call of this process can be seen"))
    _forget_groups()
    if (shortening := loaders.shortening()) is not None:
        shortening.joined()


def _forget_groups() -> None:
    if (collectives := interception.installed()) is not None:
        collectives.forget_groups()


def _described() -> tuple[str, str]:
    return str(torch.__version__), "cuda" if torch.cuda.is_available() else "cpu"


def _destroy_process_group(made: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    group = args[0] if args else kwargs.get("group")
    if _ranks_are_threads():
        return made(*args, **kwargs)
    if dist.is_initialized() and (group is None or group is dist.group.WORLD):
        # Before: peers notice the closed connections at once. Of a job that was left
        # already, as by a `finally` behind the end of it, torch refuses the call.
        membership.leave(dist.get_world_size())
    return made(*args, **kwargs)


PROBE = Probe(install=install)
