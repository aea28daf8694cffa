"""Writes calls in which ranks meet outside of torch's collectives, as to join the job.

They pass no dispatcher. In the journal they are calls like others: joining the job,
making a group and reporting to Ray Train are collectives of all ranks, so that what is
known of collectives (who is missing, who does something else) holds for them as well.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

from distdoctor.journal.format import RecordKind
from distdoctor.journal.packed_texts import OFTEN, group_text
from distdoctor.journal.writer import JournalWriter
from distdoctor.model.events import RAY, SETUP, STORE
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
from distdoctor.probes.harmless import harmless, lose_or_raise
from distdoctor.probes.interruptions import is_interruption
from distdoctor.probes.recorder import RECORDER, blinded


class _Inside(threading.local):
    """Depth of nested set-up calls in this thread; torch makes some inside others."""

    depth = 0


_inside = _Inside()

_groups: dict[str, tuple[int, Board | NoBoard]] = {}
_ordinals: dict[str, int] = {}

_MOST_NAMES = 64
_LONGEST_NAME = 120


def forget() -> None:
    """Forget all state: in another run, groups count from 1 again."""
    _groups.clear()
    _ordinals.clear()


def around(
    op: str,
    made: Callable[[], Any],
    members: Sequence[int],
    names: Sequence[str],
) -> Any:
    """Make such a call, and record its start and end.

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
    except Exception as error:  # the job must not feel the probe
        if is_interruption(error):
            raise
        blinded(op, error)
        return None


def _written(
    writer: JournalWriter, op: str, members: tuple[int, ...], names: Sequence[str]
) -> int:
    code = CODE_OF[op]
    collective = OPERATIONS[code].is_collective
    name = RAY
    if OPERATIONS[code].sets_up:
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
        lose_or_raise(op, error)
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
    """Number and board of a group that meets so."""
    assert RECORDER.writer is not None
    if text not in _groups:
        board: Board | NoBoard = NoBoard()
        me, size = RECORDER.writer.rank, len(members)
        if me in members:
            board = board_of(RECORDER.folder, text, size, members.index(me), me, size)
        _groups[text] = RECORDER.number_of_group(text), board
    return _groups[text]


def is_inside() -> bool:
    """Whether this thread is in such a call: what it makes there is a part of it."""
    return _inside.depth > 0


@harmless
def _put(kind: RecordKind, number: int | None) -> None:
    if RECORDER.writer is not None and number is not None:
        RECORDER.writer.put(kind, RECORDER.thread(), number)
