"""Point to point: a pipeline 1F1B, a halo exchange, and workers that ask for work.

The ranks list the messages of a batch in different orders, post receives long before
the message is sent, and receive from whoever comes first.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

RANKS = 3

WIDTH, MICRO_BATCHES = 4, 5


def run_1f1b(stage: nn.Module) -> None:
    """Warm-up forwards, then one forward and one backward in turn, then the rest."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    warm_up = min(last - rank, MICRO_BATCHES)
    under_way: list[tuple[Tensor, Tensor]] = []
    sends: list[dist.Work | None] = []

    def forward() -> None:
        inputs = torch.randn(2, WIDTH)
        if rank > 0:
            dist.recv(inputs, src=rank - 1)
        outputs = stage(inputs.requires_grad_())
        if rank < last:
            sends.append(dist.isend(outputs.detach(), dst=rank + 1))
        under_way.append((inputs, outputs))

    def backward() -> None:
        inputs, outputs = under_way.pop(0)
        gradient = torch.ones_like(outputs)
        if rank < last:
            dist.recv(gradient, src=rank + 1)
        torch.autograd.backward(outputs, gradient)
        if rank > 0 and inputs.grad is not None:
            sends.append(dist.isend(inputs.grad, dst=rank - 1))

    for _ in range(warm_up):
        forward()
    for _ in range(MICRO_BATCHES - warm_up):
        forward()
        backward()
    for _ in range(warm_up):
        backward()
    for send in sends:
        if send is not None:
            send.wait()


def exchange_halos(rows: Tensor) -> None:
    """Ring exchange of the edges; odd ranks list their receives first."""
    rank, size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % size, (rank + 1) % size
    for _ in range(3):
        sends = [
            dist.P2POp(dist.isend, rows[1].clone(), left, tag=1),
            dist.P2POp(dist.isend, rows[-2].clone(), right, tag=2),
        ]
        above, below = torch.empty(WIDTH), torch.empty(WIDTH)
        receives = [
            dist.P2POp(dist.irecv, below, right, tag=1),
            dist.P2POp(dist.irecv, above, left, tag=2),
        ]
        messages = receives + sends if rank % 2 else sends + receives[::-1]
        for work in dist.batch_isend_irecv(messages):
            work.wait()
        rows[0], rows[-1] = above, below


def serve(jobs: int) -> None:
    """Rank 0 hands out work to whoever asks; how many each gets is left to chance."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        for job in [*range(jobs), *[-1] * (size - 1)]:
            asked = torch.zeros(1)
            worker = dist.recv(asked)
            dist.send(torch.tensor([float(job)]), dst=worker)
        return
    while True:
        job = torch.zeros(1)
        answer = dist.irecv(job, src=0)  # before the question: the room is ready
        dist.send(torch.tensor([float(rank)]), dst=0)
        if answer is not None:
            answer.wait()
        if job.item() < 0:
            return


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    run_1f1b(nn.Linear(WIDTH, WIDTH))
    exchange_halos(torch.randn(6, WIDTH))
    serve(jobs=7)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
