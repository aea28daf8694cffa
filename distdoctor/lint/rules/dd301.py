"""Every rank reads all samples: a loader of a distributed program has no sampler.

Found
-----

    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader

    def train(network, data, optimizer):
        dist.init_process_group("nccl")
        model = DistributedDataParallel(network)
        loader = DataLoader(data, batch_size=32, shuffle=True)
        for inputs in loader:
            optimizer.zero_grad()
            model(inputs).sum().backward()
            optimizer.step()

Left alone
----------
The data are dealt out in any way that can be seen:

    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, Subset

    def train(network, data, optimizer):
        dist.init_process_group("nccl")
        rank, size = dist.get_rank(), dist.get_world_size()
        model = DistributedDataParallel(network)
        own = Subset(data, range(rank, len(data), size))
        loader = DataLoader(own, batch_size=32, shuffle=True)
        for inputs in loader:
            optimizer.zero_grad()
            model(inputs).sum().backward()
            optimizer.step()
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from distdoctor.lint.code_base import Scope
from distdoctor.lint.rank_words import RANKS
from distdoctor.lint.reading import Reading
from distdoctor.lint.source_findings import SourceFinding, line_of

CODE = "DD301"

_STARTS = re.compile(r"init_process_group\(|hvd\.init\(|mp\.spawn\(")
_AVERAGES = re.compile(r"DistributedDataParallel|DistributedOptimizer")
_DEALS = re.compile(
    r"Sampler|IterableDataset|split_dataset|shard|webdataset|\bdali\b|accelerat"
    r"|num_replicas|lightning|deepspeed|random_split\([^)]*rank|LightningModule|Fabric"
    r"|DataPipe|streaming|manual_seed\([^)\n]*rank|seed\([^)\n]*rank|seed\s*\+=?\s*\w*rank"
    r"|Partition|DistributedDataLoader|rank::|model_parallel|tensor_parallel"
)
"""How a program may deal its samples out, or not want to."""

_DEALING = re.compile(r"import[^\n]*(?:lightning|accelerate|deepspeed|webdataset|dali)")


def find(reading: Reading) -> Iterator[SourceFinding]:
    """Loaders that shuffle all of the data, in programs that deal nothing out."""
    for file in reading.code.files:
        text = file.text
        if "DataLoader(" not in text or not _STARTS.search(text):
            continue
        if not _AVERAGES.search(text) or ".backward(" not in text:
            continue
        if _DEALS.search(reading.text_around(file)) or _DEALING.search(text):
            continue
        for scope in file.scopes:
            for call in scope.calls:
                if file.dotted(call.func).rpartition(".")[2] == "DataLoader" and (
                    _shuffles(call)
                    and not _knows_rank(scope)
                    and not _is_dealt(scope, call)
                ):
                    yield SourceFinding(
                        code=CODE,
                        message="this loader has no sampler, and nothing in the "
                        "program deals the samples out: every rank reads all of them",
                        at=line_of(scope, call),
                    )


def _shuffles(call: ast.Call) -> bool:
    return any(
        one.arg == "shuffle"
        and isinstance(one.value, ast.Constant)
        and one.value.value is True
        for one in call.keywords
    ) and not any(
        one.arg in {"sampler", "batch_sampler", None} for one in call.keywords
    )


def _knows_rank(scope: Scope) -> bool:
    """Whether the rank is in what data are computed by: slices, ranges, paths."""
    for node in ast.walk(scope.node):
        parts: list[ast.AST] = []
        if isinstance(node, ast.Subscript):
            parts = [node.slice]
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name[:1].isupper() or name == "range":
                parts = [*node.args, *(k.value for k in node.keywords)]
        elif isinstance(node, ast.JoinedStr):
            parts = [node]
        if name_is_ranked(parts) and not _is_device(node):
            return True
    return False


def _is_dealt(scope: Scope, loader: ast.Call) -> bool:
    """Whether the data of a loader are made by a call that is given the rank."""
    names = {one.id for one in ast.walk(loader) if isinstance(one, ast.Name)}
    return any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and any(isinstance(t, ast.Name) and t.id in names for t in node.targets)
        and name_is_ranked([*node.value.args, *(k.value for k in node.value.keywords)])
        for node in ast.walk(scope.node)
    )


def name_is_ranked(parts: list[ast.AST]) -> bool:
    """Whether any of the parts has a name that is the rank's."""
    return any(
        (isinstance(one, ast.Name) and one.id in RANKS)
        or (isinstance(one, ast.Attribute) and one.attr in RANKS)
        for part in parts
        for one in ast.walk(part)
    )


def _is_device(node: ast.AST) -> bool:
    text = ast.unparse(node)
    return any(word in text for word in ("device", "cuda", "DDP(", "Parallel(", "nccl"))
