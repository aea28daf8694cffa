"""Checks what this machine offers for running a job under watch, point by point.

Nothing is changed, and no look goes on for long: torch is asked in a process of its
own, with a deadline.
"""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil

from distdoctor.compiled import HOT
from distdoctor.journal.format import DEFAULT_BYTES
from distdoctor.launch.machine_cures import (
    as_root,
    in_container,
    installed,
    started_with,
)
from distdoctor.launch.machine_network import network
from distdoctor.launch.machine_torch import DEADLINE_S, torch_conditions
from distdoctor.launch.machine_tracing import tracing
from distdoctor.model.machine_condition import MachineCondition, enough, present

LAUNCHERS = ("torchrun", "mpirun", "srun", "deepspeed", "accelerate", "horovodrun")

_LAUNCHER_CURES = {
    "torchrun": "it comes with torch: activate the environment that has it",
    "mpirun": "install Open MPI",
    "srun": "it comes with Slurm: ask whoever runs the cluster",
    "deepspeed": "install DeepSpeed",
    "accelerate": "install Accelerate",
    "horovodrun": "it comes with Horovod",
}
_LAUNCHER_COMMANDS = {
    "deepspeed": "pip install deepspeed",
    "accelerate": "pip install accelerate",
    "horovodrun": "distdoctor horovod build",
}

RANK_BYTES = 400 << 20
"""Memory of a rank with a small model. Source: measured, torch 2.13 on CPU: 305 MiB."""


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


def conditions(
    records: Path, deadline_s: float = DEADLINE_S
) -> Iterator[MachineCondition]:
    """All results of the checks of this machine, the most important first.

    Args:
        records: Folder where records of runs would lie; it need not exist.
        deadline_s: For torch to be imported.
    """
    yield from torch_conditions(deadline_s)
    contained = in_container()
    yield probes()
    yield from tracing(contained)
    yield from map(launcher, LAUNCHERS)
    yield from network()
    yield cores()
    yield memory(psutil.virtual_memory().available)
    yield shared_memory(Path("/dev/shm"), contained)  # noqa: S108 - where POSIX keeps it
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE), contained)
    yield processes(resource.getrlimit(resource.RLIMIT_NPROC), contained)
    yield locked_memory(resource.getrlimit(resource.RLIMIT_MEMLOCK), contained)
    yield room(records)


def probes() -> MachineCondition:
    """Whether what each call of communication passes is compiled."""
    return enough(
        HOT is not None,
        "probes",
        "compiled" if HOT else "interpreted",
        "each call of communication takes some microseconds more",
        "with a C compiler and Python's headers, install distdoctor once more",
        commands=installed(apt="gcc python3-dev", dnf="gcc python3-devel"),
    )


def launcher(name: str) -> MachineCondition:
    """Whether a program that starts ranks is installed."""
    command = _LAUNCHER_COMMANDS.get(name)
    commands: tuple[str, ...] = (command,) if command else ()
    if name == "mpirun":
        commands = installed(apt="openmpi-bin", dnf="openmpi")
    return present(
        shutil.which(name),
        name,
        "not on PATH",
        "only jobs it starts need it",
        _LAUNCHER_CURES.get(name, ""),
        commands=commands,
        optional=True,
    )


def cores() -> MachineCondition:
    """How many processor cores this process may use."""
    number = len(os.sched_getaffinity(0))
    return enough(
        number > 1,
        "cores",
        str(number),
        "ranks take turns: all is slow",
        "let the process have more of them (taskset, or --cpus of a container)",
    )


def memory(available: int) -> MachineCondition:
    """Whether several ranks fit into memory.

    Args:
        available: Bytes that are free, or can be made so.
    """
    ranks = available // RANK_BYTES
    fit = f": {ranks} small ranks fit" if ranks >= 4 else ""
    return enough(
        fit,
        "memory",
        f"{available >> 20} MiB available{fit}",
        f"room for some {ranks} ranks of {RANK_BYTES >> 20} MiB each",
        "end other programs, or check with fewer ranks (-n)",
    )


def shared_memory(mount: Path, contained: bool = False) -> MachineCondition:
    """How much shared memory there is, which DataLoader workers need.

    Args:
        mount: Where it is.
        contained: This is a container, whose start decides that.
    """
    command = as_root(f"mount -o remount,size=8G {mount}")
    if contained:
        command = started_with("--shm-size=8g")
    try:
        size = shutil.disk_usage(mount)
    except OSError as error:
        means = "data loaders with workers fail"
        cure = f"mount a tmpfs at {mount}, or use num_workers=0"
        if not contained:
            command = as_root(f"mount -t tmpfs -o size=8G tmpfs {mount}")
        return present(
            None, str(mount), f"{error.strerror}", means, cure, commands=(command,)
        )
    if size.total >= 2 * SHARED_BYTES:  # large enough, and full
        command = f"ls -l {mount}"
    return enough(
        size.free >= SHARED_BYTES,
        str(mount),
        f"{size.total >> 20} MiB, {size.free >> 20} free",
        "workers of data loaders, and NCCL, die of a bus error when it is full",
        "start the container with --shm-size=8g (or --ipc=host), or remove old files",
        commands=(command,),
    )


def open_files(limit: Limits, contained: bool = False) -> MachineCondition:
    """How many files and sockets a process may have."""
    what = "sockets of many ranks"
    return _counted("open files", limit, OPEN_FILES, "-n nofile", what, contained)


def processes(limit: Limits, contained: bool = False) -> MachineCondition:
    """How many processes and threads the user may have."""
    what = "ranks, their threads and their workers"
    return _counted("processes", limit, PROCESSES, "-u nproc", what, contained)


def _counted(
    name: str, limit: Limits, least: int, names: str, what: str, contained: bool
) -> MachineCondition:
    flag, limited = names.split()
    some, most = (one == resource.RLIM_INFINITY or one >= least for one in limit)
    limit_text = "unlimited" if limit[0] == resource.RLIM_INFINITY else str(limit[0])
    cure = f"ulimit {flag} {least}" if most else "ask for a higher hard limit"
    command = cure if most else as_root(f"prlimit --pid $$ --{limited}={least}")
    if contained and not most:
        command = started_with("--ulimit", f"{limited}={least}")
    means = f"may be too few for {what}"
    return enough(some, name, limit_text, means, cure, commands=(command,))


def locked_memory(limit: Limits, contained: bool = False) -> MachineCondition:
    """How much memory may be locked, which RDMA needs."""
    unlimited = limit[0] == resource.RLIM_INFINITY
    command = "ulimit -l unlimited"
    if limit[1] != resource.RLIM_INFINITY:
        command = as_root("prlimit --pid $$ --memlock=unlimited")
        if contained:
            command = started_with("--ulimit", "memlock=-1")
    return enough(
        unlimited,
        "locked memory",
        "unlimited" if unlimited else f"{limit[0] >> 10} KiB",
        "RDMA (InfiniBand, RoCE) fails; nothing else minds",
        "ulimit -l unlimited, if the cluster has RDMA",
        commands=(command,),
        optional=True,
    )


def room(records: Path) -> MachineCondition:
    """Whether there is disk space for the records of a run."""
    there = next(path for path in (records, *records.parents) if path.is_dir())
    if not os.access(there, os.W_OK):
        return enough(
            False,
            "records",
            f"{there} is not writable",
            "a run has nowhere to be recorded",
            "give a folder with --record, or set XDG_CACHE_HOME",
            commands=("export XDG_CACHE_HOME=/tmp/$USER-cache",),
        )
    free = shutil.disk_usage(there).free
    ranks = max(0, free // DEFAULT_BYTES - 1)
    fit = f": {ranks} ranks fit" if ranks >= 8 else ""
    return enough(
        fit,
        "records",
        f"{free >> 20} MiB free at {there}{fit}",
        f"room for {ranks} ranks of {DEFAULT_BYTES >> 20} MiB each",
        "give another folder with --record, or make room",
        commands=("distdoctor records prune --older-than 1",),
    )
