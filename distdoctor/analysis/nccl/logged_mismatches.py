"""Calls of ranks on one communicator that do not match, or are not there."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from distdoctor.analysis.nccl.logged_job import LoggedJob, Party, Told, parties_of
from distdoctor.analysis.nccl.mismatch_facts import (
    LoggedDifference,
    LoggedLag,
    LoggedMisfit,
    OtherSizes,
    RefusedCall,
)
from distdoctor.model.findings import Certainty
from distdoctor.model.observations.nccl import ComplaintKind, LoggedCalls

_ANY = "?"
_CLEAR = 2 / 3
"""Share of the ranks that must agree for the others to be at fault."""

_FEW, _TELLING = 4, 13
"""Calls behind one that differs that are compared, at least and at most."""


_Members = Mapping[int, tuple[Party, LoggedCalls]]


def logged_mismatches(job: LoggedJob) -> Iterator[Told]:
    """The first call that not all ranks made alike, on each communicator.

    Args:
        job: The job.
    """
    for name, members in _by_communicator(job).items():
        at = _first_difference(members)
        if at is None:
            continue
        reported = _mismatch(job, name, members, at)
        if reported is not None:
            yield reported
            return


def lagging(job: LoggedJob) -> Iterator[Told]:
    """Ranks that are behind on a communicator when a job has failed.

    Args:
        job: The job.
    """
    if not (job.failed or job.aborted):
        return
    found: list[tuple[int, int, str, list[int]]] = []
    for name, members in _by_communicator(job).items():
        if _first_difference(members) is None:
            behind = _behind(members)
            if behind:
                found.append((len(behind), len(found), name, behind))
    if found:
        # Who waits for the one that is behind falls behind elsewhere.
        *_, name, behind = min(found)
        yield _lag(name, _by_communicator(job)[name], behind)


def _behind(members: _Members) -> list[int]:
    """Who has made fewer calls, where the others are level; else nobody is named.

    A process that is killed loses its last lines: then all end anywhere.
    """
    counts = {key: calls.count for key, (_, calls) in members.items()}
    least = min(counts.values())
    behind = [key for key, count in counts.items() if count == least]
    others = [count for count in counts.values() if count > least]
    torn = any(calls.torn for key, (_, calls) in members.items() if key in behind)
    if len(behind) >= len(others) or max(others) - min(others) > 1 or torn:
        return []
    return behind


def _lag(name: str, members: _Members, behind: list[int]) -> Told:
    counts = {key: calls.count for key, (_, calls) in members.items()}
    least, most = counts[behind[0]], max(counts.values())
    parties = [members[key][0] for key in behind]
    calls = members[behind[0]][1]
    ahead = next(one for _, one in members.values() if one.count > least)
    at = least + 1 - ahead.start
    missed = ahead.calls[at] if 0 <= at < len(ahead.calls) else "the next call"
    return Told(
        code="DD608",
        facts=LoggedLag(parties, name, least, most, missed),
        parties=parties,
        exhibits=[calls, ahead],
        certainty=Certainty.LIKELY,
        details={"kind": "lagging", "communicator": name, "behind": most - least},
    )


def unlike_messages(job: LoggedJob) -> Iterator[Told]:
    """Sends and receives of a pair of ranks that do not fit each other.

    Args:
        job: The job.
    """
    for sender in job.parties.values():
        for one in sender.messages:
            receiver = job.members_of(one.comm).get(one.peer)
            if receiver is None:
                continue
            odd = []
            if one.usual and one.usual in {one.sent, one.received}:
                odd = [sender] if one.usual == one.received else [receiver]
            yield Told(
                code="DD608",
                facts=LoggedMisfit(sender, receiver, one, bool(odd)),
                parties=odd,
                hosts=sorted({sender.host, receiver.host} - {""}),
                exhibits=[one],
                certainty=Certainty.LIKELY if odd else Certainty.PROVED,
                details={"kind": "message", "communicator": one.comm},
            )
            return


def complained_mismatches(job: LoggedJob) -> Iterator[Told]:
    """Calls of other sizes, as NCCL itself notices them.

    Args:
        job: The job.
    """
    kinds = ComplaintKind.SIZES, ComplaintKind.MISMATCH, ComplaintKind.MISUSE
    stated = list(job.complaints(*kinds))
    if not stated:
        return
    first = stated[0][1]
    parties = parties_of(stated)
    ranks = {rank for _, one in stated for rank in one.named}
    if first.kind == ComplaintKind.MISUSE:
        yield Told(
            code="DD608",
            facts=RefusedCall(parties, first.text),
            parties=parties,
            exhibits=[one for _, one in stated],
            details={"kind": first.kind},
        )
        return
    yield Told(
        code="DD608",
        facts=OtherSizes(parties, sorted(ranks), first.text),
        ranks=ranks if len(ranks) == 1 else (),
        hosts=sorted({party.host for party in parties if party.host}),
        exhibits=[one for _, one in stated],
        certainty=Certainty.LIKELY,
        details={"kind": first.kind},
    )


def _by_communicator(job: LoggedJob) -> dict[str, _Members]:
    found: dict[str, dict[int, tuple[Party, LoggedCalls]]] = defaultdict(dict)
    for party in job.parties.values():
        for calls in party.calls:
            found[calls.comm][party.key] = party, calls
    return {name: members for name, members in found.items() if len(members) > 1}


def _first_difference(members: _Members) -> int | None:
    """The position in the windows of the first call that is not alike."""
    windows = [calls.calls for _, calls in members.values()]
    for at in range(max(map(len, windows))):
        reported = {calls[at] for calls in windows if at < len(calls)} - {_ANY}
        if len(reported) > 1:
            return at
    return None


def _mismatch(job: LoggedJob, name: str, members: _Members, at: int) -> Told | None:
    here = {
        key: calls.calls[at]
        for key, (_, calls) in members.items()
        if at < len(calls.calls) and calls.calls[at] != _ANY
    }
    counted = Counter(here.values())
    usual, most = counted.most_common(1)[0]
    odd = [key for key, call in here.items() if call != usual]
    is_clear = most >= _CLEAR * len(here) and most > 1
    reference = next(members[key][1] for key, call in here.items() if call == usual)
    strange = members[odd[0]][1]
    how = _how(reference.calls[at:], strange.calls[at:])
    if any(one.torn for _, one in members.values()) and not (
        how == "unlike" and _is_one_of_many(reference.calls[at:], strange.calls[at:])
    ):
        return None  # a line that was lost looks the same
    ordinal = reference.start + at
    parties = [members[key][0] for key in odd]
    group = [members[key][0] for key, call in here.items() if call == usual]
    return Told(
        code="DD608",
        facts=LoggedDifference(how, parties, group, usual, here[odd[0]], ordinal, name),
        parties=parties if is_clear else (),
        hosts=sorted({party.host for party in parties if party.host}),
        exhibits=[members[key][1] for key in [*odd[:8], *list(here)[:8]]],
        details={
            "kind": how,
            "communicator": name,
            "call": ordinal,
            "calls": dict(counted),
            "failed": job.failed,
        },
    )


def _how(usual: Sequence[str], odd: Sequence[str]) -> str:
    """In what way a rank's calls part from those of the others."""
    if _alike(usual[1:], odd) and not _alike(usual[1:], odd[1:]):
        return "missing"
    if _alike(usual, odd[1:]) and not _alike(usual[1:], odd[1:]):
        return "extra"
    if usual[:2] == list(odd[:2])[::-1] or tuple(usual[:2]) == tuple(odd[1::-1]):
        return "swapped"
    return "unlike"


def _is_one_of_many(usual: Sequence[str], odd: Sequence[str]) -> bool:
    """Whether only an argument differs, and enough calls behind it are the same."""
    behind = tuple(usual[1:_TELLING]), tuple(odd[1:_TELLING])
    return (
        usual[0].partition("(")[0] == odd[0].partition("(")[0]
        and len(behind[0]) >= _FEW
        and behind[0] == behind[1]
        and _ANY not in behind[0]
        and len(set(behind[0])) > 1
    )


def _alike(a: Sequence[str], b: Sequence[str]) -> bool:
    """Whether two sequences agree as far as both go; empty ones tell nothing."""
    pairs = list(zip(a, b, strict=False))
    return bool(pairs) and all(x == y or _ANY in {x, y} for x, y in pairs)
