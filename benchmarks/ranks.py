"""Starts two gloo ranks on this machine and collects what they measured."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2

Job = Callable[[int, Path, dict[str, Any]], Any]
"""Gets its rank, a folder that all ranks share, and the options; gives JSON."""


def on_two_ranks(job: Job, options: dict[str, Any]) -> list[Any]:
    """What each rank's job gave; each rank has one thread for torch.

    Args:
        job: A function at the top of its module.
        options: Plain values.
    """
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(  # type: ignore[attr-defined, no-untyped-call]  # untyped in torch
            _rank, args=(job, folder, options), nprocs=RANKS
        )
        return [
            json.loads((Path(folder) / f"result-{rank}.json").read_text())
            for rank in range(RANKS)
        ]


def _rank(rank: int, job: Job, folder: str, options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS
    )
    result = job(rank, Path(folder), options)
    (Path(folder) / f"result-{rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()
