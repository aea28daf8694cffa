"""What stacks tell that were taken of silent ranks, at several looks."""

from __future__ import annotations

import re
from dataclasses import replace

from distdoctor.journal.folder import StackSample
from distdoctor.journal.texts import relative
from distdoctor.model.events import Busy, Dead, Locked, Place, Stranded
from distdoctor.model.run import Frame, Run

_TAKES_A_LOCK = re.compile(r"^\s*with\b|\.acquire\(")

_IDLE_S = 0.5  # of processor time at most, for a process that does nothing

BUSY_LOOKS = 5
"""Stacks that must agree before a rank is called busy in one place."""


def with_stacks(run: Run, samples: list[StackSample], directory: str) -> Run:
    """The run with the last stack of each rank, and who was busy in one place.

    Args:
        run: The run as its journals tell it.
        samples: Stacks in order of time, of any ranks.
        directory: Where the job ran; names of files are told from there.

    Returns:
        The run with `stacks`, and with `Busy`, `Dead`, `Stranded` and `Locked` behind
        the last event of the ranks concerned.
    """
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
        for tells in (_dead, _stranded):
            if rank in life and (told := tells(rank, taken, stacks[rank])) is not None:
                life[rank].append((len(run.rows_of(rank)), told))
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


def _stranded(
    rank: int, samples: list[StackSample], stack: list[Frame]
) -> Stranded | None:
    """A rank that stood at one line at all looks, while its threads waited for others.

    Its last line has to be the user's own: it is what a reader can look at.
    """
    places = {(at.file, at.line) for sample in samples for at in sample.frames[:1]}
    if len(samples) < BUSY_LOOKS or len(places) != 1 or not stack:
        return None
    if not all(sample.stranded for sample in samples):
        return None
    seconds = round(samples[-1].seconds - samples[0].seconds, 1)
    return Stranded(rank=rank, seconds=seconds, place=stack[0].place)


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
        {
            (top.file, top.line, top.function)
            for top, *_ in filter(None, sample.standing)
        }
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
