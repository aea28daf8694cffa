"""Dumps of jobs that are healthy and look odd, and files that are no dumps.

What backends write of uneven, rooted and coalesced calls; groups of one name; files of an
earlier run, files that are damaged, and one that would run a command if it were loaded
as torch's analyzer loads it.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recorder_dumps import (
    START_NS,
    Job,
    Simulation,
    Step,
    Style,
    all_reduce,
    ddp,
    dumps,
    write,
)

Tops = dict[int, dict[str, Any]]


class Command:
    """What a pickle of it would run, if loading ran anything."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        """The call that a plain unpickler makes."""
        return os.system, (self._command,)


def healthy(world: int = 6, steps: int = 6, style: Style | None = None) -> Tops:
    """Dumps of a data-parallel job that is over.

    Args:
        world: Its ranks.
        steps: Its steps.
        style: How the dumps are written.
    """
    job = ddp(world, steps)
    for mine in job.steps.values():
        mine.append(Step("wait"))
    return dumps(job, Simulation(job, 3), style or Style())


def entry(top: dict[str, Any], name: str, **values: Any) -> dict[str, Any]:
    """Add a complete call to a dump.

    Args:
        top: The dump.
        name: Of the call, without the backend.
        values: Its fields, where they are not as in the entry before.

    Returns:
        The entry.
    """
    last = dict(top["entries"][-1])
    last |= {
        "record_id": last["record_id"] + 1,
        "collective_seq_id": last["collective_seq_id"] + 1,
        "op_id": last["op_id"] + 1,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": last["time_created_ns"] + 1_000_000,
        **values,
    }
    top["entries"].append(last)
    return last


def uneven_all_gather(world: int = 4) -> Tops:
    """Each rank gives another number of elements: a broadcast by each, as one call."""
    tops = healthy(world)
    for rank, top in tops.items():
        number = top["entries"][-1]["collective_seq_id"] + 1
        for root in range(world):
            entry(
                top,
                "_broadcast_oop",
                collective_seq_id=number,
                input_sizes=[[100 + rank]],
                output_sizes=[[100 + root]],
                state="scheduled",
                retired=False,
                time_discovered_completed_ns=None,
            )
        entry(
            top,
            "ALLGATHER_coalesced",
            collective_seq_id=number,
            input_sizes=[],
            output_sizes=[],
            input_dtypes=[],
            output_dtypes=[],
            state="completed",
            retired=True,
        )
    return tops


def rooted(world: int = 4) -> Tops:
    """Gather and scatter, whose lists the root alone has, and an uneven all-to-all."""
    tops = healthy(world)
    for rank, top in tops.items():
        root = rank == 1
        full = [[32]] * world
        entry(
            top,
            "gather",
            input_sizes=[[32]],
            output_sizes=full if root else [],
            input_dtypes=["Float"],
            output_dtypes=["Float"] * world if root else [],
        )
        entry(
            top,
            "scatter",
            input_sizes=[[32]],
            output_sizes=full if root else [[0]],
            input_dtypes=["Float"],
            output_dtypes=["Float"] * world if root else ["Undefined"],
        )
        entry(
            top,
            "all_to_all",
            input_sizes=[[64 + rank, 8]],
            output_sizes=[[64 + (rank + 1) % world, 8]],
        )
    return tops


def one_name(world: int = 8) -> Tops:
    """A split gave two disjoint groups one name, and they went on differently."""
    tops = healthy(world)
    for rank, top in tops.items():
        half = range(world // 2) if rank < world // 2 else range(world // 2, world)
        group = {"name": "0:split:1", "desc": "half", "ranks": str([*half])}
        top["pg_config"]["0:split:1"] = group
        for number in range(3 if rank < world // 2 else 5):
            entry(
                top,
                "all_reduce",
                process_group=("0:split:1", "half"),
                pg_id=1,
                collective_seq_id=number + 1,
                input_sizes=[[10 if rank < world // 2 else 99]],
                output_sizes=[[10 if rank < world // 2 else 99]],
            )
    return tops


def with_stale(folder: Path) -> None:
    """Five ranks now, and two files of an earlier run of eight.

    Args:
        folder: Where they are written.
    """
    now = healthy(6)
    for top in now.values():
        for one in top["entries"]:
            one["time_created_ns"] += 86_400 * 10**9
            one["time_discovered_completed_ns"] += 86_400 * 10**9
    write(folder, {rank: top for rank, top in healthy(8).items() if rank > 5}, Style())
    write(folder, now, Style())


def damaged(folder: Path) -> None:
    """Ranks 1 to 4 of six: cut off, empty, a text, and a command.

    Args:
        folder: Where they are written.
    """
    tops = healthy(6)
    write(folder, tops, Style())
    name = Style().prefix
    whole = (folder / f"{name}1").read_bytes()
    (folder / f"{name}1").write_bytes(whole[: len(whole) // 2])
    (folder / f"{name}2").write_bytes(b"")
    (folder / f"{name}3").write_text("Traceback (most recent call last):\n")
    command = Command(f"touch {folder / 'executed'}")
    (folder / f"{name}4").write_bytes(pickle.dumps(command, 2))


def oldest_format(world: int = 4) -> Tops:
    """As torch 2.3 writes it: one counter, groups by number, no dtypes."""
    tops = healthy(world)
    for top in tops.values():
        top["version"] = "1.4"
        top["pg_config"] = {0: [*range(world)]}
        top.pop("pg_status")
        for one in top["entries"]:
            one["seq_id"] = one.pop("collective_seq_id")
            gone = ("p2p_seq_id", "process_group", "is_p2p", "timeout_ms")
            for key in (*gone, "input_dtypes", "output_dtypes"):
                one.pop(key)
    return tops


def late_in_the_ring(world: int = 4) -> Tops:
    """Rings of which each begins and ends at another call."""
    tops = healthy(world, 12)
    for rank, top in tops.items():
        top["entries"] = top["entries"][5 + 3 * rank : len(top["entries"]) - rank]
    return tops


def beside(world: int = 4) -> Job:
    """Ranks that use two groups in one order, and stand in both."""
    groups = {"0": tuple(range(world)), "dp": (0, 1), "tp": (0, 1)}
    steps = {
        rank: [
            all_reduce(8),
            *[all_reduce(4, group="dp"), all_reduce(5, group="tp")] * 3,
        ]
        if rank < 2
        else [all_reduce(8)]
        for rank in range(world)
    }
    return Job(world, groups, steps)


__all__ = ["START_NS", "beside", "damaged", "healthy"]
