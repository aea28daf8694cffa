"""Members of a communicator that are gone, as NCCL's RAS tells of a running job.

RAS tells who cannot be reached, not why. A process that had done its part and left,
while another one still writes a file, cannot be reached either: so an error takes a few
that are gone while most are there, use the communicator still, and do not get on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from distdoctor.analysis.causes import capital
from distdoctor.analysis.communicators.status_looks import StatusLook, looks_at
from distdoctor.model.findings import Certainty, Finding, Severity
from distdoctor.model.observations.communicators import AilingMember, MemberState
from distdoctor.model.run import Run, named

_WORDS = {
    MemberState.DEAD: "cannot be reached by NCCL's RAS any more, which counts "
    "{it} as dead",
    MemberState.SILENT: "did not answer NCCL's RAS in time",
    MemberState.LEFT: "no longer {has} the communicator that the others still use",
}

_MOST_NAMED = 8


def lost_members(run: Run, reported: Set[int] = frozenset()) -> Iterator[Finding]:
    """Members that are gone while the others still have the communicator.

    Args:
        run: The run that is judged.
        reported: Ranks that are known to have died already.

    Yields:
        A finding for each way of being gone, at the largest communicator that shows it.
    """
    known: set[object] = set()
    for looks in looks_at(run).values():
        last = looks[-1]
        if last.whole.ending:
            continue
        for state in _WORDS:
            here = [
                one
                for one in last.ailing
                if one.state == state
                and one.known not in reported
                and not known & {*_names(one)}
            ]
            if here and (state is not MemberState.LEFT or _stood(looks, state)):
                known |= {name for one in here for name in _names(one)}
                yield _finding(looks, state, here)


def _names(one: AilingMember) -> Iterator[object]:
    """What tells a member in other communicators."""
    if one.known >= 0:
        yield one.known
    if one.pid:
        yield one.host, one.pid, one.device


def _stood(looks: Sequence[StatusLook], state: MemberState) -> bool:
    """Whether two looks in a row show the same, and no operation between them."""
    if len(looks) < 2:
        return False
    before, last = looks[-2:]
    same = [
        {one.member for one in of.ailing if one.state == state} for of in looks[-2:]
    ]
    return same[0] == same[1] and before.picture == last.picture


def _went_on(looks: Sequence[StatusLook], members: Set[int]) -> bool:
    """Whether operations were launched after these members were gone already."""
    return any(
        one.whole.operations != looks[-1].whole.operations
        and members <= {ailing.member for ailing in one.ailing}
        for one in looks[:-1]
    )


def _finding(
    looks: Sequence[StatusLook], state: MemberState, members: Sequence[AilingMember]
) -> Finding:
    last = looks[-1].whole
    lost = {one.member for one in members}
    is_error = (
        state is MemberState.DEAD
        and 2 * len(lost) < last.size
        and 2 * last.answered > last.size
        and not _went_on(looks, lost)
    )
    ranks = [one.known for one in members] if _all_known(members) else []
    several = len(members) > 1
    words = _WORDS[state].format(
        it="them" if several else "it", has="have" if several else "has"
    )
    stood = (
        " No operation was launched between two looks." if _stood(looks, state) else ""
    )
    return Finding(
        message=f"{capital(_who(members))} {words}, while {last.answered:,} of "
        f"{last.size:,} members of communicator {last.comm} still answer.{stood}",
        exhibits=(last, *members[:_MOST_NAMED]),
        culprits=tuple(sorted(ranks)),
        certainty=Certainty.LIKELY,
        details={
            "communicator": last.comm,
            "state": state.value,
            "hosts": sorted({one.host for one in members if one.host}),
            "pids": sorted({one.pid for one in members if one.pid}),
        },
        severity=None if is_error else Severity.WARNING,
    )


def _all_known(members: Sequence[AilingMember]) -> bool:
    return all(one.known >= 0 for one in members)


def _who(members: Sequence[AilingMember]) -> str:
    """Members as a sentence names them: ranks, and their processes."""
    processes = [
        f"process {one.pid} on {one.host}, GPU {one.device}"
        for one in members[:_MOST_NAMED]
        if one.pid
    ]
    more = ", …" if len(members) > _MOST_NAMED else ""
    where = f" ({'; '.join(processes)}{more})" if processes else ""
    if _all_known(members):
        return named([one.known for one in members]) + where
    numbers = ", ".join(str(one.member) for one in members[:_MOST_NAMED])
    return f"member{'s' * (len(members) > 1)} {numbers}{more}{where}"
