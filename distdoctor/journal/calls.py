"""Makes calls of a journal's records: what was called, and how far it came."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distdoctor.journal.format import RecordKind
from distdoctor.journal.histories import life_of
from distdoctor.journal.reader import (
    MESSAGE_TYPE,
    Header,
    JournalReader,
    Records,
    of_kinds,
)
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


_LATEST = 1 << 62
"""Of times in ns, and of ordinals: no machine runs so long."""


def _understood(
    entered: Records, box: JournalReader, tables: Tables
) -> NDArray[np.bool_]:
    """All but calls of later releases, and those whose group cannot be read."""
    used, inverse = np.unique(entered["group"], return_inverse=True)
    known = np.array([_is_group(box.string(int(n)), tables) for n in used], np.bool_)
    kept: NDArray[np.bool_] = (
        known[inverse]
        & (entered["op"] < len(OPERATIONS))
        & (entered["ordinal"] < _LATEST)
        & (entered["peer"] >= -1)
    )
    box.torn += int((~kept).sum())
    return kept


def _is_group(text: str, tables: Tables) -> bool:
    try:
        return bool(text) and tables.group(text) >= 0
    except ValueError:
        return False


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
    timely = records["time_ns"] < _LATEST
    if not timely.all():
        box.torn += int((~timely).sum())
        records = records[timely]
    made = of_kinds(records, RecordKind.ENTER, RecordKind.REFUSE)
    made[made] = _understood(records[made], box, tables)
    entered = records[made]
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
        if column != "callers":  # which are told with the site
            used, inverse = np.unique(entered[column], return_inverse=True)
        numbers, damaged = [], []
        for string in used.tolist():
            text = box.string(string)
            try:
                numbers.append(number(text))
                damaged.append(bool(string) and not text)
            except ValueError:
                numbers.append(0)
                damaged.append(True)
        calls[column] = np.array(numbers, "<i4")[inverse] if numbers else 0
        if any(damaged) and column != "callers":
            box.torn += int(np.array(damaged)[inverse].sum())
    row_of = _Rows(entered["call"])
    _follow(calls, entered, records, row_of)
    touched = np.unique(records["call"][records["kind"] == RecordKind.TOUCHED])
    issued = {
        int(call): box.string(int(entered["site"][row])) if row >= 0 else ""
        for call, row in zip(touched, row_of(touched), strict=True)
    }
    life = life_of(
        records, np.cumsum(made), box, tables, header.rank, header.world_size, issued
    )
    return calls, life


class _Rows:
    """Rows of calls by the numbers of the calls in their process.

    Args:
        numbers: Of the calls in their rows, shape (calls,). Of two with one number,
            the later has it.
    """

    def __init__(self, numbers: NDArray[Any]) -> None:
        self._lowest = int(numbers.min()) if len(numbers) else 0
        spread = int(numbers.max()) - self._lowest + 1 if len(numbers) else 0
        self._sorted: NDArray[Any] | None = None
        if spread <= _SPREAD * len(numbers):
            self._rows = np.full(spread, -1)
            self._rows[numbers - self._lowest] = np.arange(len(numbers))
        else:  # damaged: such a table could have any size
            self._rows = np.argsort(numbers, kind="stable")
            self._sorted = numbers[self._rows]

    def __call__(self, numbers: NDArray[Any]) -> NDArray[np.int64]:
        """Rows, shape as the numbers; -1: none."""
        rows = np.full(len(numbers), -1)
        if self._sorted is not None:
            at = np.searchsorted(self._sorted, numbers, "right") - 1
            known = (at >= 0) & (self._sorted[at] == numbers)
            rows[known] = self._rows[at[known]]
        else:
            at = numbers.astype(np.int64) - self._lowest
            known = (at >= 0) & (at < len(self._rows))
            rows[known] = self._rows[at[known]]
        return rows


_SPREAD = 16
"""So many numbers for each call, at most: a ring may have lost what lay between."""


def _follow(
    calls: NDArray[Any], entered: Records, records: Records, row_of: _Rows
) -> None:
    """Fill in how far each call came."""
    if not len(calls):
        return
    used = of_kinds(records, RecordKind.WAIT, RecordKind.HANDED)
    calls["flags"][np.isin(entered["call"], records["call"][used])] &= ~UNUSED & 0xFF
    later = records[of_kinds(records, *_STATE_AFTER)]
    rows = row_of(later["call"])
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
    _follow_backward(calls, records, row_of)


def _follow_backward(calls: NDArray[Any], records: Records, row_of: _Rows) -> None:
    """What autograd issued and nobody else waits for, the end of backward waits for.

    A bracket is a BACKWARD_WAIT and the BACKWARD_WOKE of the same thread; both carry
    the number of the first call that was issued in that backward pass.
    """
    kinds = RecordKind.BACKWARD_WAIT, RecordKind.BACKWARD_WOKE
    brackets = records[of_kinds(records, *kinds)]
    if not len(brackets):
        return
    is_wait = brackets["kind"] == RecordKind.BACKWARD_WAIT
    # Lists: a look at one cell of an array costs.
    told = [
        *zip(
            is_wait.tolist(),
            brackets["thread"].tolist(),
            brackets["call"].tolist(),
            row_of(brackets["call"]).tolist(),
            brackets["time_ns"].tolist(),
            strict=True,
        )
    ]
    issued = _Issued(calls)
    open_brackets: dict[int, int] = {}
    for waits, thread, call, row, time_ns in told:
        if waits:
            open_brackets[thread] = call
            continue
        open_brackets.pop(thread, None)
        issued.close(row, time_ns, State.DONE)
    for _, thread, call, row, time_ns in reversed(told):
        if open_brackets.get(thread) == call:
            issued.close(row, time_ns, State.WAITING)


class _Issued:
    """The calls that were issued and that nothing has closed yet.

    Args:
        calls: Of one rank; their `state` and `complete_ns` change.
    """

    def __init__(self, calls: NDArray[Any]) -> None:
        self._calls = calls
        self._times = calls["enter_ns"].tolist()
        rows = np.flatnonzero(calls["state"] == State.ISSUED)
        self._rows = rows.tolist()
        # For each of them, one that is not closed, or that is nearer to the next one
        # that is not: brackets may lie over each other, and none goes through the same
        # calls again. Source: union by path halving, Tarjan & van Leeuwen (1984).
        self._next = list(range(len(rows) + 1))

    def close(self, row: int, time_ns: int, state: State) -> None:
        """Give a state to all that are left of a row and of what was made after it.

        Args:
            row: Position of the first call; negative: none.
            time_ns: Calls that were made later are not meant.
            state: What became of them; if they are done, then at that time.
        """
        if row < 0:
            return
        end = bisect_right(self._times, time_ns, row)
        at = self._open(bisect_left(self._rows, row))
        closed = []
        while at < len(self._rows) and self._rows[at] < end:
            closed.append(self._rows[at])
            self._next[at] = at + 1
            at = self._open(at)
        if closed:
            self._calls["state"][closed] = state
            if state is State.DONE:
                self._calls["complete_ns"][closed] = time_ns

    def _open(self, at: int) -> int:
        """The first that is not closed, from one on."""
        following = self._next
        while following[at] != at:
            following[at] = following[following[at]]
            at = following[at]
        return at
