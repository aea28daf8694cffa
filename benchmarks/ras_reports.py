"""Reports of NCCL's RAS made by rule, and a server that speaks its protocol."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from distdoctor.model.run import Run
from distdoctor.postmortem.evidence_run import run_of
from distdoctor.postmortem.job_evidence import Evidence
from distdoctor.postmortem.nccl_ras.ras_reader import reports_in, tell

DEAD = {"unresponsive": True, "considered_dead": True}
SILENT = {"unresponsive": True, "considered_dead": False}
LEFT = {"unresponsive": False, "considered_dead": False}


TEXT = b"""\
NCCL version 2.24.3 compiled with CUDA 12.8
CUDA runtime version 12080, driver version 12080

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4       7-8        32        31   RUNNING  INCOMPLETE,MISMATCH
    1         8         4         1         4        32   RUNNING      OK

Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 1021 on node 10.0.0.2 managing GPU 5

#0-0 (0000000000c0ffee) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 21 -- GPU 5 managed by process 1021 on node 10.0.0.2

Warnings
========

TIMEOUT
  Encountered 1 communication timeout while gathering communicator data

#0-0 (0000000000c0ffee) MISMATCH
  Communicator ranks have different AllReduce operation counts
  28 ranks have launched up to operation 640
  2 ranks have launched up to operation 639
  Rank 3 -- GPU 3 managed by process 1003 on node 10.0.0.0
  Rank 4 -- GPU 4 managed by process 1004 on node 10.0.0.0
  Rank 7 has not launched any operations -- GPU 7 managed by process 1007 on node n0

"""
"""A report in text, as `ncclras` prints it: NCCL 2.24."""


def communicator(
    size: int,
    counts: Mapping[int, Mapping[str, int]] | None = None,
    missing: Mapping[int, Mapping[str, bool]] | None = None,
    status: Mapping[int, Mapping[str, int | bool]] | None = None,
    processes: Sequence[int] | None = None,
    digest: str = "0xc0ffee",
) -> dict[str, Any]:
    """A communicator as NCCL writes it in JSON; process n has GPU n % 8 of a host."""
    missing, processes = missing or {}, processes or range(size)
    who = [
        {
            "rank": rank,
            "host": f"10.0.0.{process // 8}",
            "pid": 1000 + process,
            "cuda_dev": process % 8,
            "nvml_dev": process % 8,
        }
        for rank, process in enumerate(processes)
    ]
    well: dict[str, int | bool] = {
        "init_state": 0,
        "async_error": 0,
        "finalize_called": False,
        "destroy_flag": False,
        "abort_flag": False,
    }
    ops = {"Broadcast": 1, "AllGather": 0, "AllReduce": 640}
    return {
        "hash": digest,
        "secondary_hash": "0x1:0x2",
        "size": size,
        "ranks_count": size - len(missing),
        "missing_ranks_count": len(missing),
        "ranks": [
            {
                **who[rank],
                "status": {**well, **(status or {}).get(rank, {})},
                "collective_counts": {**ops, **(counts or {}).get(rank, {})},
            }
            for rank in range(size)
            if rank not in missing
        ],
        "missing_ranks": [
            {**who[rank], "status": dict(missing[rank])} for rank in sorted(missing)
        ],
    }


def report(*communicators: Mapping[str, Any], second: int = 0) -> bytes:
    """A report in JSON, taken at a second of a day."""
    clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    reported = {
        "nccl_version": "2.28.7",
        "cuda_runtime_version": 12080,
        "cuda_driver_version": 12080,
        "timestamp": f"2026-01-02 {clock}",
        "communicators_count": len(communicators),
        "communicators": communicators,
        "ras": {"collection_time_sec": 0.01, "timeouts_count": 0},
    }
    return json.dumps(reported, indent=2).encode() + b"\n"


def run_of_reports(*reports: bytes) -> Run:
    """The run that reports tell of."""
    evidence = Evidence()
    tell([one for each in reports for one in reports_in(each)], evidence)
    return run_of(evidence)


@contextmanager
def server(
    answers: Sequence[bytes], speaks_json: bool = True, greeting: bytes = b""
) -> Iterator[tuple[int, list[str]]]:
    """A server on a free port: its port, and what it was told.

    Args:
        answers: A report for each connection; the last one for all further ones.
        speaks_json: Whether it knows of formats, as NCCL 2.28.7 does.
        greeting: Said in place of the protocol's answer, by what is no RAS.
    """
    reported: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)

        def serve() -> None:
            rest = list(answers)
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                answer = rest.pop(0) if len(rest) > 1 else rest[0]
                with connection:
                    connection.settimeout(20)
                    _serve(connection, answer, reported, speaks_json, greeting)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1], reported
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(20)


def _serve(
    connection: socket.socket,
    answer: bytes,
    reported: list[str],
    speaks_json: bool,
    greeting: bytes,
) -> None:
    try:
        for line in connection.makefile("r"):
            command = line.rstrip("\r\n")
            reported.append(command)
            match command.lower().split():
                case ["client", "protocol", _]:
                    connection.sendall(greeting or b"SERVER PROTOCOL 2\n")
                case ["timeout", _]:
                    connection.sendall(b"OK\n")
                case ["set", "format", "json"] if speaks_json:
                    connection.sendall(b"OK\n")
                case ["verbose", "status"] | ["status"]:
                    connection.sendall(answer)
                    return
                case _:
                    connection.sendall(f"ERROR: Unknown command {command}\n".encode())
    except OSError:
        return
