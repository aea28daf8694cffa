"""Lines as NCCL's Inspector writes them, made by rule."""

from __future__ import annotations

import json

STEP_US = 100_000
"""Microseconds from one collective to the next."""


def record(
    rank: int,
    number: int,
    us: int,
    *,
    size: int = 4,
    comm: str = "0xc0",
    host: str = "",
    pid: int = 0,
    op: str = "AllReduce",
    size_bytes: int = 1 << 26,
    source: str = "kernel_gpu",
) -> bytes:
    """A line as the Inspector writes it."""
    reported = {
        "header": {"id": comm, "rank": rank, "n_ranks": size, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": 1_748_030_377_748_202 + number * STEP_US,
            "hostname": host or f"node{rank}",
            "pid": pid or 100 + rank,
        },
        "coll_perf": {
            "coll": op,
            "coll_sn": number,
            "coll_msg_size_bytes": size_bytes,
            "coll_exec_time_us": us,
            "coll_timing_source": source,
            "coll_algobw_gbs": 1.5,
            "coll_busbw_gbs": 2.25,
        },
    }
    return json.dumps(reported).encode() + b"\n"
