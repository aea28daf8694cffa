"""Starts the ranks of a script as forks of one process: torch is imported once.

    python benchmarks/forked.py N script.py [arguments]

For `soak.py`, where importing torch would take most of the time. Ends as `torchrun`
does: when one rank fails, the others are ended, and the status is 1.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from multiprocessing.connection import wait

import torch._dynamo  # the first optimizer of each rank would import it
import torch.distributed


def rank_of(rank: int, size: int, port: int, arguments: list[str]) -> None:
    """Be one rank."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")


def main() -> int:
    """Start the ranks and wait for them."""
    assert torch.distributed.is_available()
    size, arguments = int(sys.argv[1]), sys.argv[2:]
    # As torchrun's agent: a port that is only looked up may be taken meanwhile.
    store = torch.distributed.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=rank_of, args=(rank, size, store.port, arguments))
        for rank in range(size)
    ]
    for rank in ranks:
        rank.start()
    living = list(ranks)
    while living:
        ended = wait([rank.sentinel for rank in living])
        over = [rank for rank in living if rank.sentinel in ended]
        for rank in over:
            rank.join()  # its sentinel is there before its status is
        living = [rank for rank in living if rank not in over]
        if any(rank.exitcode for rank in over):
            for rank in living:
                rank.terminate()
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
