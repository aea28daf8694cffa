"""Puts the probes into this process and takes them away again, as often as wanted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from distdoctor.probes.collectives.interception import Collectives
from distdoctor.probes.collectives.waits import _watch_waits
from distdoctor.probes.optimizer_step import steps_done
from distdoctor.probes.recorder import RECORDER


class Switch:
    """The probes of one rank: kernels, waits, the journal and the board.

    The journal stays open in both positions. All ranks must switch at the same call.

    Args:
        folder: Of all ranks, for their journals and boards.
        rank: Of this process.
        world_size: Number of ranks.
    """

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        self._folder = folder
        self._turns = 0
        RECORDER.folder = folder
        RECORDER.open(rank, world_size)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Have the probes in place inside the block."""
        # Ordinals start anew, and an old board has other calls in its rows.
        self._turns += 1
        RECORDER.folder = self._folder / f"turn-{self._turns}"
        RECORDER.folder.mkdir(exist_ok=True)
        wait = vars(dist.Work)["wait"]
        collectives = Collectives()
        library = _watch_waits(collectives)
        steps = register_optimizer_step_post_hook(lambda one, *_: steps_done._step(one))
        try:
            yield
        finally:
            steps.remove()
            library._destroy()  # untyped in torch
            collectives.close()
            dist.Work.wait = wait  # type: ignore[method-assign]
