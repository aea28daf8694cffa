"""What NCCL's log tells of hosts, GPUs, communicators and the ways between them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from distdoctor.analysis.nccl.logged_job import LoggedJob, Party, job_of
from distdoctor.model.run import Run, named, ranges
from distdoctor.report.html.shown_text import shown
from distdoctor.report.schema import Report

_MOST_HOSTS = 18
_MOST_GPUS = 16
_MOST_COMMUNICATORS = 32
_PER_ROW = 3
_HOST_WIDE, _GPU_WIDE, _GPU_HIGH = 300, 66, 40

NO_NCCL = "No log of NCCL was read, so nothing tells of its topology."


@dataclass(frozen=True, slots=True)
class NcclGpu:
    """A GPU, or a process of which the GPU is not known."""

    label: str
    rank: str
    mark: str  # culprit
    x: int
    y: int
    title: str


@dataclass(frozen=True, slots=True)
class NcclHost:
    """A host, or several that look the same."""

    name: str
    gpus: tuple[NcclGpu, ...]
    inside: str
    between: str
    x: int
    y: int
    height: int
    left_out: int


@dataclass(frozen=True, slots=True)
class NcclPicture:
    """The hosts, and the communicators over them.

    Attributes:
        hosts: With their places.
        width: Of the drawing.
        height: Likewise.
        left_out: Hosts that are not drawn.
        processes: Ranks that said the same, and what: version, network, interfaces.
        communicators: Name, size, members in the log, state.
        more: Communicators that are not listed.
    """

    hosts: tuple[NcclHost, ...]
    width: int
    height: int
    left_out: int
    processes: tuple[tuple[str, str], ...]
    communicators: tuple[tuple[str, str, str, str], ...]
    more: int


def nccl_picture(run: Run, report: Report) -> NcclPicture | str:
    """The picture of a run.

    Args:
        run: What was examined.
        report: What was found.

    Returns:
        The picture, or why there is none.
    """
    job = job_of(run)
    if not any(p.process or p.communicators for p in job.parties.values()):
        return NO_NCCL
    culprits = {rank for one in report.findings for rank in one.ranks}
    by_host: dict[str, list[Party]] = {}
    for party in job.parties.values():
        by_host.setdefault(party.host, []).append(party)
    # Hosts with ranks at fault come first: not all may have room.
    names = sorted(
        by_host,
        key=lambda one: (not _is_odd(by_host[one], culprits), _by_number(one)),
    )
    hosts = tuple(_hosts({n: by_host[n] for n in names[:_MOST_HOSTS]}, culprits))
    communicators = [*_communicators(job)]
    return NcclPicture(
        hosts=hosts,
        width=min(len(hosts), _PER_ROW) * (_HOST_WIDE + 14),
        height=max((one.y + one.height for one in hosts), default=0) + 8,
        left_out=len(by_host) - len(hosts),
        processes=tuple(_processes(job)),
        communicators=tuple(communicators[:_MOST_COMMUNICATORS]),
        more=max(0, len(communicators) - _MOST_COMMUNICATORS),
    )


def _is_odd(parties: Sequence[Party], culprits: set[int]) -> bool:
    """Whether a rank of a host is at fault, or not known."""
    return any(one.key in culprits or not one.is_ranked for one in parties)


def _by_number(name: str) -> tuple[tuple[int, int | str], ...]:
    """A key by which `pod-9` comes before `pod-10`."""
    parts = re.findall(r"\d+|\D+", name)
    return tuple(
        (0, int(part)) if part.isdecimal() and len(part) < 19 else (1, part)
        for part in parts
    )


def _hosts(
    by_host: Mapping[str, Sequence[Party]], culprits: set[int]
) -> Iterator[NcclHost]:
    y, tallest = 4, 0
    for n, (name, parties) in enumerate(by_host.items()):
        if n and n % _PER_ROW == 0:
            y, tallest = y + tallest + 14, 0
        gpus = [_gpu(one, at, culprits) for at, one in enumerate(_in_order(parties))]
        kept = gpus[:_MOST_GPUS]
        height = 58 + -(-len(kept) // 4) * (_GPU_HIGH + 6) + 18
        tallest = max(tallest, height)
        yield NcclHost(
            name=shown(name, 40) or "host not known",
            gpus=tuple(kept),
            inside=_ways(parties, "inside"),
            between=_ways(parties, "between"),
            x=4 + n % _PER_ROW * (_HOST_WIDE + 10),
            y=y,
            height=height,
            left_out=len(gpus) - len(kept),
        )


def _in_order(parties: Sequence[Party]) -> list[Party]:
    return sorted(parties, key=lambda one: (not one.is_ranked, abs(one.key)))


def _gpu(party: Party, at: int, culprits: set[int]) -> NcclGpu:
    device = next((one for one in party.communicators if one.device >= 0), None)
    label = f"GPU {device.device}" if device else "GPU ?"
    bus = f", bus {device.bus}" if device and device.bus else ""
    rank = f"rank {party.key}" if party.is_ranked else "rank ?"
    return NcclGpu(
        label=label,
        rank=rank,
        mark="culprit" if party.key in culprits else "",
        x=10 + at % 4 * (_GPU_WIDE + 6),
        y=34 + at // 4 * (_GPU_HIGH + 6),
        title=shown(f"{rank}, {label}{bus}, {party.host}", 200),
    )


def _ways(parties: Sequence[Party], field: str) -> str:
    ways = {way for p in parties if p.process for way in getattr(p.process, field)}
    return shown(", ".join(sorted(ways)), 60)


def _processes(job: LoggedJob) -> Iterator[tuple[str, str]]:
    alike: dict[str, list[Party]] = {}
    for party in job.parties.values():
        one = party.process
        if one is None:
            continue
        driver = f"{one.driver // 1000}.{one.driver % 1000 // 10}" if one.driver else ""
        parts = (
            ("NCCL", one.version),
            ("CUDA driver", driver),
            ("network", one.network),
            ("meets by", one.interface.partition(" ")[0]),  # its address is its own
            ("sockets", one.sockets),
            ("adapters", one.adapters.partition(";")[0].strip()),
            ("inside a host", ", ".join(one.inside)),
            ("between hosts", ", ".join(one.between)),
        )
        text = "; ".join(f"{name} {value}" for name, value in parts if value)
        alike.setdefault(shown(text, 600), []).append(party)
    for text, parties in [*alike.items()][:_MOST_COMMUNICATORS]:
        ranks = [one.key for one in parties if one.is_ranked]
        unranked = len(parties) - len(ranks)
        who = named(ranks) if ranks else ""
        if unranked:
            word = f"{unranked} process{'es' * (unranked > 1)} without a known rank"
            who = f"{who} and {word}" if who else word
        yield who, text or "nothing more"


def _communicators(job: LoggedJob) -> Iterator[tuple[str, str, str, str]]:
    for name, members in job.communicators.items():
        ranks = [party.key for party, _ in members if party.is_ranked]
        size = max((one.size for _, one in members), default=0)
        complete = sum(one.complete for _, one in members)
        state = f"complete on {complete:,} of {len(members):,} in the log"
        for word in ("destroyed", "aborted"):
            if count := sum(getattr(one, word) for _, one in members):
                state += f", {word} on {count:,}"
        who = ranges(ranks) if ranks else f"{len(members):,} processes"
        yield shown(name, 60), f"{size:,}" if size else "not told", who, state
