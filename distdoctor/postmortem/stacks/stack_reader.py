"""Reads all stack dumps that a job left, and merges them into its evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from distdoctor.model.events import MOST_RANKS, Busy
from distdoctor.model.run import Frame, named
from distdoctor.postmortem.job_evidence import STACK, Evidence, SourceRead
from distdoctor.postmortem.leavings import Leaving
from distdoctor.postmortem.rank_names import rank_of, ranks_of
from distdoctor.postmortem.readers import Reader
from distdoctor.postmortem.stacks import dump_files
from distdoctor.postmortem.stacks.dump_files import RankDump
from distdoctor.postmortem.stacks.frame_meanings import (
    call_of,
    doing,
    in_backward,
    may_take_long,
    system_call,
)
from distdoctor.postmortem.stacks.stack_tree import merged, shown
from distdoctor.postmortem.stacks.thread_stacks import (
    StackLine,
    ThreadStack,
    place_of,
    users,
)

KIND = "stack dump"

_MOST_TOLD = 8


def read(leavings: Sequence[Leaving], evidence: Evidence) -> None:
    """Read stack dumps into the evidence.

    Args:
        leavings: The files.
        evidence: What is known of the job.
    """
    dumps: list[tuple[Leaving, RankDump]] = []
    for leaving in leavings:
        try:
            found = dump_files.read(leaving)
        except OSError as error:
            evidence.unreadable.append((leaving.path, str(error)))
            continue
        if not found:
            evidence.unreadable.append((leaving.path, "no stack in it can be read"))
        dumps += [(leaving, dump) for dump in found]
    ranks = _ranks(dumps, evidence.world_size)
    by_rank: dict[int, ThreadStack] = {}
    elsewhere: dict[int, list[Busy]] = {}
    unnamed: list[ThreadStack | None] = []
    for (leaving, dump), rank in zip(dumps, ranks, strict=True):
        who = () if rank is None else (rank,)
        ended = f"a core, written as {dump.signal} ended it" if dump.signal else ""
        evidence.sources.append(
            SourceRead(leaving.path, _kind(dump), STACK, who, ended)
        )
        if ended:
            evidence.remarks.append(f"{leaving.path}: {ended}")
        main = dump.stacks.main
        if rank is None or main is None:
            unnamed.append(main)
            continue
        evidence.world_size = max(evidence.world_size, dump.world_size)
        by_rank[rank] = main  # of several, the last
        if dump.signal:
            continue  # where it died it did not wait
        elsewhere[rank] = _elsewhere(rank, main, dump.stacks.others)
    _tell(by_rank, evidence)
    for rank, busy in elsewhere.items():
        evidence.add(rank, *busy)
    if unnamed:
        evidence.remarks += _of_nobody(unnamed)


READER = Reader(KIND, dump_files.recognises, read)


def _kind(dump: RankDump) -> str:
    by = dump.stacks.taken_by
    return f"{KIND} of {by}" if by else KIND


def _ranks(
    dumps: Sequence[tuple[Leaving, RankDump]], world_size: int
) -> list[int | None]:
    """The rank of each dump, by its file's text, or by the names of all files.

    Names that only count do not tell ranks where there are more of them than ranks that
    are known: they are of a launcher and of workers as well.
    """
    paths = list(dict.fromkeys(leaving.path for leaving, _ in dumps))
    by_name = ranks_of(paths)
    if len(paths) > world_size > 0:
        by_name = {path: n for path, n in by_name.items() if rank_of(path) == n}
    several: dict[str, int] = {}
    for leaving, _ in dumps:
        several[leaving.path] = several.get(leaving.path, 0) + 1
    found: list[int | None] = []
    for leaving, dump in dumps:
        rank = dump.rank
        if rank is None and (several[leaving.path] == 1 or _is_repeated(dump)):
            rank = by_name.get(leaving.path)
        found.append(rank if rank is None or rank < MOST_RANKS else None)
    return found


def _is_repeated(dump: RankDump) -> bool:
    """Whether a file with several dumps has them of one process, one after another."""
    return dump.stacks.taken_by == "faulthandler"


def _tell(by_rank: Mapping[int, ThreadStack], evidence: Evidence) -> None:
    if not by_rank:
        return
    evidence.world_size = max(evidence.world_size, *(rank + 1 for rank in by_rank))
    words = {rank: words_of(thread) for rank, thread in by_rank.items()}
    frames: dict[tuple[StackLine, ...], list[Frame]] = {}
    for rank, thread in sorted(by_rank.items()):
        evidence.add(rank)
        if thread.lines not in frames or thread.variables:
            frames[thread.lines] = _frames(thread)
        evidence.stacks.setdefault(rank, frames[thread.lines])
    evidence.stack_tree = merged(
        {
            rank: tuple(line for line in thread.lines if line.line) or thread.lines
            for rank, thread in by_rank.items()
        },
        words,
    )
    evidence.remarks += _remarks(by_rank, words)


def _elsewhere(
    rank: int, main: ThreadStack, others: Sequence[ThreadStack]
) -> list[Busy]:
    """Where a rank stood that was in no call, and did nothing that many do for long."""
    words = doing(main.lines) or system_call(main.lines)
    own = next(users(main.lines), None)
    called = any(call_of(thread) or in_backward(thread) for thread in (main, *others))
    if own is None or called or may_take_long(words):
        return []
    if not words and main.is_idle:
        words = "waiting for something"
    return [Busy(rank=rank, place=place_of(own[1]), seconds=0, looks=1, doing=words)]


def words_of(thread: ThreadStack) -> str:
    """What a thread was doing, in words; empty: its lines alone tell.

    Args:
        thread: Its stack.
    """
    call = call_of(thread)
    if call is not None:
        return call.words
    return "in backward" if in_backward(thread) else doing(thread.lines)


def _frames(thread: ThreadStack) -> list[Frame]:
    found = []
    for at, line in users(thread.lines):
        variables = thread.variables[at] if at < len(thread.variables) else {}
        integers = {}
        for name, value in variables.items():
            with suppress(ValueError):
                integers[name] = int(value)
        found.append(Frame(place_of(line), integers))
    return found


def _remarks(
    by_rank: Mapping[int, ThreadStack], words: Mapping[int, str]
) -> Iterator[str]:
    """Where ranks were, those of which there are the fewest last."""
    where: dict[str, list[int]] = {}
    known: dict[tuple[tuple[StackLine, ...], str], str] = {}
    for rank, thread in sorted(by_rank.items()):
        key = thread.lines, words[rank]
        if key not in known:
            known[key] = _where(thread, words[rank])
        where.setdefault(known[key], []).append(rank)
    ordered = sorted(where.items(), key=lambda item: -len(item[1]))
    for at, ranks in ordered[:_MOST_TOLD]:
        yield f"{named(ranks)}: {at}"
    if len(ordered) > _MOST_TOLD:
        rest = ordered[_MOST_TOLD:]
        others = sum(len(ranks) for _, ranks in rest)
        yield f"{others:,} other ranks: at {len(rest):,} other places"
    yield (
        "a stack tells where a rank was when it was taken, and not for how long: "
        "nothing is proved by it"
    )


def _of_nobody(threads: Sequence[ThreadStack | None]) -> Iterator[str]:
    """Where processes were that are not known to be a rank, most of them first."""
    yield f"{len(threads):,} stack dumps name no rank: call their files rank0, rank1, …"
    where = Counter(
        _where(one, words_of(one)) for one in threads if one is not None and one.lines
    )
    for at, count in where.most_common(_MOST_TOLD):
        yield f"{count:,} of them: {at}"


def _where(thread: ThreadStack, words: str) -> str:
    words = words.removeprefix("in ")
    for _, line in users(thread.lines):
        at = f"at {line.file}:{line.line} {line.function}".rstrip()
        return f"in {words} {at}" if words else at
    if words:
        return f"in {words}"
    inner = next(iter(thread.lines), None)
    if inner is None:
        return "without a line"
    return f"in {inner.function} ({shown(inner.file)})"
