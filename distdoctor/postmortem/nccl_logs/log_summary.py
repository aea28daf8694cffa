"""What a log says of a job's topology, in a few sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from distdoctor.postmortem.nccl_logs.communicator_ranks import Cast
from distdoctor.postmortem.nccl_logs.piece_facts import Piece

_MOST_HOSTS = 8


def summary(piece: Piece, cast: Cast) -> list[str]:
    """Sentences about versions, communicators and transports.

    Args:
        piece: All that was read.
        cast: Who is who in it.
    """
    return [*_job(piece), *_communicators(cast), *_ways(cast), *_unread(piece)]


def _job(piece: Piece) -> Iterator[str]:
    logs = list(piece.processes.values())
    if not logs:
        return
    versions = sorted(
        {log.version for log in logs if log.version} | set(piece.versions)
    )
    drivers = sorted({log.driver for log in logs if log.driver})
    hosts = sorted({log.host for log in logs})
    shown = ", ".join(hosts[:_MOST_HOSTS]) + ", …" * (len(hosts) > _MOST_HOSTS)
    about = [f"NCCL {' and '.join(versions)}"] if versions else []
    about += [
        "CUDA driver "
        + " and ".join(f"{one // 1000}.{one % 1000 // 10}" for one in drivers)
    ] * bool(drivers)
    tail = f"; {', '.join(about)}" if about else ""
    yield (
        f"NCCL log: {len(logs):,} processes on {len(hosts):,} hosts ({shown}){tail}; "
        f"{piece.nccl_lines:,} of {piece.lines:,} lines are NCCL's"
    )


def _communicators(cast: Cast) -> Iterator[str]:
    sizes = Counter(members[0].life.size for members in cast.groups.values())
    if not sizes:
        return
    reported = ", ".join(
        f"{often:,} of {size:,} ranks" for size, often in sorted(sizes.items())[::-1]
    )
    logs = {id(actor.process): actor.process for actor in cast.actors}
    calls = sum(log.count for log in logs.values())
    counted = f"; {calls:,} calls are in the log" if calls else ""
    yield f"communicators: {reported}{counted}"


def _ways(cast: Cast) -> Iterator[str]:
    logs = {id(actor.process): actor.process for actor in cast.actors}.values()
    networks = Counter(log.network for log in logs if log.network)
    ways: Counter[str] = Counter()
    for log in logs:
        for (_, _, _, via), often in log.edges.items():
            ways[via] += often
    parts = []
    if networks:
        parts.append("network " + ", ".join(networks))
    if ways:
        reported = ", ".join(f"{via} {often:,}×" for via, often in ways.most_common(6))
        parts.append(f"channels via {reported}")
    if parts:
        yield "; ".join(parts)


def _unread(piece: Piece) -> Iterator[str]:
    torn = sum(log.torn for log in piece.processes.values())
    if torn or piece.unread or piece.strays:
        yield (
            f"{torn + piece.unread + len(piece.strays):,} lines of NCCL were cut or "
            "could not be read"
        )
    if piece.full:
        yield "the log has more processes or calls than were kept"
