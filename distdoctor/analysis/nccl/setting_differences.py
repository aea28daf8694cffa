"""Versions and settings of NCCL that are not the same on all ranks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from distdoctor.analysis.nccl.logged_job import LoggedJob, Party, Told, who
from distdoctor.model.events import Event
from distdoctor.model.findings import Certainty, Severity
from distdoctor.model.observations.nccl import ComplaintKind, NcclComplaint
from distdoctor.model.run import named

OF_A_HOST = re.compile(
    r"NCCL_(?:DEBUG.*|SOCKET_IFNAME|OOB_NET_IFNAME|IB_HCA|IB_GID_INDEX|HOSTID|COMM_ID"
    r"|TOPO_DUMP.*|GRAPH_DUMP.*|CONF_FILE|.*_FILE_?RANK|LOCAL.*|RAS_.*|PROFILER.*)$"
)
"""Settings that may well differ: they name what a host has, or where to write."""

MEETING = re.compile(
    r"NCCL_(?:ALGO|PROTO|NTHREADS|BUFFSIZE|.*NCHANNELS|NET|NET_PLUGIN|CROSS_NIC|COLLNET.*"
    r"|TOPO_FILE|GRAPH_FILE|LL_.*|LL128.*|P2P_.*|SHM_.*|IB_DISABLE|NVLS.*|CUMEM.*|MNNVL.*"
    r"|NSOCKS.*|SOCKET_NTHREADS)$"
)
"""Settings that ranks have to agree about."""

_CODES = re.compile(r"rank (\d+) version (\d+)")


def version_differences(job: LoggedJob) -> Iterator[Told]:
    """Ranks with another version of NCCL, as it is told, or as lines show.

    Args:
        job: The job.
    """
    stated = list(job.complaints(ComplaintKind.VERSIONS))
    by_version = _by(
        {p.key: p.process.version for p in job.parties.values() if p.process}
    )
    if stated:
        yield _reported_by_nccl(
            job, stated[0][1].text, by_version, [one for _, one in stated]
        )
        return
    if len(by_version) > 1:
        odd, usual = _odd(job, by_version)
        parts = "; ".join(
            f"{version} on {_who(job, keys)}" for version, keys in by_version.items()
        )
        yield Told(
            code="DD601",
            message=f"Versions of NCCL differ: {parts}.",
            parties=odd,
            hosts=sorted({party.host for party in odd or job.parties.values()}),
            exhibits=_processes(odd or usual),
            severity=None if _hurts(job) else Severity.WARNING,
            cure="One image for all hosts; one libnccl on the path.",
            details={"versions": dict(by_version)},
        )
        return
    if _hurts(job):
        yield from _unlike_lines(job)


def _reported_by_nccl(
    job: LoggedJob,
    text: str,
    by_version: dict[str, list[int]],
    stated: Sequence[NcclComplaint],
) -> Told:
    odd, _ = _odd(job, by_version) if len(by_version) > 1 else ([], [])
    codes = {int(rank): code for rank, code in _CODES.findall(text)}
    for one in stated:
        codes |= {int(r): c for r, c in _CODES.findall(one.text)}
    ranks: list[int] = []
    if not odd and codes:
        grouped = _by(codes)
        least = min(grouped.values(), key=len)
        most = max(grouped.values(), key=len)
        ranks = least if len(least) < len(most) else []
    subject = who(odd) if odd else named(ranks) if ranks else ""
    other = f"; the odd ones are {subject}" if subject else ""
    return Told(
        code="DD601",
        message=f"Versions of NCCL differ between ranks{other}: {text}",
        parties=odd,
        ranks=ranks,
        hosts=sorted({party.host for party in odd or job.parties.values()}),
        exhibits=stated,
        cure="One image for all hosts; one libnccl on the path.",
        details={"versions": dict(by_version)},
    )


def _unlike_lines(job: LoggedJob) -> Iterator[Told]:
    """Lines of another form: of another version, which did not say its number."""
    forms: dict[str, dict[int, str]] = defaultdict(dict)
    for party in job.parties.values():
        for trait in party.process.traits if party.process else ():
            name, _, value = trait.partition("=")
            forms[name][party.key] = value
    for name, by_party in forms.items():
        groups = _by(by_party)
        if len(groups) < 2:
            continue
        odd, usual = _odd(job, groups)
        subject = who(odd) if odd else "ranks"
        yield Told(
            code="DD601",
            message=f"Versions of NCCL differ: lines of {subject} have another form "
            f"than those of others ({name}: {' or '.join(groups)}).",
            parties=odd,
            hosts=sorted({party.host for party in odd}),
            exhibits=_processes(odd or usual),
            certainty=Certainty.LIKELY,
            cure="One image for all hosts; one libnccl on the path.",
        )
        return


def setting_differences(job: LoggedJob, blamed: bool) -> Iterator[Told]:
    """Settings that are not the same on all ranks.

    Args:
        job: The job.
        blamed: Something failed that they explain.
    """
    reported = {p.key: dict(_pairs(p)) for p in job.parties.values() if p.process}
    made = {key for key in reported if _has_come_far(job.parties[key])}
    if not made and blamed:
        made = {key for key in reported if job.parties[key].communicators}
    names = sorted({name for settings in reported.values() for name in settings})
    for name in names:
        if OF_A_HOST.match(name):
            continue
        values = {
            key: settings.get(name, "not set")
            for key, settings in reported.items()
            if name in settings or key in made
        }
        groups = _by(values)
        if len(groups) < 2 or not made:
            continue
        if "not set" in groups and (
            _is_torn(job, groups["not set"]) or not _all_would_tell(job, name, groups)
        ):
            continue
        odd, usual = _odd(job, groups)
        parts = "; ".join(
            f"{value} on {_who(job, keys)}" for value, keys in groups.items()
        )
        hurts = blamed and MEETING.match(name) is not None
        yield Told(
            code="DD601",
            message=f"{name} differs between ranks: {parts}"
            + (", and what they send does not fit each other." if hurts else "."),
            parties=odd,
            hosts=sorted({party.host for party in odd}) or job.hosts,
            exhibits=_processes(odd or usual),
            severity=None if hurts else Severity.WARNING,
            certainty=Certainty.LIKELY if hurts else Certainty.PROVED,
            cure=f"Set {name} alike on all ranks, or nowhere.",
            details={"name": name, "values": dict(groups)},
        )


def _all_would_tell(job: LoggedJob, name: str, groups: dict[str, list[int]]) -> bool:
    """Whether a rank that did not tell a setting would have, if it had it.

    Some are told only by ranks that reach other hosts.
    """
    if MEETING.match(name):
        return True
    if name.startswith(("NCCL_IB_", "NCCL_SOCKET_", "NCCL_NET_")):
        return False
    hosts = [{job.parties[key].host for key in keys} for keys in groups.values()]
    return sum(map(len, hosts)) == len(set().union(*hosts))


def _pairs(party: Party) -> Iterator[tuple[str, str]]:
    for setting in party.process.settings if party.process else ():
        name, _, value = setting.partition("=")
        yield name, value.strip()


def _has_come_far(party: Party) -> bool:
    """Whether it must have told of all that it was set to."""
    return any(one.complete for one in party.communicators)


def _is_torn(job: LoggedJob, keys: Sequence[int]) -> bool:
    return any(p.torn for key in keys if (p := job.parties[key].process))


def _by(values: dict[int, str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for key, value in values.items():
        if value:
            found[value].append(key)
    return dict(found)


def _odd(
    job: LoggedJob, groups: dict[str, list[int]]
) -> tuple[list[Party], list[Party]]:
    """Those in the minority, and those in the majority; none are odd at a tie."""
    usual = max(groups.values(), key=len)
    odd = [key for keys in groups.values() if keys is not usual for key in keys]
    clear = len(odd) < len(usual)
    return (
        [job.parties[key] for key in odd] if clear else [],
        [job.parties[key] for key in usual],
    )


def _who(job: LoggedJob, keys: Sequence[int]) -> str:
    return who([job.parties[key] for key in keys])


def _processes(parties: Sequence[Party]) -> list[Event]:
    return [party.process for party in parties if party.process is not None]


def _hurts(job: LoggedJob) -> bool:
    """Whether the job failed, or no communicator was made."""
    return job.failed or bool(job.communicators and job.made_none)
