"""Processes that never become ranks wait for keys that nobody sets."""

import tempfile

import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2
VERDICT = "unknown"


def run(rank: int, path: str) -> None:
    """One process of two."""
    store = dist.FileStore(path, 2)  # type: ignore[attr-defined]
    if rank == 0:
        store.set("ready0", "1")
        store.get("ready1")
    else:
        store.get("ready_one")


if __name__ == "__main__":
    mp.spawn(  # type: ignore[attr-defined,no-untyped-call]
        run, (f"{tempfile.mkdtemp()}/store",), nprocs=2
    )
