"""Every rank reads all samples: a loader of a distributed program has no sampler.

One that shuffles is there to train, and its dataset has a length: torch refuses to
shuffle another. Of one that does not, both have to be seen.

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

A loader that does not shuffle, of a dataset that is known, in a loop that trains:

    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader
    from torchvision import datasets

    def train(network, path, optimizer):
        dist.init_process_group("nccl")
        model = DistributedDataParallel(network)
        loader = DataLoader(datasets.ImageFolder(path), batch_size=32)
        for step, (images, labels) in enumerate(loader):
            optimizer.zero_grad()
            model(images).sum().backward()
            optimizer.step()

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, Dataset

    class Numbers(Dataset):
        def __init__(self, length):
            self.rows = torch.randn(length, 8)

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, number):
            return self.rows[number]

    def main(network, optimizer):
        torch.manual_seed(0)
        dist.init_process_group("gloo")
        model = DistributedDataParallel(network)
        data = Numbers(512)
        loader = DataLoader(data, batch_size=32, shuffle=False)
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

What evaluates without shuffling, what may hold other samples on each rank, and what
may be a stream:

    import time

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset
    from torchvision import datasets

    def train(network, path, optimizer, stream):
        dist.init_process_group("nccl")
        model = DistributedDataParallel(network)
        validation = DataLoader(datasets.ImageFolder(path), batch_size=32)
        torch.manual_seed(time.time_ns())
        own = DataLoader(TensorDataset(torch.randn(320, 8)), batch_size=32)
        loader = DataLoader(stream, batch_size=32)
        for (inputs,) in own:
            optimizer.zero_grad()
            model(inputs).sum().backward()
            optimizer.step()
        for inputs in loader:
            optimizer.zero_grad()
            model(inputs).sum().backward()
            optimizer.step()
        with torch.no_grad():
            for images, labels in validation:
                print(network(images))

A dataset that looks up by itself which part is its own:

    import os

    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, Dataset

    class Lines(Dataset):
        def __init__(self, path):
            self.lines = open(path + os.environ["SLURM_PROCID"]).readlines()

        def __len__(self):
            return len(self.lines)

        def __getitem__(self, number):
            return encode(self.lines[number])

    def main(network, optimizer, path):
        dist.init_process_group("gloo")
        model = DistributedDataParallel(network)
        loader = DataLoader(Lines(path), batch_size=32)
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
    """Loaders of all of the data, in programs that deal nothing out."""
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
                    _reads_all(reading, scope, call)
                    and not _knows_rank(scope)
                    and not _is_dealt(scope, call)
                ):
                    yield SourceFinding(
                        code=CODE,
                        message="this loader has no sampler, and nothing in the "
                        "program deals the samples out: every rank reads all of them",
                        at=line_of(scope, call),
                    )


def _reads_all(reading: Reading, scope: Scope, loader: ast.Call) -> bool:
    """Whether a loader gives all samples of a dataset, to train with them."""
    if any(one.arg in {"sampler", "batch_sampler", None} for one in loader.keywords):
        return False
    return _shuffles(loader) or (
        _is_trained_with(scope, loader)
        and _is_same_on_all(reading, scope, _dataset(loader))
    )


def _shuffles(call: ast.Call) -> bool:
    return any(
        one.arg == "shuffle"
        and isinstance(one.value, ast.Constant)
        and one.value.value is True
        for one in call.keywords
    )


def _is_trained_with(scope: Scope, loader: ast.Call) -> bool:
    """Whether a loop over a loader, in the same function, has a backward pass in it."""
    names = {
        target.id
        for node in ast.walk(scope.node)
        if isinstance(node, ast.Assign) and node.value is loader
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return any(
        isinstance(loop, ast.For)
        and any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(loop.iter))
        and any(
            isinstance(one, ast.Call) and getattr(one.func, "attr", "") == "backward"
            for one in ast.walk(loop)
        )
        for loop in ast.walk(scope.node)
    ) and all(len(_assigned(scope, name)) == 1 for name in names)


def _assigned(scope: Scope, name: str) -> list[ast.expr]:
    """What a function, or else its file, assigns to a name."""
    found = [
        node.value
        for node in ast.walk(scope.node)
        if isinstance(node, ast.Assign)
        and any(isinstance(t, ast.Name) and t.id == name for t in node.targets)
    ]
    if found or name in scope.parameters:
        return found
    return scope.source.globals.get(name, [])


def _dataset(loader: ast.Call) -> ast.expr | None:
    named = [one.value for one in loader.keywords if one.arg == "dataset"]
    return next(iter([*loader.args[:1], *named]), None)


def _is_same_on_all(reading: Reading, scope: Scope, data: ast.expr | None) -> bool:
    """Whether a dataset has a length, and surely the same samples on all ranks."""
    if isinstance(data, ast.Name):
        made = _assigned(scope, data.id)
        data = made[0] if len(made) == 1 else None
    if not isinstance(data, ast.Call) or _may_draw_own(reading, scope, scope.node):
        return False
    dotted = scope.source.dotted(data.func)
    if dotted.startswith("torchvision.datasets.") or dotted in _OF_TORCH:
        return True
    for file in reading.code.around(scope.source):
        defined = file.classes.get(dotted.rpartition(".")[2])
        if defined is not None:
            return _is_indexed(defined) and not _may_draw_own(reading, scope, defined)
    return False


_OF_TORCH = {"torch.utils.data.TensorDataset", "torch.utils.data.dataset.TensorDataset"}


def _is_indexed(defined: ast.ClassDef) -> bool:
    """Whether a class has samples by number, and asks for nothing of its rank's own."""
    methods = {n.name: n for n in defined.body if isinstance(n, ast.FunctionDef)}
    if not {"__getitem__", "__len__"} <= methods.keys():
        return False
    fresh = _DRAWS.search(ast.unparse(methods["__getitem__"]))
    return not fresh and not _OF_A_PROCESS.search(ast.unparse(defined))


def _may_draw_own(reading: Reading, scope: Scope, node: ast.AST) -> bool:
    """Whether each rank may draw data of its own.

    Torch begins with one seed in every process, unlike others; what seeds it tells.
    """
    text = ast.unparse(node)
    if _OTHERS_DRAW.search(text):
        return True
    return _DRAWS.search(text) is not None and not all(
        call.args and all(isinstance(one, ast.Constant) for one in call.args)
        for file in reading.code.around(scope.source)
        for other in file.scopes
        for call in other.calls
        if _SEEDS.search(getattr(call.func, "attr", getattr(call.func, "id", "")))
    )


_DRAWS = re.compile(r"\brand(?:n|int|om|perm)?(?:_like)?\b|\w\.(?:normal|uniform)_?\(")
_OTHERS_DRAW = re.compile(r"\brandom\.|default_rng|\btime\.|\bsecrets\.|\buuid")
_SEEDS = re.compile(r"seed(?!ed)")
_OF_A_PROCESS = re.compile(r"rank|environ|worker|getpid|hostname")


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
