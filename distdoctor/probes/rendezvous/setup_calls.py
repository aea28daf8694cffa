"""Records calls in which ranks meet through the store: joining, new groups, keys."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from distdoctor.probes.interruptions import is_interruption
from distdoctor.probes.patching import replace_everywhere
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import blinded
from distdoctor.probes.rendezvous.meetings import around, forget, is_inside


def address_of(arguments: dict[str, Any]) -> str:
    """The rendezvous address that a rank uses."""
    method = arguments.get("init_method")
    if arguments.get("store") is not None:
        return "a store of its own"
    if method not in {None, "env://"}:
        return str(method)
    environment = os.environ
    address = environment.get("MASTER_ADDR", "")
    return f"{address}:{environment.get('MASTER_PORT', '')}"


def new_group(made: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Wrapper of `torch.distributed.new_group`, which records the call."""
    try:
        members, ranks = _whom(args, kwargs)
    except Exception as error:  # torch will say what is wrong, if it is
        if is_interruption(error):
            raise
        result = made(*args, **kwargs)
        blinded("new_group", error)
        return result
    names = tuple(map(str, ranks))
    return around("new_group", lambda: made(*args, **kwargs), members, names)


def _whom(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Who must call `new_group`, and for whom the group is."""
    everyone = tuple(range(dist.get_world_size()))
    given = args[0] if args else kwargs.get("ranks")
    ranks = everyone if given is None else tuple(sorted(int(rank) for rank in given))
    if kwargs.get("use_local_synchronization"):
        return ranks, ranks
    return everyone, ranks


def install() -> None:
    """Install the probe; called right after `import torch`."""
    replace_everywhere(dist.new_group, new_group)


def _watch_stores() -> None:
    """From now on, write which keys ranks wait for and which they set."""
    for name, op in (
        ("wait", "store_wait"),
        ("get", "store_wait"),
        ("set", "store_set"),
        ("add", "store_set"),
        ("compare_set", "store_set"),
    ):
        made = getattr(Store, name, None)
        if made is not None:
            setattr(Store, name, _on_store(op, made))


def _on_store(op: str, made: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(made)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_inside() or not dist.is_initialized():
            return made(*args, **kwargs)
        keys = args[1] if len(args) > 1 else kwargs.get("keys", kwargs.get("key", ()))
        names = (keys,) if isinstance(keys, str) else tuple(map(str, keys))
        everyone = tuple(range(dist.get_world_size()))
        return around(op, lambda: made(*args, **kwargs), everyone, names)

    return call


PROBE = Probe(install=install, joined=_watch_stores, reset=forget)
