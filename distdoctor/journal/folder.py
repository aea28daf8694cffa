"""The record folder: everything that was written down about one run.

run.json             what was started and how it ended (`Manifest`)
rank-R.K.journal     black box of the K-th process (from 0) that played rank R
unranked.K.journal   of a process that failed before it had a rank
exits.jsonl          ends of processes, as their parents saw them
shells.jsonl         whose status the shells of horovodrun leave with
substitutes.jsonl    what took the place of CUDA
comparison.json      how another run of the job differed (`Comparison`)
streams.jsonl        what loaders' workers drew from their random streams
nccl/HOST.PID.log    NCCL's debug log of a process
nccl-logs.jsonl      where logs of NCCL lie that the user asked for
losses.jsonl         what went wrong inside the probes
stacks.json          stacks of the ranks (`StackSample`)
sources.json         text of the user's files that the journals name
boards/, stacks/     used by the probes while the job runs; boards go at its end
mask.key             under which secrets are hashed; it goes at the end
running.lock         held while the run may write; left behind if distdoctor is killed
loaders.K.log        likewise, and removed at its end; see `probes.data.agreement`
ports/               ports of this machine that stand for those of the script
values/, again/      used while ranks are simulated one by one
kept/, second/, interrupted/, resumed/     used while runs are compared
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import msgspec

from distdoctor.errors import RecordUnreadable
from distdoctor.journal.layout import (
    CHILDREN_FILE,
    CLUSTERS_FILE,
    COMPARISON_FILE,
    EXITS_FILE,
    GROUPS_FILE,
    LOSSES_FILE,
    MASK_KEY_FILE,
    MEETINGS_FILE,
    NCCL_LOGS_FILE,
    SHELLS_FILE,
    STREAMS_FILE,
    SUBSTITUTES_FILE,
)
from distdoctor.journal.note_limits import possible
from distdoctor.journal.packed_texts import MOST_LINES
from distdoctor.journal.private_files import replace_private
from distdoctor.journal.regular_files import content, decoded
from distdoctor.model.events import MOST_RANKS
from distdoctor.model.observations.rng import Drawn

SCHEMA = "distdoctor.record/1"

MANIFEST, STACKS, SOURCES = "run.json", "stacks.json", "sources.json"

_MOST_RECORDED = 200_000  # lines of a file to which processes add some

_LONGEST = 80  # letters of the name of a schema that are told

_MOST_DAMAGED = 1000  # of these; what follows is not looked at

Rank = Annotated[int, msgspec.Meta(ge=0, lt=MOST_RANKS)]

Pid = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]

Status = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 32)]

Line = Annotated[int, msgspec.Meta(ge=0, le=MOST_LINES)]

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]

Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]


class Simulated(msgspec.Struct, kw_only=True):
    """A rank that ran alone, or was to."""

    rank: Rank
    begun: bool = True  # there was time for it
    stopped: str = ""  # why distdoctor ended it
    exit_code: Status | None = None


class Sure(msgspec.Struct, kw_only=True):
    """Which calls of simulated ranks no stand-in for a received value decided."""

    calls: Count  # of each rank
    why: str  # what is wrong with those after


class Still(msgspec.Struct, kw_only=True):
    """For how long no rank had moved when the job was ended."""

    seconds: Seconds
    longest_before: Seconds = 0.0  # of the times of quiet that had ended
    idle: list[Rank] = []  # ranks that lived, and did next to nothing meanwhile
    name_server: str = ""  # for which a process of the job waited meanwhile


class LostNode(msgspec.Struct, kw_only=True):
    """A node of which nothing was heard any more while its ranks were at work."""

    host: str
    why: str
    pids: list[Pid] = []  # of its ranks
    told_ns: Count = 0  # all that its ranks had written by then is known


class Manifest(msgspec.Struct, kw_only=True):
    """What was started and how it ended."""

    schema: str = SCHEMA
    distdoctor: str
    launch: list[str]
    script: str = ""  # as the reader knows the job, e.g. "train.py"
    directory: str  # where the job ran
    ranks: Count = 0  # asked for; 0: the command decides
    started: str = ""  # ISO time
    seconds: Seconds = 0.0
    exit_code: Status | None = None  # of the command; None: it was ended
    stopped: str = ""  # why distdoctor ended the job; empty: it ended by itself
    stopped_ns: Count = 0  # when that was decided, on the machine's monotonic clock
    still: Still | None = None  # only if the job was ended
    closed: bool = False  # no process was left that could still become a rank
    oom_kills: Count = 0  # by the kernel, meanwhile
    oom_of_group: bool = False  # counted in the job's control group, not the machine
    alive: list[Pid] = []  # processes that still lived then
    last_words: str = ""  # the last line that the job printed
    simulated: list[Simulated] = []  # ranks that ran alone, if not all ran together
    sure: Sure | None = None  # None: all calls of simulated ranks
    proof_ms: Seconds | None = None  # from a deadlock's last record to its proof
    nccl_log_bytes: dict[
        str, Count
    ] = {}  # when distdoctor ended the job; see `nccl_logs`
    lost_nodes: list[LostNode] = []
    recorded: bool = False  # by the probes of calls and of ends alone
    # Bytes of the record's files when the run was over, by name; see `record_files`.
    files: dict[str, Count] = {}
    remarks: list[str] = []  # what distdoctor could not do
    verdict: str = ""  # of the check that made the run; empty: it was not judged yet
    # What the project's pyproject.toml says: reasons to ignore findings, by code; and
    # thresholds of checks, by code and name.
    ignored: dict[str, str] = {}
    thresholds: dict[str, dict[str, int | float]] = {}


NO_RANK = -1
"""In place of a rank: a process that has none; others have the numbers below."""


class StackFrame(msgspec.Struct):
    """A line of a stack."""

    file: str
    line: Line
    function: str
    integers: dict[str, int] = {}  # local variables


class StackSample(msgspec.Struct, kw_only=True):
    """The stack of a rank's main thread at one moment, innermost frame first."""

    rank: Annotated[int, msgspec.Meta(gt=-(1 << 31), lt=MOST_RANKS)]  # see NO_RANK
    pid: Pid
    seconds: Seconds  # since the start of the run
    cpu_seconds: Seconds | None = None  # used by the process so far
    taken_by: str = "py-spy"
    holds_gil: bool = False  # the main thread held the interpreter's lock
    stranded: bool = False  # each thread waited without end for another one
    frames: list[StackFrame] = []
    standing: list[list[StackFrame]] = []  # of each thread in no library's code


AnyStruct = TypeVar("AnyStruct")


def write(folder: Path, name: str, value: object) -> None:
    """Put a value into the folder, whole or not at all.

    Args:
        folder: The record folder; it must exist.
        name: The file's name in it.
        value: Anything that msgspec can write as JSON.

    Raises:
        OSError: It cannot be written; what was there before is still there.
    """
    data = msgspec.json.encode(as_text(msgspec.to_builtins(value)))
    replace_private(folder / name, msgspec.json.format(data, indent=1))


def as_text(value: Any) -> Any:
    """With names that are no text (of files, arguments) written as escapes.

    Args:
        value: A text, or dicts and lists of texts and anything else.

    Returns:
        The same, with what is no Unicode (a lone surrogate) as an escape.
    """
    try:
        msgspec.json.encode(value)  # of large values, many times as fast as a look
    except UnicodeEncodeError:
        return _escaped(value)
    return value


def _escaped(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {_escaped(key): _escaped(part) for key, part in value.items()}
        case list():
            return [_escaped(part) for part in value]
    return value


def clear(folder: Path) -> None:
    """Remove what nobody needs once all writers are dead.

    Args:
        folder: The record folder; files that cannot be removed stay.
    """
    for path in (*folder.glob("loaders.*.log"), folder / MASK_KEY_FILE):
        with suppress(OSError):
            path.unlink()


def read_manifest(folder: Path) -> Manifest:
    """What was started and how it ended.

    Args:
        folder: The record folder.

    Returns:
        The manifest.

    Raises:
        RecordUnreadable: The folder holds no manifest, or not one of ours.
    """
    if not folder.is_dir():
        raise RecordUnreadable(
            f"{folder} is not a folder; give the one named by `--record` or by a report"
        )
    manifest = _read(folder / MANIFEST, Manifest)
    if manifest is None:
        raise RecordUnreadable(
            f"{folder} holds no {MANIFEST}; give a folder that `distdoctor check "
            "--record` has written; what another job has left (dumps, logs, stacks) is "
            f"judged by `distdoctor autopsy {folder}`"
        )
    if manifest.schema != SCHEMA:
        raise RecordUnreadable(
            f"{folder} was written in {manifest.schema[:_LONGEST]!r}; this release "
            f"reads {SCHEMA!r}: use the release that wrote it"
        )
    return manifest


def read_stacks(folder: Path) -> list[StackSample]:
    """Stacks taken from the ranks, in order of time; empty if there are none.

    Args:
        folder: The record folder.

    Returns:
        Samples of all ranks, each rank maybe several times.
    """
    return _read(folder / STACKS, list[StackSample]) or []


def read_sources(folder: Path) -> dict[str, str]:
    """Text of the user's files by name; empty if none was kept.

    Args:
        folder: The record folder.

    Returns:
        Whole files, by the names that places have.
    """
    return _read(folder / SOURCES, dict[str, str]) or {}


class _Shell(msgspec.Struct, kw_only=True):
    """A rank's process, and the shell that leaves with its status."""

    pid: Pid
    shell: Pid


class Exit(msgspec.Struct, kw_only=True):
    """How a process ended, as its parent saw it."""

    pid: Pid
    status: Status  # negative: minus the signal
    by: Pid = 0  # the parent
    site: str = ""  # the parent's line that asked; as in journals


def read_exits(folder: Path) -> dict[int, Exit]:
    """Each ended process by its number; damaged lines are left out.

    Args:
        folder: The record folder.

    Returns:
        The ends by process id; of two for one number, the later. A rank of horovodrun's
        has that of its shell, whose status is a shell's: 128 + n after signal n.
    """
    exits = {end.pid: end for end in _lines(folder / EXITS_FILE, Exit).values}
    for one in _lines(folder / SHELLS_FILE, _Shell).values:
        if one.pid not in exits and (end := exits.get(one.shell)) is not None:
            exits[one.pid] = msgspec.structs.replace(end, pid=one.pid)
    return exits


class RecordedLines(NamedTuple, Generic[AnyStruct]):
    """What the lines of a file say.

    Attributes:
        values: Of those that can be read.
        lost: Why others are missing; empty: none is.
    """

    values: list[AnyStruct]
    lost: str


def _lines(path: Path, kind: type[AnyStruct]) -> RecordedLines[AnyStruct]:
    """What each line of a file says; damaged ones are left out."""
    try:
        data = content(path)
    except FileNotFoundError:
        return RecordedLines([], "")
    except OSError as error:
        return RecordedLines([], str(error))
    values: list[AnyStruct] = []
    damaged = 0
    lines = data.split(b"\n", _MOST_RECORDED)
    for line in lines[:_MOST_RECORDED]:
        if not line:
            continue
        try:
            values.append(decoded(line, kind, names=True))
        except ValueError:  # torn: its writer died
            damaged += 1
            if damaged > _MOST_DAMAGED:
                return RecordedLines(
                    values, f"more than {_MOST_DAMAGED} lines are damaged"
                )
    if len(lines) > _MOST_RECORDED:
        return RecordedLines(values, f"it has more than {_MOST_RECORDED} lines")
    return RecordedLines(values, f"damaged lines: {damaged}" if damaged else "")


class _Loss(msgspec.Struct, kw_only=True):
    """What went wrong inside the probes of a process."""

    rank: Annotated[int, msgspec.Meta(ge=-1, lt=MOST_RANKS)]
    why: str


def read_losses(folder: Path) -> dict[int, str]:
    """What went wrong inside the probes, by rank; -1 for processes without one.

    Args:
        folder: The record folder; damaged lines are left out.

    Returns:
        The first reason of each rank, in words for the reader.
    """
    losses: dict[int, str] = {}
    for loss in _lines(folder / LOSSES_FILE, _Loss).values:
        losses.setdefault(loss.rank, loss.why)
    return losses


class _Substitute(msgspec.Struct, kw_only=True):
    """Something took the place of CUDA in a process."""

    kind: str


def read_substitutes(folder: Path) -> tuple[str, ...]:
    """What took the place of CUDA in any process: names, each once, sorted.

    Args:
        folder: The record folder; damaged lines are left out.

    Returns:
        Names in `model.substitutes`.
    """
    lines = _lines(folder / SUBSTITUTES_FILE, _Substitute).values
    return tuple(sorted({line.kind for line in lines}))


class _Cluster(msgspec.Struct, kw_only=True):
    """A program joined a cluster of Ray."""

    address: str
    ours: bool = False  # the job has started it, or this machine's part of it


def read_clusters(folder: Path) -> tuple[str, ...]:
    """Addresses of clusters of Ray that were there before the job, each once, sorted.

    Args:
        folder: The record folder; damaged lines are left out.
    """
    lines = _lines(folder / CLUSTERS_FILE, _Cluster).values
    return tuple(sorted({line.address for line in lines if not line.ours}))


def used_ray(folder: Path) -> bool:
    """Whether programs of the job joined any cluster of Ray.

    Args:
        folder: The record folder.
    """
    return bool(_lines(folder / CLUSTERS_FILE, _Cluster).values)


class _Meeting(msgspec.Struct, kw_only=True):
    """A worker of Ray joined its group."""

    pid: Pid
    address: str


def read_meetings(folder: Path) -> dict[int, str]:
    """Where workers of Ray met the others of their group, by process.

    On each machine one group at a time is watched; of several machines each may watch
    another one.

    Args:
        folder: The record folder; damaged lines are left out.
    """
    lines = _lines(folder / MEETINGS_FILE, _Meeting).values
    return {line.pid: line.address for line in lines}


class _Groups(msgspec.Struct, kw_only=True):
    """Groups of Ray's workers, of which one at a time is watched."""

    apart: list[str] = []


def read_groups_apart(folder: Path) -> int:
    """How many groups of workers trained beside the one that was watched.

    Args:
        folder: The record folder; a damaged file counts for none.
    """
    with suppress(OSError, ValueError):
        return len(decoded(content(folder / GROUPS_FILE), _Groups).apart)
    return 0


class Streams(NamedTuple):
    """What one worker of a loader drew in a pass."""

    by: int  # the process that started it
    site: str  # where its streams were seeded or made; as in journals
    drawn: Drawn


class _Stream(msgspec.Struct, kw_only=True):
    """What a worker wrote down of itself."""

    pid: Pid
    by: Pid
    site: str
    drawn: Drawn


def read_streams(folder: Path) -> list[Streams]:
    """What workers of loaders drew, the last word of each in a pass.

    Args:
        folder: The record folder; damaged lines are left out.

    Returns:
        One for each worker process, loader and epoch.
    """
    streams: dict[tuple[int, int, int], Streams] = {}
    for one in _lines(folder / STREAMS_FILE, _Stream).values:
        with suppress(ValueError):
            drawn = possible(one.drawn)
            key = (one.pid, drawn.loader, drawn.epoch)
            streams[key] = Streams(one.by, one.site, drawn)
    return list(streams.values())


class InChild(msgspec.Struct):
    """The first call of communication in a process that a rank had forked."""

    by: Pid  # the rank's process
    op: str
    site: str = ""  # as in journals
    worker: Status = -1


def read_children(folder: Path) -> list[InChild]:
    """Calls in forked processes; damaged lines are left out.

    Args:
        folder: The record folder.

    Returns:
        The calls in the order in which they were written down.
    """
    return _lines(folder / CHILDREN_FILE, InChild).values


class RunDifference(msgspec.Struct, kw_only=True):
    """How another run differed from this one in one thing; see `Unrepeated`."""

    rank: Rank
    step: Count = 0
    what: str
    name: str = ""
    here: str = ""
    there: str = ""
    file: str = ""  # the line that is to blame, or that it was seen at
    line: Line = 0


class ToldEvent(msgspec.Struct, kw_only=True):
    """An event that was found by comparing runs, in the form of `event_text`."""

    rank: Rank
    event: str
    file: str = ""  # its line
    line: Line = 0
    function: str = ""


class Comparison(msgspec.Struct, kw_only=True):
    """What came of comparing this run with another; see `Compared`."""

    how: str
    steps: Count = 0
    begun: Count = 0
    why: str = ""
    differences: list[RunDifference] = []
    events: list[ToldEvent] = []


def read_comparison(folder: Path) -> Comparison | None:
    """What came of comparing the run with another; None if there was none.

    Args:
        folder: The record folder.

    Returns:
        The comparison, or None.
    """
    return _read(folder / COMPARISON_FILE, Comparison)


class _NcclLog(msgspec.Struct, kw_only=True):
    """A log of NCCL's that the user asked for."""

    path: str


def read_nccl_logs(folder: Path) -> list[Path]:
    """Logs of NCCL's that the user asked for, whether they are there or not.

    Args:
        folder: The record folder; damaged lines are left out.

    Returns:
        The files in the order in which they were written down.
    """
    lines = _lines(folder / NCCL_LOGS_FILE, _NcclLog).values
    return [Path(line.path) for line in lines if "\0" not in line.path]


_OF_LINES: dict[str, Any] = {
    EXITS_FILE: Exit,
    SHELLS_FILE: _Shell,
    LOSSES_FILE: _Loss,
    SUBSTITUTES_FILE: _Substitute,
    CLUSTERS_FILE: _Cluster,
    MEETINGS_FILE: _Meeting,
    STREAMS_FILE: _Stream,
    CHILDREN_FILE: InChild,
    NCCL_LOGS_FILE: _NcclLog,
}


def lost_lines(folder: Path) -> list[tuple[str, str]]:
    """What is missing of the files to which processes add lines.

    Args:
        folder: The record folder.

    Returns:
        Names of files, and why they, or lines of them, could not be read.
    """
    lost = (
        (name, _lines(folder / name, kind).lost) for name, kind in _OF_LINES.items()
    )
    return [(name, why) for name, why in lost if why]


def _read(path: Path, kind: type[AnyStruct]) -> AnyStruct | None:
    """A file of the folder; None if it is not there.

    Raises:
        RecordUnreadable: It is there and damaged.
    """
    try:
        return decoded(content(path), kind)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RecordUnreadable(
            f"{path} cannot be read ({error}); the record is damaged or not yours"
        ) from error
