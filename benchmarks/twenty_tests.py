"""Twenty test bodies for `side_by_side`: ten healthy, ten that hang or mismatch.

Each is called on every rank of three, with the group initialised. In a sick one it is
rank 1 that errs, and the lines marked "told" are those that explain it: a report that
names rank 1 and one of them counts as an explanation.
"""

from __future__ import annotations

import os
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

RANKS = 3
CULPRIT = 1


def healthy_all_reduce(rank: int) -> None:
    """A sum of all ranks' values."""
    t = torch.full((4,), float(rank))
    dist.all_reduce(t)
    assert t.tolist() == [3.0] * 4


def healthy_broadcast(rank: int) -> None:
    """A tensor of rank 0's."""
    t = torch.full((4,), float(rank))
    dist.broadcast(t, src=0)
    assert t.sum().item() == 0.0


def healthy_all_gather(rank: int) -> None:
    """One tensor of each rank."""
    parts = [torch.empty(1) for _ in range(RANKS)]
    dist.all_gather(parts, torch.tensor([float(rank)]))
    assert torch.cat(parts).tolist() == [0.0, 1.0, 2.0]


def healthy_barrier(_rank: int) -> None:
    """Nothing but barriers."""
    for _ in range(5):
        dist.barrier()


def healthy_ring(rank: int) -> None:
    """A message to the next, and one from the one before."""
    t = torch.empty(1)
    sent = dist.isend(torch.tensor([float(rank)]), (rank + 1) % RANKS)
    dist.recv(t, (rank - 1) % RANKS)
    assert sent is not None
    sent.wait()
    assert t.item() == (rank - 1) % RANKS


def healthy_subgroup(rank: int) -> None:
    """A group of two."""
    pair = dist.new_group([0, 2])
    if rank != 1:
        t = torch.ones(2)
        dist.all_reduce(t, group=pair)
        assert t.tolist() == [2.0, 2.0]


def healthy_ddp(rank: int) -> None:
    """A step of DistributedDataParallel."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.full((1, 2), float(rank))).sum().backward()
    optimizer.step()


def healthy_asynchronous(_rank: int) -> None:
    """A call that is waited for later."""
    t = torch.ones(2)
    work = dist.all_reduce(t, async_op=True)
    assert work is not None
    work.wait()
    assert t.tolist() == [3.0, 3.0]


def healthy_objects(rank: int) -> None:
    """Objects of all ranks."""
    gathered: list[int] = [0] * RANKS
    dist.all_gather_object(gathered, rank)
    assert gathered == [0, 1, 2]


def healthy_scatter(rank: int) -> None:
    """A part for each rank."""
    parts = [torch.tensor([float(n)]) for n in range(RANKS)] if rank == 0 else None
    t = torch.empty(1)
    dist.scatter(t, parts, src=0)
    assert t.item() == rank


def sick_skipped_collective(rank: int) -> None:
    """Rank 1 leaves a call out."""
    t = torch.ones(4)
    if rank != CULPRIT:
        dist.all_reduce(t)  # told
    dist.barrier()  # told


def sick_swapped_order(rank: int) -> None:
    """Rank 1 makes two calls the other way round."""
    t = torch.ones(4)
    if rank == CULPRIT:
        dist.broadcast(t, src=0)  # told
        dist.all_reduce(t)
    else:
        dist.all_reduce(t)  # told
        dist.broadcast(t, src=0)


def sick_wrong_shape(rank: int) -> None:
    """Rank 1 has more elements."""
    t = torch.ones(1000 if rank == CULPRIT else 4)
    dist.all_reduce(t)  # told
    assert t[0].item() == RANKS


def sick_rank_raises(rank: int) -> None:
    """Rank 1 has an exception, and the others wait for it."""
    if rank == CULPRIT:
        raise ValueError("sample 7 is damaged")  # told
    dist.barrier()


def sick_rank_exits(rank: int) -> None:
    """Rank 1 ends, without a word."""
    if rank == CULPRIT:
        os._exit(0)  # told
    dist.barrier()  # told


def sick_receive_without_send(rank: int) -> None:
    """Rank 1 waits for a message that nobody sends."""
    if rank == CULPRIT:
        dist.recv(torch.empty(1), src=0)  # told


def sick_wrong_group(rank: int) -> None:
    """Rank 1 takes another group of the same ranks."""
    first, second = dist.new_group([0, 1, 2]), dist.new_group([0, 1, 2])
    mine = second if rank == CULPRIT else first
    dist.all_reduce(torch.ones(4), group=mine)  # told


def sick_barrier_of_one(rank: int) -> None:
    """Rank 1 alone waits at a barrier."""
    if rank == CULPRIT:
        dist.barrier()  # told


def sick_endless_loop(rank: int) -> None:
    """Rank 1 computes for ever, and the others wait for it."""
    while rank == CULPRIT:
        torch.ones(4).sum()  # told
    dist.barrier()


def sick_killed(rank: int) -> None:
    """Rank 1 is killed, as by the kernel when memory runs out."""
    if rank == CULPRIT:
        os.kill(os.getpid(), signal.SIGKILL)  # told
    dist.barrier()  # told


NAMES = [name for name in dir() if name.startswith(("healthy_", "sick_"))]
