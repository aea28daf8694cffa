"""All ranks seed alike, and then draw noise for what they train on. Advice.

Found
-----

    import random

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    def train(network, loader, optimizer):
        dist.init_process_group("nccl")
        torch.manual_seed(42)
        model = DistributedDataParallel(network)
        for inputs in loader:
            noise = torch.randn_like(inputs)
            optimizer.zero_grad()
            model(inputs + noise).sum().backward()
            optimizer.step()

Left alone
----------
The rank is in the seed, or nothing is drawn in the loop that the seed would make alike:

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    def train(network, loader, optimizer):
        dist.init_process_group("nccl")
        torch.manual_seed(42 + dist.get_rank())
        model = DistributedDataParallel(network)
        for inputs in loader:
            optimizer.zero_grad()
            model(inputs + torch.randn_like(inputs)).sum().backward()
            optimizer.step()
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from distdoctor.lint.reading import Reading
from distdoctor.lint.source_findings import SourceFinding, line_of
from distdoctor.lint.training_acts import TrainingAct
from distdoctor.model.findings import Severity

CODE = "DD309"

_SEEDS = frozenset({"torch.manual_seed", "numpy.random.seed", "random.seed"})
_DRAWS = frozenset(
    {"randn", "rand", "randn_like", "rand_like", "randint", "randperm", "bernoulli"}
    | {"normal_", "uniform_", "multinomial"}
)
_RANKED = re.compile(r"seed[^\n]*rank|rank[^\n]*seed|generator", re.IGNORECASE)


def find(reading: Reading) -> Iterator[SourceFinding]:
    """Seeds without the rank, in programs that draw in their training loops."""
    for scope, acts in reading.training:
        file = scope.source
        if not reading.graph.averages(file) or _RANKED.search(
            reading.text_around(file)
        ):
            continue
        loops = {
            id(loop): loop
            for one in acts
            if one.act is TrainingAct.BACKWARD
            for loop in one.loops()
        }
        draws = [
            node
            for loop in loops.values()
            for node in ast.walk(loop)
            if isinstance(node, ast.Call)
            and file.dotted(node.func).rpartition(".")[2] in _DRAWS
        ]
        seeds = [
            (other, call)
            for other in file.scopes
            for call in other.calls
            if file.dotted(call.func) in _SEEDS
        ]
        if draws and seeds:
            where, seed = seeds[0]
            yield SourceFinding(
                code=CODE,
                message="all ranks seed alike here, and the loop in line "
                f"{draws[0].lineno} draws from that stream: every rank draws the same",
                at=line_of(where, seed),
                related=(line_of(scope, draws[0], "drawn here"),),
                severity=Severity.NOTE,
            )
