"""Traces as torch.profiler writes them, made by rule: with NCCL's kernels, or gloo."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

Span = tuple[float, float]
"""Beginning within a step, and duration, in microseconds."""

BASE_NS = 1_790_857_026_000_000_000
BEGIN_US = 4_905_640_848_131.25
STEP_US = 30_000


def trace(
    rank: int,
    calls: Sequence[Span],
    computing: Iterable[Span] = (),
    *,
    ranks: int = 2,
    steps: Sequence[int] = range(2, 7),
    backend: str = "nccl",
    op: str = "allreduce",
    group: str = "0",
    begin_us: float = BEGIN_US,
    other: Mapping[int, Sequence[Span]] = MappingProxyType({}),
    **head: Any,
) -> bytes:
    """A trace of one rank, each of whose steps goes alike.

    Args:
        rank: Which.
        calls: Its collectives in a step.
        computing: Kernels, or operators on the CPU, in a step.
        ranks: Of the job.
        steps: Their numbers; those that are negative are not annotated.
        backend: "nccl" or "gloo".
        op: Of all calls, as `record_param_comms` has it.
        group: Name of the process group.
        begin_us: When the first step begins.
        other: By the place of a step, calls that it has instead.
        head: Replaces what stands at the head; None: is left out.
    """
    events: list[dict[str, Any]] = []
    for at, number in enumerate(steps):
        begin = begin_us + at * STEP_US
        if number >= 0:
            name = f"ProfilerStep#{number}"
            events.append(_event("user_annotation", name, begin, STEP_US - 1))
        events += [
            _call(begin + start, us, backend, op, group, ranks)
            for start, us in other.get(at, calls)
        ]
        for start, us in computing:
            kernel = ("kernel", "ampere_sgemm_128x64_tn(float const*)")
            cat, name = kernel if backend == "nccl" else ("cpu_op", "aten::addmm")
            pid = 0 if backend == "nccl" else 100
            events.append(_event(cat, name, begin + start, us, pid=pid))
    return closed({**_head(rank, ranks, backend, group), **head}, events)


def closed(head: dict[str, Any], events: list[dict[str, Any]]) -> bytes:
    """A file of a head and events, laid out as Kineto does."""
    told = {name: value for name, value in head.items() if value is not None}
    whole = {**told, "traceEvents": events, "traceName": "t"}
    return json.dumps(whole, indent=2).encode()


def _head(rank: int, ranks: int, backend: str, group: str) -> dict[str, Any]:
    config = {"pg_name": group, "pg_desc": "default_pg", "pg_size": ranks}
    config |= {"backend_config": f"cuda:{backend}", "ranks": [*range(ranks)]}
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}] * (backend == "nccl"),
        "distributedInfo": {
            "backend": backend,
            "rank": rank,
            "world_size": ranks,
            "pg_count": 1,
            "pg_config": [config],
        },
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
    }


def _event(
    cat: str, name: str, ts: float, us: float, pid: int = 100, **args: Any
) -> dict[str, Any]:
    told = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": 7}
    return {**told, "ts": ts, "dur": us, "args": args}


def _call(
    ts: float, us: float, backend: str, op: str, group: str, ranks: int
) -> dict[str, Any]:
    if backend == "gloo":
        return _event("user_annotation", "gloo:all_reduce", ts, us)
    return _event(
        "kernel",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        ts,
        us,
        pid=0,
        **{
            "stream": 40,
            "Collective name": op,
            "In msg nelems": 1 << 20,
            "Out msg nelems": 1 << 20,
            "Group size": ranks,
            "dtype": "Float",
            "Process Group Name": group,
            "Process Group Description": "default_pg",
            "Process Group Ranks": str([*range(ranks)]),
        },
    )
