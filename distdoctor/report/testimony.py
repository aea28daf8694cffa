"""Which of the files that a job left tell of a finding, and what each kind tells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from distdoctor.model.events import Ended, Failure, State
from distdoctor.model.findings import Finding
from distdoctor.model.observations.failures import TimedOut
from distdoctor.model.observations.nccl import NcclComplaint
from distdoctor.model.operations import OPERATIONS
from distdoctor.model.outside_view import LeftFile, StackBranch
from distdoctor.model.run import Run, named

_MOST_FILES = 16
_MOST_PHRASES = 4
_LONGEST = 100
_BY_SIGNAL = 128


@dataclass(frozen=True, slots=True)
class Testimony:
    """What one kind of evidence tells of a finding.

    Attributes:
        evidence: The kind: dump, log or stack.
        files: That tell it: those of the ranks at fault first; not all, if many do.
        count: How many do.
        what: What they tell, in words.
    """

    evidence: str
    files: tuple[str, ...]
    count: int
    what: str


def testimonies(run: Run, finding: Finding) -> list[Testimony]:
    """What each kind of evidence tells of a finding.

    Args:
        run: The run that is judged.
        finding: What was found.

    Returns:
        One for each kind that tells anything of it; empty for a job that we watched,
        or that was looked at while it ran.
    """
    if "run" in run.evidence or not run.closed:
        return []
    found = []
    for kind, words in (("dump", _of_dumps), ("log", _of_logs), ("stack", _of_stacks)):
        reported = list(dict.fromkeys(words(run, finding)))
        files = list(_files(run, finding, kind))
        if reported and files:
            first = tuple(files[:_MOST_FILES])
            what = "; ".join(reported[:_MOST_PHRASES])
            found.append(Testimony(kind, first, len(files), what))
    return found


def _files(run: Run, finding: Finding, kind: str) -> Iterator[str]:
    """Files of a kind about these ranks, or about the whole job."""
    mine = [file for file in run.files if file.is_read and file.evidence == kind]
    culprits, victims = set(finding.culprits), set(finding.victims)
    everyone = not culprits and not victims

    def about(file: LeftFile) -> int:
        if not culprits.isdisjoint(file.ranks):
            return 0
        return 1 if not file.ranks else 2

    for file in sorted(mine, key=about):
        if everyone or about(file) < 2 or not victims.isdisjoint(file.ranks):
            yield file.path


def _concerned(run: Run, finding: Finding) -> list[int]:
    ranks = [*finding.culprits, *finding.victims] or run.seen
    return [rank for rank in ranks if 0 <= rank < run.world_size]


def _of_dumps(run: Run, finding: Finding) -> Iterator[str]:
    if run.calls_from != "dump":
        return
    concerned = set(_concerned(run, finding))
    by_call: dict[tuple[int, int, int], list[int]] = {}
    inside: set[int] = set()
    calls = run.calls[run.with_state(State.WAITING, State.RAISED)]
    columns = (calls[name].tolist() for name in ("rank", "op", "group", "ordinal"))
    for rank, *call in zip(*columns, strict=True):
        if rank in concerned and rank not in inside:
            inside.add(rank)
            by_call.setdefault((call[0], call[1], call[2]), []).append(rank)
    waiting: dict[str, list[int]] = {}
    for (op, group, ordinal), ranks in by_call.items():
        number = f" (call {ordinal} on {run.groups[group].name})" if ordinal else ""
        waiting.setdefault(f"{OPERATIONS[op].name}{number}", []).extend(ranks)
    for words, ranks in waiting.items():
        yield f"{named(ranks)} in {words}"
    absent = [r for r in finding.culprits if r in run.unseen or r in run.unrecorded]
    if waiting and absent:
        yield f"there is none of {named(absent)}"
    others = [
        rank
        for rank in finding.culprits
        if rank not in inside and rank < run.world_size and run.rows_of(rank)
    ]
    if waiting and others:
        yield f"{named(others)} in no call"


def _of_logs(run: Run, finding: Finding) -> Iterator[str]:
    phrases: dict[str, list[int]] = {}
    for rank in _concerned(run, finding):
        for words in _stated_by(run, rank):
            phrases.setdefault(words, []).append(rank)
    for words, ranks in phrases.items():
        yield f"{named(ranks)} {words}"
    shown = [one for one in finding.exhibits if isinstance(one, NcclComplaint)]
    for one in shown[:_MOST_PHRASES]:
        host = f"{one.host}: " if one.host else ""
        yield f"{host}{one.text[:_LONGEST]}"
    ended = [end for rank in finding.culprits for end in run.of(Ended, rank)]
    if run.starved and any((end.status or 0) == _BY_SIGNAL + 9 for end in ended):
        yield run.starved


def _stated_by(run: Run, rank: int) -> Iterator[str]:
    for failure in run.of(Failure, rank)[:1]:
        if failure.secondary:
            yield f"failed for a peer ({failure.error})"
        elif failure.fatal:
            yield f"raised {failure.error}"
    for end in run.of(Ended, rank)[-1:]:
        if end.stopped or not end.status:
            continue
        if end.status > _BY_SIGNAL:
            yield f"killed by signal {end.status - _BY_SIGNAL}"
    for reported in run.of(TimedOut, rank)[:1]:
        yield f"gave up {reported.op or 'a call'}"


def _of_stacks(run: Run, finding: Finding) -> Iterator[str]:
    concerned = _concerned(run, finding)
    doing = dict(_endings(run.stack_tree))
    where: dict[str, list[int]] = {}
    for rank in concerned:
        if rank in run.stacks:
            where.setdefault(_where(run, rank, doing.get(rank, "")), []).append(rank)
    for words, ranks in where.items():
        if words:
            yield f"{named(ranks)} {words}"


def _where(run: Run, rank: int, words: str) -> str:
    place = run.stacks[rank][0].place if run.stacks[rank] else None
    at = f"at {place}" if place is not None else ""
    return f"in {words} {at}".rstrip() if words else at


def _endings(branches: Sequence[StackBranch]) -> Iterator[tuple[int, str]]:
    """By rank, what it does where its stack ends."""
    fresh: list[StackBranch] = list(branches)
    while fresh:
        branch = fresh.pop()
        for words, ranks in branch.ending:
            for rank in ranks:
                yield rank, words
        fresh += branch.branches


def evidence_of_ranks(
    world_size: int, files: Iterable[LeftFile]
) -> list[tuple[tuple[int, ...], tuple[str, ...]]]:
    """Of which ranks which kinds of files were read.

    Args:
        world_size: Number of ranks.
        files: What was found.

    Returns:
        Ranks of which the same kinds were read, and these; by the first of the ranks.
        Files about no rank in particular are not counted.
    """
    kinds: dict[int, set[str]] = {rank: set() for rank in range(world_size)}
    for file in files:
        if file.is_read:
            for rank in file.ranks:
                if rank in kinds:
                    kinds[rank].add(file.evidence)
    alike: dict[tuple[str, ...], list[int]] = {}
    for rank, found in kinds.items():
        alike.setdefault(tuple(sorted(found)), []).append(rank)
    return [(tuple(ranks), found) for found, ranks in alike.items()]
