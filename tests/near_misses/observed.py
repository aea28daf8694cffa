"""A compiled model under torch's profiler; its checkpoints are written by a thread."""

import tempfile
from concurrent.futures import Future

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function, schedule

RANKS = 2

WIDTH = 16


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 1))
    )
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    folders: list[str] = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folders, src=0)
    savers = dist.new_group(backend="gloo")  # the thread's own: see DD114
    saving = None
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=2),
        record_shapes=True,
    ) as profiler:
        for step in range(6):
            batch = torch.randn(8 if step < 4 else 5, WIDTH)
            optimizer.zero_grad()
            with record_function("forward"):
                loss = compiled(batch).square().mean()
            loss.backward()
            optimizer.step()
            profiler.step()
            if step % 3 == 2:
                if isinstance(saving, Future):
                    saving.result()
                state = {"model": model.module.state_dict()}
                saving = async_save(
                    state, checkpoint_id=f"{folders[0]}/{step}", process_group=savers
                )
    if isinstance(saving, Future):
        saving.result()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
