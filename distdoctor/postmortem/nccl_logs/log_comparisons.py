"""What is told of one process by comparing its log with those of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from distdoctor.postmortem.nccl_logs.communicator_ranks import Actor, Cast, Key
from distdoctor.postmortem.nccl_logs.process_log import ProcessLog
from distdoctor.postmortem.nccl_logs.torch_lines import OtherError


def bus_number(bus: str) -> str:
    """The number of the bus in a GPU's address as NCCL prints it.

    >>> bus_number("1b000"), bus_number("?")
    ('1b', '')

    Args:
        bus: The address, hexadecimal without colons.
    """
    try:
        return f"{int(bus, 16) >> 12 & 0xFF:02x}"
    except ValueError:
        return ""


def owners_of(error: OtherError, actors: Sequence[Actor]) -> list[Actor]:
    """Whose an error can be: by the process, else by the GPU's address.

    Addresses of GPUs are the same on all machines of a kind, and numbers of processes
    may be: of several, none is named.

    Args:
        error: That others than NCCL tell.
        actors: All of the job.
    """
    here = [one for one in actors if error.host in {"", one.process.host}]
    by_pid = [one for one in here if error.pid and error.pid == one.process.pid]
    if by_pid or not error.bus:
        return by_pid
    return [
        one
        for one in here
        if error.bus in {bus_number(life.bus) for life in one.process.lives}
    ]


def names_of(groups: Mapping[Key, object], world: set[Key]) -> dict[Key, str]:
    """By communicator, a name that is its own.

    Args:
        groups: The communicators.
        world: Those of all ranks.
    """
    found: dict[Key, str] = {}
    for n, key in enumerate(groups):
        found[key] = f"communicator {n + 1}"
    first = [key for key in groups if key in world]
    for n, key in enumerate(first):
        found[key] = "world" if n == 0 else f"world, again {n + 1}"
    return found


def orders_of(logs: Sequence[ProcessLog]) -> dict[int, int]:
    """By complaint, its place among all; none where files have no common clock.

    Args:
        logs: Of all processes.

    Returns:
        By `id` of the complaint, a number from 1.
    """
    every = {id(one): one for log in logs for one in log.complaints}
    found = list(every.values())
    if all(one.stamp for one in found):
        found.sort(key=lambda one: (one.stamp, one.line))
    elif len({one.file for one in found}) == 1:
        found.sort(key=lambda one: one.line)
    else:
        return {}
    return {id(one): n + 1 for n, one in enumerate(found)}


def transports_of(
    log: ProcessLog, cast: Cast
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The transports to ranks of its host and to others.

    Args:
        log: Of the process.
        cast: Who is which rank.
    """
    hosts: dict[str, dict[int, str]] = {}
    whole: dict[int, str] = {}
    for key, members in cast.groups.items():
        by_rank = {one.life.rank: one.process.host for one in members}
        for one in members:
            if one.process is log:
                hosts.setdefault(one.life.comm, by_rank)
        if key in cast.world and not whole:
            whole = by_rank
    inside: Counter[str] = Counter()
    between: Counter[str] = Counter()
    for (comm, a, b, via), often in log.edges.items():
        where = hosts.get(comm, whole)
        first, second = where.get(a), where.get(b)
        if first and second:
            (inside if first == second else between)[via] += often
        else:
            (between if via.startswith("NET") else inside)[via] += often
    return tuple(inside), tuple(between)
