"""Checkpoints that a rank reads before another has written them.

That there was no file yet is told by the read of torch.load that failed, or by the
exception that ended the rank, whatever it opened the file with. Where the other rank
had not even begun to write it, the source tells that it was about to.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

from distdoctor.analysis.causes import capital, s
from distdoctor.analysis.checkpoints.checkpoint_files import begun, short, written
from distdoctor.analysis.collectives.happens_before import is_ordered
from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.source.conditions import conditions
from distdoctor.analysis.source.program import Program, called, calls_in
from distdoctor.analysis.source.rank_evaluation import RankReader
from distdoctor.model.events import Failure, Place
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.checkpoints import Opened, Stored, Storing
from distdoctor.model.run import Run, named

_MOST_STORES = 200  # of one file that are compared

_MOST_ASKED = 16
"""Ranks for whom it is worked out whether they write a file."""

_NOT_THERE = "FileNotFoundError"

_PATH = re.compile(r"'([^']+)'")

_SAVES, _LOADS = {"save", "save_file", "dump"}, {"load", "load_file", "open"}


def early_reads(run: Run) -> Iterator[Finding]:
    """Checkpoints that a rank reads with nothing that orders it behind the writing.

    Args:
        run: The run that is judged.

    Yields:
        A finding for each pair of lines, of all ranks that read so.
    """
    if run.simulated:
        return  # each rank was alone, and read what another had left long before
    stores = _Stores(run)
    early: dict[tuple[Place | None, ...], list[_Early]] = {}
    for rank in run.seen:
        for one in _reads(run, rank):
            found = _before(run, one, stores.of(one))
            if found is not None:
                lines = one.event.place, found.written.event.place
                early.setdefault(lines, []).append(found)
    for found_here in early.values():
        yield _early_finding(found_here)
    if not early:
        yield from _about_to_be_written(run, stores)


@dataclass(frozen=True, slots=True)
class _Read:
    """A read, or one that failed; `disk` is not known of one that only failed."""

    event: Opened | Failure
    rank: int
    count: int
    file: str
    error: str
    disk: int | None

    @property
    def began_ns(self) -> int | None:
        return self.event.began_ns if isinstance(self.event, Opened) else None


@dataclass(frozen=True, slots=True)
class _Write:
    """Of a checkpoint under the name that it has in the end; perhaps only begun."""

    event: Stored | Storing
    writer: int
    count: int
    file: str
    ended_ns: int | None = None
    moved: bool = False


@dataclass(frozen=True, slots=True)
class _Early:
    read: _Read
    written: _Write

    @property
    def seen(self) -> bool:
        """Whether it was in fact read before it was there."""
        began, ended = self.read.began_ns, self.written.ended_ns
        return bool(self.read.error) or began is None or ended is None or began < ended


class _Stores:
    """What ranks wrote, by the name that it has in the end."""

    def __init__(self, run: Run) -> None:
        self._by_file: dict[str, list[_Write]] = {}
        for rank in run.seen:
            for one in _writes(run, rank):
                self._by_file.setdefault(one.file, []).append(one)

    def of(self, read: _Read) -> list[_Write]:
        """Those of the file that is read."""
        if read.disk is not None:
            writes = self._by_file.get(read.file, [])
            return [one for one in writes if one.event.disk == read.disk]
        # The exception has the name as the script wrote it.
        end = "/" + read.file.removeprefix("./").lstrip("/")
        return [
            one
            for file, writes in self._by_file.items()
            if file == read.file or file.endswith(end)
            for one in writes
        ]


def _writes(run: Run, rank: int) -> Iterator[_Write]:
    for one in written(run, rank):
        moved = one.moved is not None
        yield _Write(one.stored, rank, one.count, one.file, one.ended_ns, moved)
    for count, event in begun(run, rank):
        yield _Write(event, rank, count, event.file)


def _reads(run: Run, rank: int) -> Iterator[_Read]:
    failed: set[Place | None] = set()
    found = {one.file for one in run.of(Opened, rank) if not one.error}
    for count, event in run.told(Opened, Failure, rank=rank):
        if isinstance(event, Opened):
            failed |= {event.place} if event.error else set()
            if event.error == _NOT_THERE and event.file in found:
                continue  # the rank tries until it is there
            yield _Read(event, rank, count, event.file, event.error, event.disk)
        elif _is_not_there(event) and event.place not in failed:
            path = _PATH.search(event.message)
            if path is not None:
                yield _Read(event, rank, count, path[1], event.error, None)


def _is_not_there(event: object) -> TypeGuard[Failure]:
    return (
        isinstance(event, Failure)
        and event.error == _NOT_THERE
        and event.fatal
        and not event.secondary
    )


def _before(run: Run, read: _Read, stores: list[_Write]) -> _Early | None:
    if any(one.writer == read.rank for one in stores):
        return None
    for one in reversed(stores[-_MOST_STORES:]):
        there, here = (one.writer, one.count), (read.rank, read.count)
        if is_ordered(run, there, here) or is_ordered(run, here, there):
            continue
        found = _Early(read, one)
        # Who polls for a file that appears whole is well.
        return found if found.seen or not one.moved else None
    return None


def _early_finding(found: list[_Early]) -> Finding:
    first = max(found, key=lambda one: one.seen)
    readers = sorted({one.read.rank for one in found})
    file = short(first.written.file)
    writer = named([first.written.writer])
    if first.read.error:
        how = f"failed to ({first.read.error})"
    elif first.seen:
        how = "began before that was done"
    else:
        how = "came later only by luck, unless something else than communication waits"
    return Finding(
        message=(
            f"{capital(named(readers))} read{s(readers)} the checkpoint {file} without "
            f"waiting until {writer} has written it, and {how}."
        ),
        exhibits=(first.read.event, first.written.event),
        victims=tuple(readers),
        locations=_lines(
            (first.read.event.place, readers, "reads the file"),
            (first.written.event.place, [first.written.writer], "writes the file"),
        ),
        certainty=Certainty.PROVED if first.seen else Certainty.LIKELY,
        severity=None if first.seen else Severity.WARNING,
        details={"file": first.written.file, "writer": first.written.writer},
    )


def _lines(*entries: tuple[Place | None, list[int], str]) -> tuple[Location, ...]:
    return tuple(
        Location(place, tuple(who), Role.PARTY, remark)
        for place, who, remark in entries
        if place is not None
    )


# --- a file that nobody has begun to write ---


def _about_to_be_written(run: Run, stores: _Stores) -> Iterator[Finding]:
    """Where a rank finds no file, and a line above writes one that is called the same.

    It is for other ranks by the source, and none of them was seen to come to it.
    """
    reported: set[Place] = set()
    for rank in run.seen:
        ends = [one.place for one in run.of(Failure, rank) if _is_not_there(one)]
        for read in _reads(run, rank):
            place = read.event.place
            if place is None or place in reported or place not in ends:
                continue
            line, writers = _writing(run, place, rank)
            if line is None or not writers or stores.of(read):
                continue
            reported.add(place)
            yield _missing_finding(read, line, writers)


def _missing_finding(read: _Read, line: Place, writers: list[int]) -> Finding:
    has = "has" if len(writers) == 1 else "have"
    return Finding(
        message=(
            f"{capital(named([read.rank]))} reads the checkpoint {short(read.file)} "
            f"without waiting until {named(writers)} {has} written it, as line "
            f"{line.line} does, and failed to ({read.error}): {named(writers)} {has} "
            "not come to that line yet."
        ),
        exhibits=(read.event,),
        victims=(read.rank,),
        locations=_lines(
            (read.event.place, [read.rank], "reads the file"),
            (line, writers, "writes the file"),
        ),
        certainty=Certainty.LIKELY,
        details={"file": read.file},
    )


def _writing(run: Run, place: Place, rank: int) -> tuple[Place | None, list[int]]:
    """The line above one that reads which writes what is called the same, and for whom.

    None where the rank that reads may come to it, too.
    """
    program = program_of(run)
    function = program.at(place.file, place.line)
    if function is None:
        return None, []
    calls = list(calls_in(function))
    names = {
        ast.dump(given)
        for call in calls
        if called(call) in _LOADS and call.lineno <= place.line <= _end(call)
        for given in call.args[:1]
    }
    for call in calls:
        if called(call) not in _SAVES or _end(call) >= place.line:
            continue
        if not any(ast.dump(given) in names for given in _targets(call)):
            continue
        line = Place(place.file, call.lineno, function.name)
        if _comes_to(program, line, rank, run.world_size) is False:
            others = [one for one in run.seen[:_MOST_ASKED] if one != rank]
            return line, [
                one for one in others if _comes_to(program, line, one, run.world_size)
            ]
    return None, []


def _comes_to(program: Program, line: Place, rank: int, size: int) -> bool | None:
    """Whether a rank comes to a line, as far as the tests above it ask for the rank."""
    function = program.at(line.file, line.line)
    if function is None:
        return None
    reader = RankReader(program, rank, size)
    every = [reader.holds(one) for one in conditions(function, line.line)]
    truths = [one.truth for one in every if one.ranked]
    if False in truths:
        return False
    return True if True in truths else None


def _targets(call: ast.Call) -> list[ast.expr]:
    return [*call.args[1:2], *(one.value for one in call.keywords if one.arg == "f")]


def _end(call: ast.Call) -> int:
    return call.end_lineno or call.lineno
