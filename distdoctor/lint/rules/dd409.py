"""Every rank writes the same file.

Found
-----

    import torch
    import torch.distributed as dist

    def save(model, path):
        torch.save(model.state_dict(), path)

    def main(model):
        dist.init_process_group("nccl")
        save(model, "model.pt")

    if __name__ == "__main__":
        main(make_model())

So does a file that calls it without asking whether it is imported:

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    def main():
        dist.init_process_group("gloo")
        model = DistributedDataParallel(torch.nn.Linear(3, 3))
        for epoch in range(3):
            model(torch.randn(3, 3)).sum().backward()
            torch.save(model.state_dict(), f"epoch_{epoch}.pt")

    main()

Left alone
----------
Rank 0 alone writes it, or each rank has a file of its own:

    import torch
    import torch.distributed as dist

    def is_main_process():
        return not dist.is_initialized() or dist.get_rank() == 0

    def save(model, path):
        if is_main_process():
            torch.save(model.state_dict(), path)

    def main(model):
        dist.init_process_group("nccl")
        save(model, "model.pt")
        name = f"rng-{dist.get_rank()}.pt"
        torch.save(torch.get_rng_state(), name)

    if __name__ == "__main__":
        main(make_model())

Who starts the ranks is none of them:

    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp

    def work(rank):
        dist.init_process_group("gloo", rank=rank, world_size=2)
        dist.barrier()

    if __name__ == "__main__":
        torch.save(torch.ones(3), "data.pt")
        mp.spawn(work, nprocs=2)

Nor is a program that has no ranks:

    import torch

    def main():
        model = torch.nn.Linear(3, 3)
        torch.save(model.state_dict(), "model.pt")

    main()

A file of its own, in a program that does not ask whether it is imported:

    import os
    import tempfile
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    def save_on_master(*args):
        if dist.get_rank() == 0:
            torch.save(*args)

    def main():
        dist.init_process_group("gloo")
        model = torch.nn.Linear(3, 3)
        save_on_master(model.state_dict(), "model.pt")
        dcp.save(model.state_dict(), checkpoint_id="sharded")
        torch.save(model.state_dict(), f"model-{dist.get_rank()}.pt")
        torch.save(model.state_dict(), os.path.join(tempfile.mkdtemp(), "model.pt"))
        torch.save(model.state_dict(), os.devnull)

    main()
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from distdoctor.lint.reading import Reading
from distdoctor.lint.shared_writes import shared_writes
from distdoctor.lint.source_findings import SourceFinding, line_of

CODE = "DD409"

_STARTS = re.compile(r"init_process_group\(|hvd\.init\(")


def find(reading: Reading) -> Iterator[SourceFinding]:
    """Writes that every rank comes to, of one name."""
    for write in shared_writes(reading.graph):
        spot = write.spot
        passed = {one.scope.source for one in (*write.callers, spot)}
        if not any(_STARTS.search(file.text) for file in {write.entry.source, *passed}):
            continue
        yield SourceFinding(
            code=CODE,
            message="every rank comes to this line and writes the same file",
            at=line_of(spot.scope, spot.node),
            related=tuple(
                line_of(one.scope, one.node, "come to by this call")
                for one in write.callers[-2:]
                if one.scope.name != "<module>"
            ),
        )
