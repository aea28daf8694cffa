"""What this machine can do for a job under watch, looked at one by one.

Nothing is changed, and no look goes on for long: torch is asked in a process of its
own, with a deadline.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil

from distdoctor.journal.format import DEFAULT_BYTES
from distdoctor.launch.machine_limits import limits
from distdoctor.launch.machine_network import network
from distdoctor.launch.machine_torch import DEADLINE_S, torch_conditions
from distdoctor.launch.machine_tracing import tracing
from distdoctor.model.machine_condition import MachineCondition, MachineState

LAUNCHERS = ("torchrun", "mpirun", "srun", "deepspeed", "accelerate", "horovodrun")

RANK_BYTES = 400 << 20
"""Memory of a rank with a small model. Source: measured, torch 2.13 on CPU: 305 MiB."""


def conditions(
    records: Path, deadline_s: float = DEADLINE_S
) -> Iterator[MachineCondition]:
    """All that is known of this machine, the most important first.

    Args:
        records: Folder where records of runs would lie; it need not exist.
        deadline_s: For torch to be imported.
    """
    yield from torch_conditions(deadline_s)
    yield from tracing()
    yield from map(launcher, LAUNCHERS)
    yield from network()
    yield cores()
    yield memory(psutil.virtual_memory().available)
    yield from limits()
    yield room(records)


def launcher(name: str) -> MachineCondition:
    """Whether a program that starts ranks is there."""
    path = shutil.which(name)
    if path is not None:
        return MachineCondition(name, MachineState.OK, path)
    return MachineCondition(
        name, MachineState.ABSENT, "not on PATH", "only jobs it starts need it"
    )


def cores() -> MachineCondition:
    """How many processors this process may use."""
    number = len(os.sched_getaffinity(0))
    if number > 1:
        return MachineCondition("cores", MachineState.OK, str(number))
    return MachineCondition(
        "cores", MachineState.LIMITS, "1", "ranks take turns: all is slow"
    )


def memory(available: int) -> MachineCondition:
    """Whether several ranks fit into memory.

    Args:
        available: Bytes that are free, or can be made so.
    """
    ranks = available // RANK_BYTES
    found = f"{available >> 20} MiB available"
    if ranks >= 4:
        return MachineCondition(
            "memory", MachineState.OK, f"{found}: {ranks} small ranks fit"
        )
    return MachineCondition(
        "memory",
        MachineState.LIMITS,
        found,
        f"room for some {ranks} ranks of {RANK_BYTES >> 20} MiB each",
        "end other programs, or check with fewer ranks (-n)",
    )


def room(records: Path) -> MachineCondition:
    """Whether the records of a run have room."""
    there = next(path for path in (records, *records.parents) if path.is_dir())
    if not os.access(there, os.W_OK):
        return MachineCondition(
            "records",
            MachineState.LIMITS,
            f"{there} is not writable",
            "a run has nowhere to be recorded",
            "give a folder with --record, or set XDG_CACHE_HOME",
        )
    free = shutil.disk_usage(there).free
    ranks = max(0, free // DEFAULT_BYTES - 1)
    found = f"{free >> 20} MiB free at {there}"
    if ranks >= 8:
        return MachineCondition(
            "records", MachineState.OK, f"{found}: {ranks} ranks fit"
        )
    return MachineCondition(
        "records",
        MachineState.LIMITS,
        found,
        f"room for {ranks} ranks of {DEFAULT_BYTES >> 20} MiB each",
        "give another folder with --record, or make room",
    )
