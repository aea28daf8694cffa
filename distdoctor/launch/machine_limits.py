"""Limits that the kernel, or a container, sets to the processes of a job."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

from distdoctor.model.machine_condition import MachineCondition, MachineState

SHARED_BYTES = 512 << 20
"""Below this, workers of data loaders may not find room for their batches.

Source: Docker gives 64 MiB unless told otherwise (docs.docker.com, `--shm-size`).
"""

OPEN_FILES = 4096
"""Below this, a few dozen ranks with workers may not get their sockets.

Each rank has two sockets or so per peer and group, and some per worker.
"""

PROCESSES = 2048
"""Below this, ranks with workers and a thread per core may not be started."""

Limits = tuple[int, int]  # soft, hard


def limits() -> Iterator[MachineCondition]:
    """Shared memory, open files, processes, locked memory."""
    yield shared_memory(Path("/dev/shm"))  # noqa: S108 - where POSIX keeps it
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE))
    yield processes(resource.getrlimit(resource.RLIMIT_NPROC))
    yield locked_memory(resource.getrlimit(resource.RLIMIT_MEMLOCK))


def shared_memory(mount: Path) -> MachineCondition:
    """Where workers of data loaders hand over their batches."""
    name = str(mount)
    try:
        size = shutil.disk_usage(mount)
    except OSError as error:
        return MachineCondition(
            name,
            MachineState.ABSENT,
            f"{error.strerror}",
            "data loaders with workers fail",
            f"mount a tmpfs at {mount}, or use num_workers=0",
        )
    found = f"{size.total >> 20} MiB, {size.free >> 20} free"
    if size.free >= SHARED_BYTES:
        return MachineCondition(name, MachineState.OK, found)
    return MachineCondition(
        name,
        MachineState.LIMITS,
        found,
        "workers of data loaders, and NCCL, die of a bus error when it is full",
        "start the container with --shm-size=8g (or --ipc=host), or remove old files",
    )


def open_files(limit: Limits) -> MachineCondition:
    """How many files and sockets a process may have."""
    return _counted("open files", limit, OPEN_FILES, "-n", "sockets of many ranks")


def processes(limit: Limits) -> MachineCondition:
    """How many processes and threads the user may have."""
    what = "ranks, their threads and their workers"
    return _counted("processes", limit, PROCESSES, "-u", what)


def _counted(
    name: str, limit: Limits, enough: int, flag: str, what: str
) -> MachineCondition:
    soft, hard = limit
    if soft == resource.RLIM_INFINITY or soft >= enough:
        return MachineCondition(name, MachineState.OK, _told(soft))
    more = hard == resource.RLIM_INFINITY or hard >= enough
    cure = f"ulimit {flag} {enough}" if more else "ask for a higher hard limit"
    return MachineCondition(
        name, MachineState.LIMITS, f"{soft}", f"may be too few for {what}", cure
    )


def locked_memory(limit: Limits) -> MachineCondition:
    """How much memory may be locked, which RDMA needs."""
    soft, _ = limit
    if soft == resource.RLIM_INFINITY:
        return MachineCondition("locked memory", MachineState.OK, "unlimited")
    return MachineCondition(
        "locked memory",
        MachineState.LIMITS,
        f"{soft >> 10} KiB",
        "RDMA (InfiniBand, RoCE) fails; nothing else minds",
        "ulimit -l unlimited, if the cluster has RDMA",
    )


def _told(number: int) -> str:
    return "unlimited" if number == resource.RLIM_INFINITY else str(number)
