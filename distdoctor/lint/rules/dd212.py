"""Some ranks alone run the forward of a model that communicates, or take its weights.

FSDP gathers in each forward, and in `state_dict`. DDP broadcasts a model's buffers
before forward; without buffers it does not, so that DDP is told of only where the text
shows such (BatchNorm, a torchvision or timm model, `register_buffer`).

Found
-----

    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP

    def evaluate(model, loader):
        model.eval()
        return sum(model(inputs).sum() for inputs in loader)

    def train(loader):
        model = DDP(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
        for inputs in loader:
            model(inputs).sum().backward()
        if dist.get_rank() == 0:
            print(evaluate(model, loader))

    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    def finetune(network, path, rank):
        model = FSDP(network)
        if rank == 0:
            save(model.state_dict(), path)

Left alone
----------
The bare model on rank 0, and a model without buffers:

    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP

    def evaluate(model, loader):
        model.eval()
        return sum(model(inputs).sum() for inputs in loader)

    def train(loader):
        model = DDP(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
        for inputs in loader:
            model(inputs).sum().backward()
        if dist.get_rank() == 0:
            print(evaluate(model.module, loader))
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from distdoctor.lint.parted_ranks import How
from distdoctor.lint.parting_words import told
from distdoctor.lint.reading import Reading
from distdoctor.lint.source_findings import SourceFinding

CODE = "DD212"

_BUFFERS = re.compile(
    r"BatchNorm|register_buffer|torchvision\.models|models\.\w+\(|timm\.create_model"
    r"|[rR]es[nN]et|[eE]fficient[nN]et|[mM]obile[nN]et"
)


def find(reading: Reading) -> Iterator[SourceFinding]:
    """Forwards that others do not run."""
    for parting in reading.partings:
        if parting.how is not How.FORWARD:
            continue
        sharded = parting.step.communication.name.endswith("sharded")
        source = parting.step.spot.scope.source
        if not sharded and not _BUFFERS.search(reading.text_around(source)):
            continue
        ending = "" if sharded else ", and DDP broadcasts the buffers before it"
        yield told(parting, CODE, ending)
