"""Makes a run of the journals and notes in a record folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distdoctor.errors import JournalUnreadable
from distdoctor.journal import TOUCHED_BY_STEP, Kind, members_of
from distdoctor.journal.compared import with_comparison
from distdoctor.journal.folder import (
    Exit,
    Manifest,
    StackSample,
    Streams,
    read_comparison,
    read_exits,
    read_losses,
    read_manifest,
    read_sources,
    read_stacks,
    read_streams,
    read_substitutes,
)
from distdoctor.journal.noted import read_note
from distdoctor.journal.reader import Header, JournalReader, Records
from distdoctor.journal.simulated import as_simulated
from distdoctor.model.events import (
    ADDRESS_FAULTS,
    SETUP,
    STORE,
    WORLD,
    BadAddress,
    Batch,
    Busy,
    Dead,
    Ended,
    Event,
    Failure,
    Left,
    Locked,
    Misplaced,
    Place,
    Shortened,
    Started,
    State,
    Tensor,
    ThreadEnded,
    Touched,
    Unreduced,
    Wrapped,
)
from distdoctor.model.operations import OPERATIONS, UNUSED
from distdoctor.model.run import CALLS, Frame, Group, Run, Spec

_STATE_AFTER = {
    Kind.RETURN: State.ISSUED,
    Kind.RAISE: State.RAISED,
    Kind.WAIT: State.WAITING,
    Kind.WOKE: State.DONE,
    Kind.WAIT_RAISE: State.RAISED,
    Kind.REISSUE: State.INSIDE,
}

_TOLD = (Kind.LIFE, Kind.BATCH, Kind.THREAD_END, Kind.TOUCHED, Kind.NOTE)

_COPIED = ("ordinal", "signature", "op", "reduce_op", "flags", "peer")

_SIGTERM_AS_SHELL = 143

_TAKES_A_LOCK = re.compile(r"^\s*with\b|\.acquire\(")

_LAUNCHERS_ERROR = "ChildFailedError"  # torchrun's, by which it tells of a rank's end

_DAMAGED = (ValueError, TypeError, KeyError, OverflowError, RecursionError)
"""What reading a note can end in whose text is not what we have written."""

_IDLE_S = 0.5  # of processor time at most, for a process that does nothing

BUSY_LOOKS = 5
"""Stacks that must agree before a rank is called busy in one place."""


def read_run(folder: Path) -> Run:
    """The run that a record folder holds.

    Raises:
        RecordUnreadable: The folder is not a record of ours.
        JournalUnreadable: None of its journals can be read.
    """
    return assemble(folder, read_manifest(folder))


def assemble(folder: Path, manifest: Manifest, stacks: bool = True) -> Run:
    """The run in a folder whose manifest is known, also while the job runs.

    Args:
        folder: The record folder.
        manifest: `alive` names the processes that have not ended.
        stacks: Whether to read the stacks and sources as well.

    Raises:
        JournalUnreadable: There are journals, and none can be read.
    """
    assembly = _Assembly(manifest, read_exits(folder), read_losses(folder))
    damaged: dict[Path, str] = {}
    readable = False
    # One after the other: a process may not hold thousands of files open.
    for path in sorted(folder.glob("*.journal")):
        try:
            assembly.add(JournalReader(path))
            readable = True
        except JournalUnreadable as error:
            damaged[path] = str(error)
    if damaged and not readable:
        raise JournalUnreadable(next(iter(damaged.values())))
    assembly.streams = read_streams(folder)
    run = assembly.run(damaged)
    if manifest.simulated:
        run = as_simulated(run, manifest)
    if not stacks:
        return run
    samples = read_stacks(folder)
    run = replace(
        run, sources=read_sources(folder), substituted=read_substitutes(folder)
    )
    run = with_comparison(run, read_comparison(folder))
    return _with_stacks(run, samples, manifest.directory)


def relative(file: str, directory: str) -> str:
    """A file's name as the user knows it: from the directory where the job ran."""
    prefix = directory.rstrip("/") + "/"
    return file.removeprefix(prefix) if file.startswith(prefix) else file


@dataclass(slots=True)
class _Journal:
    """One process's journal, taken apart."""

    header: Header
    calls: NDArray[Any]
    life: list[tuple[int, Event]]
    groups: list[str]  # texts, by the numbers used in `calls`
    partial: str


class _Tables:
    """Numbers of strings, the same for all journals of a run."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.sites: list[Place | None] = [None]
        self.specs: list[Spec] = [Spec()]
        self.groups: list[str] = []
        self._known: dict[tuple[str, str], int] = {("site", ""): 0, ("spec", ""): 0}

    def site(self, text: str) -> int:
        return self._number("site", text, self.sites, self.place)

    def spec(self, text: str) -> int:
        return self._number("spec", text, self.specs, parse_spec)

    def group(self, text: str) -> int:
        # Members may describe one group differently: a mesh with mixed-up names does.
        name, _, rest = text.partition("\n")
        key = ("group", f"{name}\n{rest.partition(chr(10))[2]}")
        if key not in self._known:
            self._known[key] = len(self.groups)
            self.groups.append(text)
        return self._known[key]

    def place(self, text: str) -> Place | None:
        file, _, rest = text.partition("\n")
        line, _, function = rest.partition("\n")
        if not line.isdigit():
            return None
        return Place(relative(file, self._directory), int(line), function)

    def _number(self, kind: str, text: str, table: list[Any], make: Any) -> int:
        key = (kind, text)
        if key not in self._known:
            self._known[key] = len(table)
            table.append(make(text))
        return self._known[key]


class _Assembly:
    """Collects journals into a run."""

    def __init__(
        self,
        manifest: Manifest,
        exits: Mapping[int, Exit],
        losses: Mapping[int, str],
    ) -> None:
        self._manifest, self._exits, self._losses = manifest, exits, losses
        self._tables = _Tables(manifest.directory)
        self._journals: dict[int, _Journal] = {}
        self._restarts: dict[int, int] = {}
        self._unranked: list[_Journal] = []
        self.streams: list[Streams] = []

    def add(self, box: JournalReader) -> None:
        header = box.header()
        records = self._before_the_end(box.last(), header)
        journal = _Journal(
            header,
            *_take_apart(records, box, self._tables, header),
            self._tables.groups,
            _what_is_missing(box, header, self._losses.get(header.rank, "")),
        )
        if header.rank < 0:
            self._unranked.append(journal)
            return
        self._take(journal)

    def _before_the_end(self, records: Records, header: Header) -> Records:
        """Without what a process did once distdoctor had begun to end the job.

        Ranks are not ended at the same moment: who lives a little longer sees the
        connections to the others break, and leaves the call it stood in.
        """
        stopped_ns = self._manifest.stopped_ns
        if not stopped_ns or header.pid not in self._manifest.alive:
            return records
        return records[records["time_ns"] <= stopped_ns]

    def _take(self, journal: _Journal) -> None:
        header = journal.header
        other = self._journals.get(header.rank)
        if other is None or other.header.started_ns < header.started_ns:
            self._journals[header.rank] = journal
        if other is not None:
            self._restarts[header.rank] = self._restarts.get(header.rank, 0) + 1

    def _adopt(self) -> None:
        """Give the ranks they were spawned for to processes that failed without one."""
        for journal in self._unranked:
            told = [e.spawned for _, e in journal.life if isinstance(e, Failure)]
            rank = max(told, default=-1)
            if rank >= 0 and rank not in self._journals:
                self._give(journal, rank)

    def _give(self, journal: _Journal, rank: int) -> None:
        """A process without a rank was this one."""
        journal.life = [
            (position, replace(event, rank=rank)) for position, event in journal.life
        ]
        journal.header = journal.header._replace(rank=rank)
        self._journals[rank] = journal

    def _adopt_the_rest(self, size: int) -> None:
        """Take processes that failed alike for the ranks that are missing.

        Only when no other process is left that could be one of these, and if they are
        as many; which of them is which makes no difference.
        """
        over = self._manifest.closed or self._manifest.exit_code is not None
        parents = {told.by for told in self._exits.values()}
        strays = [
            journal
            for journal in self._unranked
            if journal.header.rank < 0
            and journal.header.pid not in parents
            and _fatal(journal)
        ]
        ends = {(one.error, one.place) for journal in strays for one in _fatal(journal)}
        missing = [rank for rank in range(size) if rank not in self._journals]
        if over and len(ends) == 1 and len(strays) == len(missing):
            for rank, journal in zip(missing, strays, strict=True):
                self._give(journal, rank)

    def _outside(self) -> tuple[Failure, ...]:
        """How processes failed that never had a rank; their parents come last."""
        parents = {told.by for told in self._exits.values()}
        strays = [journal for journal in self._unranked if journal.header.rank < 0]
        strays.sort(key=lambda journal: journal.header.pid in parents)
        failures = (failure for journal in strays for failure in _fatal(journal))
        return tuple(one for one in failures if one.error != _LAUNCHERS_ERROR)

    def _size(self) -> int:
        sizes = [journal.header.world_size for journal in self._journals.values()]
        members = (
            rank + 1 for ranks in map(members_of, self._tables.groups) for rank in ranks
        )
        played = (rank + 1 for rank in self._journals)
        return max([*sizes, self._manifest.ranks, *played, *members])

    def run(self, damaged: Mapping[Path, str]) -> Run:
        self._adopt()
        size = self._size()
        self._adopt_the_rest(size)
        unseen = {
            rank: self._why_unseen(rank, damaged)
            for rank in range(size)
            if rank not in self._journals
        }
        life = {}
        for rank, journal in self._journals.items():
            life[rank] = list(journal.life)
            life[rank] += self._of_workers(rank, journal)
            if (ended := self._ended(rank, journal)) is not None:
                life[rank].append((len(journal.calls), ended))
        calls = [self._journals[rank].calls for rank in sorted(self._journals)]
        partial = {
            rank: journal.partial
            for rank, journal in self._journals.items()
            if journal.partial
        }
        return Run(
            world_size=size,
            groups=_groups(self._tables.groups, size),
            calls=np.concatenate(calls) if calls else np.empty(0, CALLS),
            sites=self._tables.sites,
            specs=self._tables.specs,
            life=life,
            unseen=unseen,
            partial=partial,
            steps={r: j.header.steps for r, j in self._journals.items()},
            stopped=self._manifest.stopped,
            closed=self._manifest.closed,
            starved=_starved(self._manifest),
            exit_code=self._manifest.exit_code,
            outside=self._outside(),
            last_words=self._manifest.last_words,
        )

    def _of_workers(self, rank: int, journal: _Journal) -> list[tuple[int, Event]]:
        """What workers of the rank's loaders drew; its end is the place for it."""
        return [
            (
                len(journal.calls),
                replace(told.drawn, rank=rank, place=self._tables.place(told.site)),
            )
            for told in self.streams
            if told.by == journal.header.pid
        ]

    def _why_unseen(self, rank: int, damaged: Mapping[Path, str]) -> str:
        for path, why in damaged.items():
            if path.name.startswith(f"rank-{rank}."):
                return why
        if rank in self._losses:
            return f"its probes failed: {self._losses[rank]}"
        return "it never reached init_process_group with the probes in place"

    def _ended(self, rank: int, journal: _Journal) -> Ended | None:
        header = journal.header
        if header.pid in self._manifest.alive:
            return None
        told = self._exits.get(header.pid)
        status = None if told is None else told.status
        failed = any(
            isinstance(event, Failure) and event.fatal for _, event in journal.life
        )
        if status is not None and status < 0:
            status = 128 - status
        if status is None and failed:
            status = 1
        return Ended(
            rank=rank,
            status=status,
            orderly=bool(header.ended),
            stopped=status == _SIGTERM_AS_SHELL and not header.ended,
            place=None if told is None else self._tables.place(told.site),
        )


def _fatal(journal: _Journal) -> list[Failure]:
    """The exceptions that ended a process."""
    events = [event for _, event in journal.life]
    return [event for event in events if isinstance(event, Failure) and event.fatal]


def _starved(manifest: Manifest) -> str:
    if not manifest.oom_kills:
        return ""
    where = "in the job's control group" if manifest.oom_of_group else "on this machine"
    times = "" if manifest.oom_kills == 1 else f" {manifest.oom_kills} times"
    return f"the kernel's out-of-memory killer struck{times} {where} meanwhile"


def _what_is_missing(box: JournalReader, header: Header, loss: str) -> str:
    missing = []
    if box.overwritten:
        missing.append(f"its oldest {box.overwritten} records fell out of its ring")
    if box.torn:
        missing.append(f"{box.torn} records were torn")
    if box.truncated:
        missing.append("its file was cut off")
    if header.lost:
        missing.append(
            f"{header.lost} events could not be written by the probes ({loss})"
        )
    return "; ".join(missing)


# --- one journal ---


def _understood(entered: Records, box: JournalReader) -> Records:
    """Without calls of later releases, and those whose group was cut off."""
    used, inverse = np.unique(entered["group"], return_inverse=True)
    known = np.array([bool(box.string(int(number))) for number in used], np.bool_)
    kept = entered[known[inverse] & (entered["op"] < len(OPERATIONS))]
    box.torn += len(entered) - len(kept)
    return kept


def _take_apart(
    records: Records, box: JournalReader, tables: _Tables, header: Header
) -> tuple[NDArray[Any], list[tuple[int, Event]]]:
    kinds = records["kind"]
    made = np.isin(kinds, (Kind.ENTER, Kind.REFUSE))
    entered = _understood(records[made], box)
    calls = np.zeros(len(entered), CALLS)
    for name in _COPIED:
        calls[name] = entered[name]
    calls["rank"] = header.rank
    collective = entered["ordinal"] > 0
    calls["nodes"] = np.where(collective, entered["detail"], 0)
    calls["tag"] = np.where(collective, 0, entered["detail"])
    calls["thread"] = np.where(entered["thread"] == header.pid, 0, entered["thread"])
    calls["enter_ns"] = entered["time_ns"]
    calls["state"] = np.where(
        entered["kind"] == Kind.REFUSE, State.REFUSED, State.INSIDE
    )
    for column, number in (
        ("site", tables.site),
        ("spec", tables.spec),
        ("group", tables.group),
    ):
        used, inverse = np.unique(entered[column], return_inverse=True)
        numbers = [number(box.string(int(string))) for string in used]
        calls[column] = np.array(numbers, "<i4")[inverse] if numbers else 0
    _follow(calls, entered, records)
    issued = dict.fromkeys(
        records["call"][records["kind"] == Kind.TOUCHED].tolist(), ""
    )
    for call in issued:
        for site in entered["site"][entered["call"] == call]:
            issued[call] = box.string(int(site))
    life = _life(records, np.cumsum(made), box, tables, header.rank, issued)
    return calls, life


def _follow(calls: NDArray[Any], entered: Records, records: Records) -> None:
    """Fill in how far each call came."""
    if not len(calls):
        return
    lowest = int(entered["call"].min())
    row_of = np.full(int(entered["call"].max()) - lowest + 1, -1)
    row_of[entered["call"] - lowest] = np.arange(len(calls))
    used = np.isin(records["kind"], (Kind.WAIT, Kind.HANDED))
    calls["flags"][np.isin(entered["call"], records["call"][used])] &= ~UNUSED & 0xFF
    later = records[np.isin(records["kind"], list(_STATE_AFTER))]
    numbers = later["call"].astype(np.int64) - lowest
    known = (numbers >= 0) & (numbers < len(row_of))
    later, rows = later[known], row_of[numbers[known]]
    later, rows = later[rows >= 0], rows[rows >= 0]
    states = np.zeros(max(Kind) + 1, np.uint8)
    for kind, state in _STATE_AFTER.items():
        states[kind] = state
    calls["state"][rows] = states[later["kind"]]  # in order: the last one stays
    for kind, column in (
        (Kind.WAIT, "wait_ns"),
        (Kind.WOKE, "complete_ns"),
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
        np.isin(records["kind"], (Kind.BACKWARD_WAIT, Kind.BACKWARD_WOKE))
    ]
    open_brackets: dict[int, int] = {}
    for record in brackets:
        thread, number = int(record["thread"]), int(record["call"]) - lowest
        if record["kind"] == Kind.BACKWARD_WAIT:
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


def parse_spec(text: str) -> Spec:
    """Tensors and splits as the probe wrote them, e.g. `float32 4x3;int64 |1,2|2,1`.

    >>> parse_spec("float32 4x3;int64 ").tensors[1]
    Tensor(shape=(), dtype='int64')
    """
    if text.startswith("="):
        return Spec(names=tuple(map(str, json.loads(text[1:]))))
    tensors, *splits = text.split("|")
    return Spec(
        tuple(_tensor(word) for word in tensors.split(";") if word),
        (_numbers(splits[0]), _numbers(splits[1])) if len(splits) == 2 else None,
    )


def _tensor(word: str) -> Tensor:
    dtype, _, shape = word.partition(" ")
    return Tensor(tuple(int(size) for size in shape.split("x") if size), dtype)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


# --- life ------------------------------------------------------------------------


def _life(
    records: Records,
    calls_so_far: NDArray[Any],
    box: JournalReader,
    tables: _Tables,
    rank: int,
    issued: Mapping[int, str],
) -> list[tuple[int, Event]]:
    history = _History(rank, tables)
    told = np.isin(records["kind"], _TOLD)
    for position in np.flatnonzero(told):
        record, calls = records[position], int(calls_so_far[position])
        if record["kind"] == Kind.THREAD_END:
            ended = ThreadEnded(rank=rank, thread=int(record["thread"]))
            history.events.append((calls, ended))
            continue
        if record["kind"] == Kind.BATCH:
            place = tables.place(box.string(int(record["site"])))
            history.batch(calls, record, place)
            continue
        if record["kind"] == Kind.TOUCHED:
            touched = Touched(
                rank=rank,
                issued=tables.place(issued.get(int(record["call"]), "")),
                stepped=record["flags"] == TOUCHED_BY_STEP,
                place=tables.place(box.string(int(record["site"]))),
            )
            history.events.append((calls, touched))
            continue
        place = tables.place(box.string(int(record["site"])))
        if record["kind"] == Kind.NOTE:
            history.note(calls, record, box, place)
            continue
        try:
            history.add(calls, json.loads(box.string(int(record["spec"]))), place)
        except _DAMAGED:
            box.torn += 1
    history.close(int(calls_so_far[-1]) if len(calls_so_far) else 0)
    return history.events


@dataclass(slots=True)
class _History:
    """Makes events of a rank's notes; a later note may complete an earlier event."""

    rank: int
    tables: _Tables
    events: list[tuple[int, Event]] = field(default_factory=list)
    _open: dict[object, int] = field(default_factory=dict)
    _loaders: dict[Place | None, Event] = field(default_factory=dict)
    _unreduced: dict[object, tuple[int, Event]] = field(default_factory=dict)

    def add(self, position: int, note: dict[str, Any], place: Place | None) -> None:
        rank, what = self.rank, note["what"]
        match what:
            case "start":
                size = int(note["world_size"])
                start = Started(rank=rank, world_size=size, joined=False, place=place)
                self._begin("start", position, start)
            case "started":
                self._complete(
                    "start",
                    joined=True,
                    world_size=int(note["world_size"]),
                    backend=str(note["backend"]),
                    torch=str(note["torch"]),
                    device=str(note["device"]),
                )
            case "address":
                fault = str(note["fault"])
                bad = BadAddress(
                    rank=rank,
                    fault=fault,
                    address=str(note["address"]),
                    given=str(note["given"]),
                    mended=bool(note["mended"]),
                    place=place,
                )
                if fault in ADDRESS_FAULTS:  # else of a later release
                    self.events.append((position, bad))
            case "wrap":
                names = tuple(map(str, note["parameters"]))
                wrap = Wrapped(
                    rank=rank,
                    how=note["how"],
                    parameters=names,
                    ranks=tuple(map(int, note.get("ranks", ()))),
                    place=place,
                )
                self.events.append((position, wrap))
            case "unreduced":
                names = tuple(map(str, note["parameters"]))
                self._unreduced[note["model"]] = (
                    position,
                    Unreduced(rank=rank, parameters=names, place=place),
                )
            case "reduced":
                self._unreduced.pop(note["model"], None)
            case "misplaced":
                device, op = str(note["device"]), str(note["op"])
                misplaced = Misplaced(rank=rank, device=device, op=op, place=place)
                self.events.append((position, misplaced))
            case "shortened":
                length = int(note["length"])
                shortened = Shortened(
                    rank=rank,
                    kept=int(note["kept"]),
                    length=length if length >= 0 else None,
                    place=place,
                )
                self.events.append((position, shortened))
            case "fail":
                self.events.append((position, self._failure(note)))
            case "leave":
                self.events.append((position, Left(rank=rank, place=place)))

    def _begin(self, key: object, position: int, event: Event) -> None:
        self._open[key] = len(self.events)
        self.events.append((position, event))

    def _complete(self, key: object, **changes: Any) -> None:
        if (index := self._open.pop(key, None)) is not None:
            position, event = self.events[index]
            self.events[index] = (position, replace(event, **changes))

    def note(
        self, position: int, record: Any, box: JournalReader, place: Place | None
    ) -> None:
        """Add what a note tells."""
        begin, size = int(record["signature"]), int(record["ordinal"])
        try:
            observation = read_note(box.path, begin, size)
        except (OSError, ValueError):
            box.torn += 1
            return
        if observation is not None:  # else of a later release
            event = replace(observation, rank=self.rank, place=place)
            self.events.append((position, event))

    def batch(self, position: int, record: Any, place: Place | None) -> None:
        """Note a batch; only the last of each loader is kept."""
        ended = bool(record["flags"])
        event = Batch(
            rank=self.rank, count=int(record["ordinal"]), ended=ended, place=place
        )
        self._loaders.pop(place, None)
        if ended:
            self.events.append((position, event))
        else:
            self._loaders[place] = event

    def close(self, position: int) -> None:
        """Add what is still open."""
        self.events += self._unreduced.values()
        self.events.sort(key=lambda entry: entry[0])
        self.events += [(position, event) for event in self._loaders.values()]

    def _failure(self, note: dict[str, Any]) -> Failure:
        return Failure(
            rank=self.rank,
            error=str(note["error"]),
            message=str(note["message"]),
            place=self.tables.place(note["site"]),
            fatal=bool(note["fatal"]),
            secondary=bool(note["secondary"]),
            spawned=int(note.get("spawned", -1)),
        )


# --- groups and stacks ---


def _groups(texts: Iterable[str], world_size: int) -> tuple[Group, ...]:
    """Groups with names for readers: "world", torch's description, or its number."""
    everyone = tuple(range(world_size))
    groups: list[Group] = []
    taken: set[str] = set()
    for text in texts:
        name, description = (*text.split("\n"), "")[:2]
        ranks = members_of(text)
        label = f"group_{name}"
        if description not in {"", "undefined", "default_pg"}:
            label = description
        if ranks == everyone and (description == "default_pg" or name in {"", "0"}):
            label = WORLD
        label = "".join(c if c.isalnum() else "_" for c in label)
        if name in {SETUP, STORE}:
            label = name
        unique, n = label, 1
        while unique in taken:
            n += 1
            unique = f"{label}_{n}"
        taken.add(unique)
        groups.append(Group(unique, ranks))
    return tuple(groups)


def _with_stacks(run: Run, samples: list[StackSample], directory: str) -> Run:
    """The run with the last stack of each rank, and who was busy in one place."""
    by_rank: dict[int, list[StackSample]] = {}
    for sample in samples:
        by_rank.setdefault(sample.rank, []).append(sample)
    stacks = {
        rank: [
            Frame(
                Place(relative(frame.file, directory), frame.line, frame.function),
                frame.integers,
            )
            for frame in taken[-1].frames
        ]
        for rank, taken in by_rank.items()
    }
    life = {rank: list(events) for rank, events in run.life.items()}
    for rank, taken in by_rank.items():
        if rank in life and (busy := _busy(rank, taken, stacks[rank])) is not None:
            life[rank].append((len(run.rows_of(rank)), busy))
    for rank, taken in by_rank.items():
        if rank in life and (dead := _dead(rank, taken, stacks[rank])) is not None:
            life[rank].append((len(run.rows_of(rank)), dead))
    # Where one rank was watched for long, a last look at the others is enough.
    watched = any(_locked(run, *one, directory) for one in by_rank.items())
    for rank, taken in by_rank.items():
        locked = _locked(run, rank, taken, directory, 1 if watched else BUSY_LOOKS)
        if rank in life and locked is not None:
            life[rank].append((len(run.rows_of(rank)), locked))
    return replace(run, stacks=stacks, life=life)


def _dead(rank: int, samples: list[StackSample], stack: list[Frame]) -> Dead | None:
    """A rank that held the interpreter's lock at all looks, without working."""
    first, last = samples[0], samples[-1]
    worked = (last.cpu_seconds or 0.0) - (first.cpu_seconds or 0.0)
    if len(samples) < BUSY_LOOKS or worked > _IDLE_S:
        return None
    if not all(sample.holds_gil for sample in samples):
        return None
    return Dead(
        rank=rank,
        seconds=round(last.seconds - first.seconds, 1),
        place=stack[0].place if stack else None,
    )


def _locked(
    run: Run,
    rank: int,
    samples: list[StackSample],
    directory: str,
    looks: int = BUSY_LOOKS,
) -> Locked | None:
    """A line that takes a lock, if a thread stood in it at all of so many looks."""
    if len(samples) < looks:
        return None
    stood = [
        {(stack[0].file, stack[0].line, stack[0].function) for stack in sample.standing}
        for sample in samples
    ]
    for file, line, function in sorted(set.intersection(*stood)):
        place = Place(relative(file, directory), line, function)
        lines = run.sources.get(place.file, "").splitlines()
        if line <= len(lines) and _TAKES_A_LOCK.search(lines[line - 1]):
            seconds = round(samples[-1].seconds - samples[0].seconds, 1)
            return Locked(rank=rank, place=place, seconds=seconds)
    return None


def _busy(rank: int, samples: list[StackSample], stack: list[Frame]) -> Busy | None:
    """What the watch on a silent rank saw, if all its looks saw the same functions."""
    if len(samples) < BUSY_LOOKS or not stack:
        return None
    shapes = {
        tuple((frame.file, frame.function) for frame in sample.frames)
        for sample in samples
    }
    if len(shapes) > 1:
        return None
    first, last = samples[0], samples[-1]
    seconds = last.seconds - first.seconds
    cpu = 0.0
    if first.cpu_seconds is not None and last.cpu_seconds is not None and seconds > 0:
        cpu = (last.cpu_seconds - first.cpu_seconds) / seconds
    return Busy(
        rank=rank,
        place=stack[0].place,
        seconds=round(seconds, 1),
        looks=len(samples),
        cpu=round(cpu, 2),
    )
