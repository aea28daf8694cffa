"""Stragglers and slow links, from durations that NCCL's Inspector recorded.

Durations alone never show that anything is wrong: they cost time, and are told as
advice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from statistics import median

from distdoctor.analysis.causes import capital
from distdoctor.analysis.communicators.status_looks import observed
from distdoctor.model.findings import Certainty, Finding, Severity
from distdoctor.model.observations.communicators import MemberWaits, TransferTime
from distdoctor.model.run import Run, named

_FEWEST = 20
_SHORTEST_MS = 10  # below it, it is the pace of one step or another
_ITS_SHARE = 0.9  # of all waits for a last member, in number and in time
_OF_THE_TIME = 0.25

_FEWEST_ALIKE = 4
_SO_MUCH_SLOWER = 3.0
_LARGE_BYTES = 1 << 20  # smaller ones take the time of a start, and not of a link


def late_members(run: Run, reported: Set[int] = frozenset()) -> Iterator[Finding]:
    """The member that the others of a communicator keep waiting for.

    Args:
        run: The run that is judged.
        reported: Ranks that are known to be late already.

    Yields:
        At most one finding for each communicator, and one for each rank.
    """
    comms: dict[str, list[MemberWaits]] = {}
    for one in observed(run, MemberWaits):
        comms.setdefault(one.comm, []).append(one)
    seen = set(reported)
    for members in sorted(comms.values(), key=lambda of: -of[0].size):
        late = _latest(members)
        if late is None or late.known in seen:
            continue
        if late.known >= 0:
            seen.add(late.known)
        yield _of_member(late)


def _long(one: MemberWaits) -> list[int]:
    return [wait for wait in one.waits_ms if wait >= _SHORTEST_MS]


def _share(one: MemberWaits) -> float:
    """Of the time, what went by in waiting for it; only some collectives are known."""
    if one.span_ms <= 0 or one.joint <= 0:
        return 0.0
    every = max(one.every, one.joint)
    return min(sum(_long(one)) * every / one.joint / one.span_ms, 1.0)


def _latest(members: Sequence[MemberWaits]) -> MemberWaits | None:
    late = max(members, key=lambda one: sum(_long(one)))
    mine = _long(late)
    every = [wait for one in members for wait in _long(one)]
    if (
        len(mine) < _FEWEST
        or len(mine) < _ITS_SHARE * len(every)
        or sum(mine) < _ITS_SHARE * sum(every)
        or _share(late) < _OF_THE_TIME
    ):
        return None
    return late


def _of_member(late: MemberWaits) -> Finding:
    waits = _long(late)
    who = f"member {late.member}" if late.known < 0 else named([late.known])
    host = f" (host {late.host})" if late.host else ""
    return Finding(
        message=f"{capital(who)}{host} came last to {len(waits):,} of {late.joint:,} "
        f"collectives on communicator {late.comm}, by {median(waits):.0f} ms in the "
        f"median; the others waited for it during {_share(late):.0%} of the time.",
        exhibits=(late,),
        culprits=(late.known,) if late.known >= 0 else (),
        certainty=Certainty.LIKELY,
        details={"communicator": late.comm, "member": late.member, "host": late.host},
        severity=Severity.WARNING,
    )


def slow_links(run: Run) -> Iterator[Finding]:
    """Communicators that move the same data far more slowly than others like them.

    Args:
        run: The run that is judged.

    Yields:
        A warning for each operation and size that shows it, the largest only.
    """
    alike: dict[tuple[str, int, int, int], dict[str, TransferTime]] = {}
    for one in observed(run, TransferTime):
        if (
            one.times >= _FEWEST
            and one.size_bytes >= _LARGE_BYTES
            and one.median_us > 0
        ):
            key = one.size_bytes, one.op, one.size, len(one.hosts)
            alike.setdefault((key[1], key[0], key[2], key[3]), {})[one.comm] = one
    reported: set[str] = set()
    for _, of in sorted(alike.items(), key=lambda one: -one[0][1]):
        every = [*of.values()]
        usual = median(one.median_us for one in every)
        slow = [one for one in every if one.median_us >= _SO_MUCH_SLOWER * usual]
        rest = [one for one in every if one not in slow]
        if (
            len(every) >= _FEWEST_ALIKE
            and 0 < len(slow) * 2 < len(every)
            and not reported & {one.comm for one in slow}
        ):
            reported |= {one.comm for one in slow}
            yield _of_link(slow, rest, usual)


def _of_link(
    slow: Sequence[TransferTime], rest: Sequence[TransferTime], usual: float
) -> Finding:
    worst = max(slow, key=lambda one: one.median_us)
    common = set(slow[0].hosts).intersection(*(one.hosts for one in slow))
    common -= {host for one in rest for host in one.hosts}
    hosts = sorted(common) or sorted({host for one in slow for host in one.hosts})
    shown = ", ".join(hosts[:8]) + ", …" * (len(hosts) > 8)
    where = f"host{'s' * (len(hosts) > 1)} {shown}"
    return Finding(
        message=f"{worst.op} of {worst.size_bytes:,} bytes took {worst.median_us:,} µs "
        f"in the median on communicator {worst.comm} ({where}), once all members were "
        f"there, and {usual:,.0f} µs on {len(rest):,} others of {worst.size} members.",
        exhibits=tuple(slow[:64]),
        certainty=Certainty.LIKELY,
        details={"hosts": hosts, "communicators": sorted({one.comm for one in slow})},
        severity=Severity.WARNING,
    )
