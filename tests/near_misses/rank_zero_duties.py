"""Rank 0 logs, saves and evaluates alone; the others wait for it, and it comes.

The evaluation takes as long as a slow one does, in the middle of others' barrier.
"""

import logging
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 2

WIDTH, EPOCHS, EVALUATION_S = 8, 2, 15.0

log = logging.getLogger(__name__)


def evaluate(model: nn.Module, seconds: float) -> float:
    """Score of the bare model, on rank 0 alone: its buffers need no exchange."""
    end = time.monotonic() + seconds
    scores: list[float] = []
    model.eval()
    with torch.no_grad():
        while not scores or time.monotonic() < end:
            scores.append(model(torch.randn(64, WIDTH)).square().mean().item())
    model.train()
    return sum(scores) / len(scores)


def main() -> None:
    dist.init_process_group("gloo")
    is_first = dist.get_rank() == 0
    logging.basicConfig(level=logging.INFO if is_first else logging.ERROR)
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "last.pt"
        for epoch in range(EPOCHS):
            for step, batch in enumerate(torch.randn(4, 8, WIDTH)):
                optimizer.zero_grad()
                loss = model(batch).square().mean()
                loss.backward()
                optimizer.step()
                if is_first and step % 2 == 0:
                    log.info("epoch %d, step %d: loss %.3f", epoch, step, loss.item())
            if is_first:
                torch.save(model.module.state_dict(), checkpoint)
                score = evaluate(model.module, EVALUATION_S * epoch)
                log.info("epoch %d: score %.3f", epoch, score)
            if epoch == 0:
                dist.monitored_barrier(timeout=timedelta(seconds=60))
            else:
                dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
