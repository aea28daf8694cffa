"""What one job leaves behind in files of several kinds, made for tests."""

from __future__ import annotations

import pickle
from pathlib import Path

from recorder_dumps import Job, Simulation, Step, Style, all_reduce, dumps
from stack_dumps import py_spy_text

WORLD = 8

_PEER_LOST = (
    "Traceback (most recent call last):\n"
    '  File "/home/me/job/train.py", line 31, in train_step\n'
    "    dist.all_reduce(loss)\n"
    '  File "/opt/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", '
    "line 2810, in all_reduce\n"
    "    work.wait()\n"
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:525] Connection "
    "closed by peer [10.0.0.7]:31234\n"
)
_BAD_SAMPLE = (
    "Traceback (most recent call last):\n"
    '  File "/home/me/job/train.py", line 70, in <module>\n'
    "    main()\n"
    '  File "/home/me/job/train.py", line 27, in train_step\n'
    "    batch = next(samples)\n"
    '  File "/home/me/job/data.py", line 40, in __getitem__\n'
    "    return table[name]\n"
    "KeyError: 'label'\n"
)


def write_dumps(
    folder: Path,
    world: int = WORLD,
    *,
    stop: int = -1,
    die: int = -1,
    name: str = "nccl_trace_rank_",
    script: str = "",
) -> None:
    """Dumps of flight recorders: one rank makes no further call, or is gone.

    Args:
        folder: Where they are written.
        world: Number of ranks.
        stop: The rank that makes no further call, and lives; -1: none.
        die: The rank that is gone, and leaves no dump; -1: none.
        name: Of the files, before the rank.
        script: The file that began it, below all lines of the calls; "": not told.
    """
    steps = {}
    for rank in range(world):
        made = [all_reduce(64), Step("wait")] * 12
        if rank in {stop, die}:
            made = [*made[:-2], Step("stop" if rank == stop else "die")]
        steps[rank] = made
    job = Job(world, {"0": tuple(range(world))}, steps)
    style = Style()
    folder.mkdir(parents=True, exist_ok=True)
    for rank, top in dumps(job, Simulation(job), style).items():
        for entry in top["entries"] if script else ():
            outermost = {"name": "<module>", "filename": f"/job/{script}", "line": 9}
            entry["frames"] = [*entry["frames"], outermost]
        (folder / f"{name}{rank}").write_bytes(pickle.dumps(top))


def write_stacks(folder: Path, world: int = WORLD, *, stuck: int = -1) -> None:
    """What py-spy prints of each rank: all wait in a call but one that reads a file."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(world):
        text = py_spy_text(rank, stuck=rank == stuck)
        (folder / f"rank{rank}.txt").write_text(text)


def marked(rank: int, text: str) -> str:
    """Lines as torchrun and torch mark those of a rank."""
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


def steps_of(world: int = WORLD) -> str:
    """Lines that all ranks print while they are well."""
    return "".join(
        f"[rank{n}]: epoch 1 step {m}\n" for m in range(5) for n in range(world)
    )


def lost_peers(*ranks: int) -> str:
    """What ranks print whose peer is gone."""
    return "".join(marked(rank, _PEER_LOST) for rank in ranks)


def raised_key_error(rank: int) -> str:
    """What a rank prints that dies of an exception of its own."""
    return marked(rank, _BAD_SAMPLE)


def killed(rank: int, pid: int) -> str:
    """The summary by torchrun of a rank that a signal has killed."""
    return (
        "Failures:\n  <NO_OTHER_FAILURES>\n----------\n"
        "Root Cause (first observed failure):\n[0]:\n"
        "  time      : 2026-11-26_00:32:43\n  host      : n1\n"
        f"  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : -9 (pid: {pid})  (SIGKILL)\n  error_file: <N/A>\n"
        f"  traceback : Signal 9 (SIGKILL) received by PID {pid}\n===========\n"
    )


def kernel_killed(pid: int) -> str:
    """The kernel's log of a process that had no memory left."""
    return f"[12345.6] Out of memory: Killed process {pid} (python) total-vm:9kB\n"


def watchdogs(*ranks: int, number: int = 12) -> str:
    """What ranks of an NCCL group print when their time is up."""
    reported = ""
    for rank in ranks:
        mark = f"[rank{rank}]:[E1121 07:20:11.518566312 ProcessGroupNCCL.cpp:616] "
        reported += (
            f"{mark}[Rank {rank}] Watchdog caught collective operation timeout: "
            f"WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, "
            "Timeout(ms)=600000) ran for 600025 milliseconds before timing out.\n"
            f"{mark}[PG ID 0 PG GUID 0(default_pg) Rank {rank}] Exception (either an "
            f"error or timeout) detected by watchdog at work: {number}, last enqueued "
            f"NCCL work: {number}, last completed NCCL work: {number - 1}.\n"
        )
    return reported


def nccl_log(host: int, ranks: range, world: int = WORLD, fault: str = "") -> str:
    """What NCCL prints on a host, and at its end an error of the first of its ranks."""
    lines = []
    for rank in ranks:
        at = f"node{host}:{7000 + rank}:{7100 + rank} [{rank % 4}] NCCL"
        init = (
            f"ncclCommInitRank comm 0x55{rank:04x} rank {rank} nranks {world} cudaDev "
            f"{rank % 4} nvmlDev {rank % 4} busId {rank % 4 + 1}b000 commId 0xabc"
        )
        lines += [
            f"{at} INFO NCCL version 2.21.5+cuda12.4",
            f"{at} INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.{host}<0>",
            f"{at} INFO {init} - Init START",
            f"{at} INFO {init} - Init COMPLETE",
        ]
    if fault:
        at = f"node{host}:{7000 + ranks[0]}:{7200 + ranks[0]} [{ranks[0] % 4}] NCCL"
        lines.append(f"{at} {fault}")
    return "\n".join(lines) + "\n"


GPU_ERROR = "WARN Cuda failure 'an illegal memory access was encountered'"
"""An error of a GPU."""

IB_ERROR = (
    "WARN NET/IB : Got completion from peer 10.0.0.0<41234> with status=12 opcode=0 "
    "len=0 vendor err 129 (Recv) localGid fe80::1 remoteGid fe80::2 hca mlx5_0"
)
"""An error of InfiniBand: the other side does not answer."""
