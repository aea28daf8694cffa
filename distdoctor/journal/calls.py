"""Makes calls of a journal's records: what was called, and how far it came."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distdoctor.journal.format import RecordKind
from distdoctor.journal.histories import life_of
from distdoctor.journal.reader import MESSAGE_TYPE, Header, JournalReader, Records
from distdoctor.journal.texts import Tables
from distdoctor.model.events import Event, State
from distdoctor.model.named_calls import is_by_name
from distdoctor.model.operations import OPERATIONS, UNUSED
from distdoctor.model.run import CALLS

_STATE_AFTER = {
    RecordKind.RETURN: State.ISSUED,
    RecordKind.RAISE: State.RAISED,
    RecordKind.WAIT: State.WAITING,
    RecordKind.WOKE: State.DONE,
    RecordKind.WAIT_RAISE: State.RAISED,
    RecordKind.REISSUE: State.INSIDE,
}

_COPIED = ("ordinal", "signature", "op", "reduce_op", "flags", "peer")


def _understood(entered: Records, box: JournalReader) -> Records:
    """Without calls of later releases, and those whose group was cut off."""
    used, inverse = np.unique(entered["group"], return_inverse=True)
    known = np.array([bool(box.string(int(number))) for number in used], np.bool_)
    kept = entered[known[inverse] & (entered["op"] < len(OPERATIONS))]
    box.torn += len(entered) - len(kept)
    return kept


def _by_name(entered: Records, box: JournalReader) -> NDArray[np.bool_]:
    """Which of them are on a group whose calls are matched by name."""
    used, inverse = np.unique(entered["group"], return_inverse=True)
    found = [is_by_name(box.string(int(number))) for number in used]
    return np.array(found, np.bool_)[inverse]


def take_apart(
    records: Records, box: JournalReader, tables: Tables, header: Header
) -> tuple[NDArray[Any], list[tuple[int, Event]]]:
    """The calls of one journal, and what it tells beside them, by calls made before.

    Args:
        records: All records of the journal, shape (records,), in order.
        box: The journal, for its strings.
        tables: Where lines, groups and specs get their numbers.
        header: The journal's header as it stood when the records were read.

    Returns:
        The calls, shape (calls,), dtype `CALLS`, and other events, each with the number
        of calls that this rank had made before it.
    """
    kinds = records["kind"]
    made = np.isin(kinds, (RecordKind.ENTER, RecordKind.REFUSE))
    entered = _understood(records[made], box)
    calls = np.zeros(len(entered), CALLS)
    for name in _COPIED:
        calls[name] = entered[name]
    calls["rank"] = header.rank
    collective = entered["ordinal"] > 0
    calls["nodes"] = np.where(collective, entered["nodes"], 0)
    calls["tag"] = np.where(collective, 0, entered.view(MESSAGE_TYPE)["tag"])
    calls["thread"] = np.where(entered["thread"] == header.pid, 0, entered["thread"])
    calls["enter_ns"] = entered["time_ns"]
    calls["state"] = np.where(
        entered["kind"] == RecordKind.REFUSE, State.REFUSED, State.INSIDE
    )
    calls["state"][_by_name(entered, box)] = State.ISSUED  # recorded behind the call
    for column, number in (
        ("site", tables.site),
        ("callers", tables.callers_of),
        ("spec", tables.spec),
        ("group", tables.group),
    ):
        strings = entered["site" if column == "callers" else column]
        used, inverse = np.unique(strings, return_inverse=True)
        numbers = [number(box.string(int(string))) for string in used]
        calls[column] = np.array(numbers, "<i4")[inverse] if numbers else 0
    _follow(calls, entered, records)
    issued = dict.fromkeys(
        records["call"][records["kind"] == RecordKind.TOUCHED].tolist(), ""
    )
    for call in issued:
        for site in entered["site"][entered["call"] == call]:
            issued[call] = box.string(int(site))
    life = life_of(records, np.cumsum(made), box, tables, header.rank, issued)
    return calls, life


def _follow(calls: NDArray[Any], entered: Records, records: Records) -> None:
    """Fill in how far each call came."""
    if not len(calls):
        return
    lowest = int(entered["call"].min())
    row_of = np.full(int(entered["call"].max()) - lowest + 1, -1)
    row_of[entered["call"] - lowest] = np.arange(len(calls))
    used = np.isin(records["kind"], (RecordKind.WAIT, RecordKind.HANDED))
    calls["flags"][np.isin(entered["call"], records["call"][used])] &= ~UNUSED & 0xFF
    later = records[np.isin(records["kind"], list(_STATE_AFTER))]
    numbers = later["call"].astype(np.int64) - lowest
    known = (numbers >= 0) & (numbers < len(row_of))
    later, rows = later[known], row_of[numbers[known]]
    later, rows = later[rows >= 0], rows[rows >= 0]
    states = np.zeros(max(RecordKind) + 1, np.uint8)
    for kind, state in _STATE_AFTER.items():
        states[kind] = state
    calls["state"][rows] = states[later["kind"]]  # in order: the last one stays
    for kind, column in (
        (RecordKind.WAIT, "wait_ns"),
        (RecordKind.WOKE, "complete_ns"),
    ):
        of_kind = later["kind"] == kind
        calls[column][rows[of_kind]] = later["time_ns"][of_kind]
    _follow_backward(calls, records, row_of, lowest)


def _follow_backward(
    calls: NDArray[Any], records: Records, row_of: NDArray[Any], lowest: int
) -> None:
    """What autograd issued and nobody else waits for, the end of backward waits for.

    A bracket is a BACKWARD_WAIT and the BACKWARD_WOKE of the same thread; both carry
    the number of the first call that was issued in that backward pass.
    """
    brackets = records[
        np.isin(records["kind"], (RecordKind.BACKWARD_WAIT, RecordKind.BACKWARD_WOKE))
    ]
    open_brackets: dict[int, int] = {}
    for record in brackets:
        thread, number = int(record["thread"]), int(record["call"]) - lowest
        if record["kind"] == RecordKind.BACKWARD_WAIT:
            open_brackets[thread] = number
            continue
        open_brackets.pop(thread, None)
        _close(calls, record, row_of, number, State.DONE)
    for record in brackets[::-1]:
        number = int(record["call"]) - lowest
        if open_brackets.get(int(record["thread"])) == number:
            _close(calls, record, row_of, number, State.WAITING)


def _close(
    calls: NDArray[Any],
    bracket: Any,
    row_of: NDArray[Any],
    number: int,
    state: State,
) -> None:
    if not 0 <= number < len(row_of) or row_of[number] < 0:
        return
    part = calls[row_of[number] :]
    part = part[: np.searchsorted(part["enter_ns"], bracket["time_ns"], "right")]
    mine = part["state"] == State.ISSUED
    part["state"][mine] = state
    if state is State.DONE:
        part["complete_ns"][mine] = bracket["time_ns"]
