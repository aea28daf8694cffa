"""Members that launched unequally many operations, and do not move from there.

Counts are taken from a running job, so a difference in one look is no sign of anything.
Of two looks that show the same, two kinds are told apart. If of two members one is
behind in everything, it may be stuck, or busy with something else. If each is ahead of
the other in some operation, they have made different calls: no member that is only late
can do that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from distdoctor.analysis.causes import capital
from distdoctor.analysis.communicators.status_looks import (
    StatusLook,
    looks_at,
    seconds_between,
)
from distdoctor.model.findings import Certainty, Finding, Severity
from distdoctor.model.observations.communicators import LaunchedCount
from distdoctor.model.run import Run, named

_TOO_LONG_S = 600
"""So long waits no rank of a job that is well: NCCL's own timeout in torch is less."""

_MOST_NAMED = 8


def unequal_counts(run: Run) -> Iterator[Finding]:
    """Members whose counts differ and did not move between the last two looks.

    Args:
        run: The run that is judged.

    Yields:
        One finding for each communicator; a warning where one is only behind.
    """
    for looks in looks_at(run).values():
        if len(looks) < 2 or looks[-1].whole.ending or not looks[-1].counts:
            continue
        still = _still(looks)
        if len(still) > 1:
            yield _finding(still)


def _still(looks: Sequence[StatusLook]) -> list[StatusLook]:
    """The last looks that show the same."""
    found = [looks[-1]]
    for look in reversed(looks[:-1]):
        if look.picture != found[0].picture or look.whole.ending:
            break
        found.insert(0, look)
    return found


def _finding(still: Sequence[StatusLook]) -> Finding:
    last = still[-1]
    exhibits = [one for of in last.counts.values() for one in of]
    crossed = _crossed(last.counts)
    seconds = seconds_between(still[0], last)
    behind = () if crossed else _behind(last)
    ranks = _ranks(last, behind)
    for_so_long = f"for {seconds:,} s" if seconds else "in two looks"
    counts = "; ".join(_of_op(op, of) for op, of in list(last.counts.items())[:4])
    if crossed:
        subject = "Ranks launched different operations"
    elif ranks:
        subject = f"{capital(named(ranks))} stood behind the others"
    elif behind:
        who = ", ".join(map(str, behind[:_MOST_NAMED]))
        subject = f"Member{'s' * (len(behind) > 1)} {who} stood behind the others"
    else:
        subject = "Ranks had launched unequally many operations"
    is_error = crossed or seconds >= _TOO_LONG_S
    return Finding(
        message=f"{subject} on communicator {last.whole.comm}, and none moved "
        f"{for_so_long}: {counts}.",
        exhibits=(last.whole, *exhibits[:64]),
        culprits=ranks,
        certainty=Certainty.PROVED if crossed else Certainty.LIKELY,
        details={
            "communicator": last.whole.comm,
            "seconds": seconds,
            "members": list(behind),
            "operations": sorted(last.counts),
        },
        severity=None if is_error else Severity.WARNING,
    )


def _crossed(counts: Mapping[str, Sequence[LaunchedCount]]) -> bool:
    """Whether two members are each ahead of the other in some operation."""
    by_op = [
        {member: one.launched for one in of for member in one.members}
        for of in counts.values()
    ]
    members = set.intersection(*(set(of) for of in by_op))
    every = {tuple(of[member] for of in by_op) for member in members}
    ordered = sorted(every, key=sum)
    # Along a chain in which each is behind the next, no two are crossed.
    return any(
        any(a > b for a, b in zip(less, more, strict=True))
        for less, more in pairwise(ordered)
    )


def _behind(look: StatusLook) -> tuple[int, ...]:
    """The members that are last in all that differs, if they are few and all named.

    Others may be behind the first as well: each host runs ahead as far as it can.
    """
    last: set[int] | None = None
    for of in look.counts.values():
        least = min(of, key=lambda one: one.launched)
        if len(least.members) != least.count:
            return ()  # not all of them are named
        mine = {*least.members}
        last = mine if last is None else last & mine
    found = last or set()
    return tuple(sorted(found)) if 2 * len(found) < look.whole.answered else ()


def _ranks(look: StatusLook, members: Sequence[int]) -> tuple[int, ...]:
    """Ranks of these members in the job; none, if one is not known."""
    known = {
        member: rank
        for of in look.counts.values()
        for one in of
        for member, rank in zip(one.members, one.known, strict=False)
    }
    if all(member in known for member in members):
        return tuple(sorted(known[member] for member in members))
    return ()


def _of_op(op: str, of: Sequence[LaunchedCount]) -> str:
    reported = sorted(of, key=lambda one: -one.count)[:4]
    parts = [f"{one.count:,} at {one.launched:,}" for one in reported]
    return f"{op} {', '.join(parts)}" + ", …" * (len(of) > len(reported))
