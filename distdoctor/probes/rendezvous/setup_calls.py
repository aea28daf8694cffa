"""Records calls in which ranks meet through the store: joining, new groups, keys.

They pass no dispatcher. In the journal they are calls like others: joining the job and
making a group are collectives of all ranks, so that what is known of collectives (who
is missing, who does something else) holds for them as well.
"""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from distdoctor.journal.format import RecordKind
from distdoctor.journal.packed_texts import OFTEN, group_text
from distdoctor.journal.writer import JournalWriter
from distdoctor.model.events import SETUP, STORE
from distdoctor.model.operations import (
    CODE_OF,
    NO_REDUCE_OP,
    NOT_SEEN,
    OPERATIONS,
    signature,
)
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.collectives.board import Board, NoBoard, board_of
from distdoctor.probes.collectives.parking import park
from distdoctor.probes.harmless import harmless, lost
from distdoctor.probes.patching import replace_everywhere
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER, blinded


class _Inside(threading.local):
    """Depth of nested set-up calls in this thread; torch makes some inside others."""

    depth = 0


_inside = _Inside()

_groups: dict[str, tuple[int, Board | NoBoard]] = {}
_ordinals: dict[str, int] = {}

_MOST_NAMES = 64
_LONGEST_NAME = 120


def reset() -> None:
    """Forget all state: in another run, groups count from 1 again."""
    _groups.clear()
    _ordinals.clear()


def around(
    op: str,
    made: Callable[[], Any],
    members: Sequence[int],
    names: Sequence[str],
) -> Any:
    """Make a set-up call, and record its start and end.

    Args:
        op: Name of the operation.
        made: The call itself.
        members: Ranks that meet in it.
        names: What it names: the ranks of a new group, an address, keys.
    """
    number = _enter(op, members, names)
    _inside.depth += 1
    try:
        result = made()
    except BaseException:
        _put(RecordKind.RAISE, number)
        raise
    finally:
        _inside.depth -= 1
    _put(RecordKind.WOKE, number)
    return result


def _enter(op: str, members: Sequence[int], names: Sequence[str]) -> int | None:
    writer = RECORDER.writer
    if writer is None or _inside.depth or not members or RECORDER.blind:
        return None
    try:
        return _written(writer, op, tuple(members), names)
    except Exception as error:  # noqa: BLE001 - the job must not feel the probe
        blinded(op, error)
        return None


def _written(
    writer: JournalWriter, op: str, members: tuple[int, ...], names: Sequence[str]
) -> int:
    code = CODE_OF[op]
    collective = OPERATIONS[code].is_collective
    name = SETUP if collective else STORE
    text = group_text(name, name, OFTEN * writer.incarnation, members)
    group, board = _meet(text, members if collective else ())
    mark, spec, site = NOT_SEEN, 0, 0
    try:  # what cannot be read is left out; the call itself is counted
        mark = signature(code, NO_REDUCE_OP, -1, (), (), tuple(names))
        kept = [name[:_LONGEST_NAME] for name in names[:_MOST_NAMES]]
        spec = RECORDER.intern("=" + json.dumps(kept))
        site = RECORDER.intern(call_site(4))
    except Exception as error:  # noqa: BLE001
        lost(op, error)
    thread = RECORDER.thread()
    ordinal, kind = 0, RecordKind.ENTER
    with RECORDER.lock:
        RECORDER.calls = number = RECORDER.calls + 1
        if collective:
            _ordinals[text] = ordinal = _ordinals.get(text, 0) + 1
            board.write(ordinal, mark)
    if collective and not board.agrees(ordinal, mark):
        kind = RecordKind.REFUSE
    writer.put(kind, thread, number, ordinal, group, mark, code, spec=spec, site=site)
    if kind == RecordKind.REFUSE:
        park()
        writer.put(RecordKind.REISSUE, thread, number, ordinal, group)
    return number


def _meet(text: str, members: tuple[int, ...]) -> tuple[int, Board | NoBoard]:
    """Number and board of a set-up group."""
    assert RECORDER.writer is not None
    if text not in _groups:
        board: Board | NoBoard = NoBoard()
        me, size = RECORDER.writer.rank, len(members)
        if me in members:
            board = board_of(RECORDER.folder, text, size, members.index(me), me, size)
        _groups[text] = RECORDER.number_of_group(text), board
    return _groups[text]


@harmless
def _put(kind: RecordKind, number: int | None) -> None:
    if RECORDER.writer is not None and number is not None:
        RECORDER.writer.put(kind, RECORDER.thread(), number)


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
    except Exception as error:  # noqa: BLE001 - torch will say what is wrong, if it is
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
        if _inside.depth or not dist.is_initialized():
            return made(*args, **kwargs)
        keys = args[1] if len(args) > 1 else kwargs.get("keys", kwargs.get("key", ()))
        names = (keys,) if isinstance(keys, str) else tuple(map(str, keys))
        everyone = tuple(range(dist.get_world_size()))
        return around(op, lambda: made(*args, **kwargs), everyone, names)

    return call


PROBE = Probe(install=install, joined=_watch_stores, reset=reset)
