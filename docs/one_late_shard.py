"""A job of four ranks, of which one waits for a file that never comes."""

import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    """Average some batches over all ranks."""
    dist.init_process_group("gloo")
    threading.Thread(target=dump_when_asked, daemon=True).start()
    weights = torch.zeros(8)
    for step in range(1, 5):
        batch = next_batch(step)
        dist.all_reduce(batch)
        weights += batch / dist.get_world_size()
        print(f"step {step}", flush=True)  # noqa: T201 - as jobs do
    dist.destroy_process_group()


def next_batch(step: int) -> torch.Tensor:
    """A batch; rank 2 has to fetch that of step 3 first."""
    if step == 3 and dist.get_rank() == 2:
        wait_for(Path("shard-3.pt"))
    return torch.full((8,), float(step))


def wait_for(shard: Path) -> None:
    """Wait until somebody has written a file, however long it takes."""
    while not shard.exists():
        time.sleep(0.5)


def dump_when_asked() -> None:
    """Write the flight recorder's ring once a file `dump-now` is there.

    Groups of NCCL do that by themselves when a call times out; gloo does not.
    """
    while not Path("dump-now").exists():
        time.sleep(0.5)
    Path("dumps").mkdir(exist_ok=True)
    ring = torch._C._distributed_c10d._dump_fr_trace()  # type: ignore[attr-defined]
    Path(f"dumps/trace_rank_{dist.get_rank()}").write_bytes(ring)


if __name__ == "__main__":
    main()
