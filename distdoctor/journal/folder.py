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

import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from distdoctor.errors import RecordUnreadable
from distdoctor.journal.layout import (
    CHILDREN_FILE,
    COMPARISON_FILE,
    EXITS_FILE,
    LOSSES_FILE,
    MASK_KEY_FILE,
    SHELLS_FILE,
    STREAMS_FILE,
    SUBSTITUTES_FILE,
)
from distdoctor.journal.private_files import replace_private
from distdoctor.model.observations.rng import Drawn

SCHEMA = "distdoctor.record/1"

MANIFEST, STACKS, SOURCES = "run.json", "stacks.json", "sources.json"

_DAMAGED = (ValueError, TypeError, KeyError, OverflowError, RecursionError)

_MOST_LINES = 200_000  # of what workers write

_LARGEST_FILE = 64 * 1024 * 1024  # folders may come from anybody


class Simulated(msgspec.Struct, kw_only=True):
    """A rank that ran alone, or was to."""

    rank: int
    begun: bool = True  # there was time for it
    stopped: str = ""  # why distdoctor ended it
    exit_code: int | None = None


class Sure(msgspec.Struct, kw_only=True):
    """Which calls of simulated ranks no stand-in for a received value decided."""

    calls: int  # of each rank
    why: str  # what is wrong with those after


class Still(msgspec.Struct, kw_only=True):
    """For how long no rank had moved when the job was ended."""

    seconds: float
    longest_before: float = 0.0  # of the times of quiet that had ended, seconds
    idle: list[int] = []  # ranks that lived, and did next to nothing meanwhile


class Manifest(msgspec.Struct, kw_only=True):
    """What was started and how it ended."""

    schema: str = SCHEMA
    distdoctor: str
    launch: list[str]
    script: str = ""  # as the reader knows the job, e.g. "train.py"
    directory: str  # where the job ran
    ranks: int = 0  # asked for; 0: the command decides
    started: str = ""  # ISO time
    seconds: float = 0.0
    exit_code: int | None = None  # of the command; None: it was ended
    stopped: str = ""  # why distdoctor ended the job; empty: it ended by itself
    stopped_ns: int = 0  # when that was decided, on the machine's monotonic clock
    still: Still | None = None  # only if the job was ended
    closed: bool = False  # no process was left that could still become a rank
    oom_kills: int = 0  # by the kernel, meanwhile
    oom_of_group: bool = False  # counted in the job's control group, not the machine
    alive: list[int] = []  # processes that still lived then
    last_words: str = ""  # the last line that the job printed
    simulated: list[Simulated] = []  # ranks that ran alone, if not all ran together
    sure: Sure | None = None  # None: all calls of simulated ranks
    proof_ms: float | None = None  # from a deadlock's last record to its proof
    nccl_log_bytes: dict[
        str, int
    ] = {}  # when distdoctor ended the job; see `nccl_logs`
    recorded: bool = False  # by the probes of calls and of ends alone
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
    line: int
    function: str
    integers: dict[str, int] = {}  # local variables


class StackSample(msgspec.Struct, kw_only=True):
    """The stack of a rank's main thread at one moment, innermost frame first."""

    rank: int
    pid: int
    seconds: float  # since the start of the run
    cpu_seconds: float | None = None  # used by the process so far
    taken_by: str = "py-spy"
    holds_gil: bool = False  # the main thread held the interpreter's lock
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
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {as_text(key): as_text(part) for key, part in value.items()}
        case list():
            return [as_text(part) for part in value]
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
            "--record` has written"
        )
    if manifest.schema != SCHEMA:
        raise RecordUnreadable(
            f"{folder} was written in {manifest.schema!r}; this release reads "
            f"{SCHEMA!r}: use the release that wrote it"
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

    pid: int
    shell: int


class Exit(msgspec.Struct, kw_only=True):
    """How a process ended, as its parent saw it."""

    pid: int
    status: int  # negative: minus the signal
    by: int = 0  # the parent
    site: str = ""  # the parent's line that asked; as in journals


def read_exits(folder: Path) -> dict[int, Exit]:
    """Each ended process by its number; damaged lines are left out.

    Args:
        folder: The record folder.

    Returns:
        The ends by process id; of two for one number, the later. A rank of horovodrun's
        has that of its shell, whose status is a shell's: 128 + n after signal n.
    """
    exits = {end.pid: end for end in _lines(folder / EXITS_FILE, Exit)}
    for one in _lines(folder / SHELLS_FILE, _Shell):
        if one.pid not in exits and (end := exits.get(one.shell)) is not None:
            exits[one.pid] = msgspec.structs.replace(end, pid=one.pid)
    return exits


def _lines(path: Path, kind: type[AnyStruct]) -> Iterator[AnyStruct]:
    """What each line of a file says; damaged ones are left out."""
    with suppress(OSError), path.open(errors="replace") as file:
        for line in file:
            with suppress(*_DAMAGED):  # torn: its writer died
                yield msgspec.convert(json.loads(line), kind)


def read_losses(folder: Path) -> dict[int, str]:
    """What went wrong inside the probes, by rank; -1 for processes without one.

    Args:
        folder: The record folder; damaged lines are left out.

    Returns:
        The first reason of each rank, in words for the reader.
    """
    losses: dict[int, str] = {}
    with suppress(OSError), (folder / LOSSES_FILE).open(errors="replace") as file:
        for line in file:
            with suppress(*_DAMAGED):  # torn: its writer died
                record = json.loads(line)
                losses.setdefault(int(record["rank"]), str(record["why"]))
    return losses


def read_substitutes(folder: Path) -> tuple[str, ...]:
    """What took the place of CUDA in any process: names, each once, sorted.

    Args:
        folder: The record folder; damaged lines are left out.

    Returns:
        Names in `model.substitutes`.
    """
    kinds = set()
    with suppress(OSError), (folder / SUBSTITUTES_FILE).open(errors="replace") as file:
        for line in file:
            with suppress(*_DAMAGED):  # torn: its writer died
                kinds.add(str(json.loads(line)["kind"]))
    return tuple(sorted(kinds))


class Streams(NamedTuple):
    """What one worker of a loader drew in a pass."""

    by: int  # the process that started it
    site: str  # where its streams were seeded or made; as in journals
    drawn: Drawn


def read_streams(folder: Path) -> list[Streams]:
    """What workers of loaders drew, the last word of each in a pass.

    Args:
        folder: The record folder; damaged lines are left out.

    Returns:
        One for each worker process, loader and epoch.
    """
    streams: dict[tuple[int, int, int], Streams] = {}
    with suppress(OSError), (folder / STREAMS_FILE).open(errors="replace") as file:
        for line in islice(file, _MOST_LINES):
            with suppress(*_DAMAGED):  # torn: its writer died
                one = json.loads(line)
                drawn = msgspec.convert({"rank": -1, **one["drawn"]}, Drawn)
                key = (int(one["pid"]), drawn.loader, drawn.epoch)
                streams[key] = Streams(int(one["by"]), str(one["site"]), drawn)
    return list(streams.values())


class InChild(msgspec.Struct):
    """The first call of communication in a process that a rank had forked."""

    by: int  # the rank's process
    op: str
    site: str = ""  # as in journals
    worker: int = -1


def read_children(folder: Path) -> list[InChild]:
    """Calls in forked processes; damaged lines are left out.

    Args:
        folder: The record folder.

    Returns:
        The calls in the order in which they were written down.
    """
    calls: list[InChild] = []
    with suppress(OSError), (folder / CHILDREN_FILE).open(errors="replace") as file:
        for line in islice(file, _MOST_LINES):
            with suppress(msgspec.DecodeError, *_DAMAGED):  # torn: its writer died
                calls.append(msgspec.json.decode(line, type=InChild))
    return calls


class RunDifference(msgspec.Struct, kw_only=True):
    """How another run differed from this one in one thing; see `Unrepeated`."""

    rank: int
    step: int = 0
    what: str
    name: str = ""
    here: str = ""
    there: str = ""
    file: str = ""  # the line that is to blame, or that it was seen at
    line: int = 0


class Comparison(msgspec.Struct, kw_only=True):
    """What came of comparing this run with another; see `Compared`."""

    how: str
    steps: int = 0
    begun: int = 0
    why: str = ""
    differences: list[RunDifference] = []


def read_comparison(folder: Path) -> Comparison | None:
    """What came of comparing the run with another; None if there was none.

    Args:
        folder: The record folder.

    Returns:
        The comparison, or None.
    """
    return _read(folder / COMPARISON_FILE, Comparison)


def _read(path: Path, kind: type[AnyStruct]) -> AnyStruct | None:
    """A file of the folder; None if it is not there.

    Raises:
        RecordUnreadable: It is there and damaged.
    """
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise RecordUnreadable(f"{path} is larger than {_LARGEST_FILE} bytes")
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, *_DAMAGED) as error:
        raise RecordUnreadable(
            f"{path} cannot be read ({error}); the record is damaged or not yours"
        ) from error
