"""Gradients are never averaged over the ranks.

Found
-----
Nothing in the program averages:

    import torch.distributed as dist

    def train(model, loader, optimizer):
        dist.init_process_group("nccl")
        for inputs in loader:
            optimizer.zero_grad()
            model(inputs).sum().backward()
            optimizer.step()

Forward goes past the wrapper, which then does not know of it:

    from torch.nn.parallel import DistributedDataParallel as DDP

    def train(network, loader, optimizer, criterion):
        model = DDP(network)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model.module(inputs), labels)
            loss.backward()
            optimizer.step()

Left alone
----------
Gradients are averaged by hand, and the bare model is evaluated:

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    def by_hand(model, loader, optimizer):
        dist.init_process_group("nccl")
        for inputs in loader:
            optimizer.zero_grad()
            model(inputs).sum().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
            optimizer.step()

    def train(network, loader, optimizer, criterion):
        model = DDP(network)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            print(model.module(inputs))

Each rank has a part of the model, and the others ask it for that:

    import torch
    import torch.distributed as dist

    def own_rows(table, loader, optimizer):
        dist.init_process_group("nccl")
        for rows, counts, counted in loader:
            asked = torch.empty(sum(counted), dtype=rows.dtype)
            dist.all_to_all_single(asked, rows, counted, counts)
            optimizer.zero_grad()
            table(asked).square().sum().backward()
            optimizer.step()
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from distdoctor.lint.code_base import Scope
from distdoctor.lint.reading import Reading
from distdoctor.lint.source_findings import SourceFinding, line_of
from distdoctor.lint.training_acts import Done, TrainingAct

CODE = "DD404"

_STARTS = re.compile(r"(?:init_process_group|hvd\.init)\(")
_AVERAGES = re.compile(
    r"Parallel|DDP|FSDP|fully_shard|[aA]ll_?[rR]educe|reduce_scatter|DistributedOptimizer"
    r"|deepspeed|accelerat|average|parallelize|Pipeline|\brpc\b|fabric|Fabric|lightning"
    r"|apex|megatron|sync|bagua|colossal|fairscale|reduce_grad|reduce\(|gather|broadcast"
    r"|send\(|recv\(|\.distribute|wrap|DistributedGradientTape|ZeRO|Zero|dp_|DTensor"
    r"|[aA]ll_?[tT]o_?[aA]ll"
)
"""By which a program may average, or be of many parts, or not want to."""


def find(reading: Reading) -> Iterator[SourceFinding]:
    """Programs without an average, and forwards past a wrapper."""
    for scope, acts in reading.training:
        backwards = [one for one in acts if one.act is TrainingAct.BACKWARD]
        steps = [
            one
            for one in acts
            if one.act in {TrainingAct.STEP, TrainingAct.SCALED_STEP}
        ]
        if not backwards or not steps:
            continue
        text = reading.text_around(scope.source)
        if _STARTS.search(scope.source.text) and not _AVERAGES.search(text):
            yield SourceFinding(
                code=CODE,
                message="a distributed program steps by the gradients of this backward "
                "pass, and nothing in it averages them over the ranks",
                at=line_of(scope, backwards[0].call),
                related=(line_of(scope, steps[0].call, "the step"),),
            )
        elif reading.graph.averages(scope.source):
            yield from _past_wrappers(scope, backwards)


def _past_wrappers(scope: Scope, backwards: list[Done]) -> Iterator[SourceFinding]:
    """Calls of `model.module` in a loop that runs backward, and none of `model`."""
    for loop in {id(one): one for done in backwards for one in done.loops()}.values():
        called = [
            (node, ast.unparse(node.func))
            for node in ast.walk(loop)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name | ast.Attribute)
        ]
        names = {name for _, name in called}
        for call, name in called:
            model, _, last = name.rpartition(".")
            if (
                last == "module"
                and model
                and model not in names
                and call.args
                and not _is_without_gradients(loop, call)
                and _is_wrapped(scope, model)
            ):
                yield SourceFinding(
                    code=CODE,
                    message=f"forward goes through `{name}`, past the wrapper: DDP "
                    "then averages nothing in backward",
                    at=line_of(scope, call),
                    related=(line_of(scope, backwards[0].call, "the backward pass"),),
                )
                return


def _is_wrapped(scope: Scope, model: str) -> bool:
    """Whether DDP wraps a model of that name in the file."""
    last = model.rpartition(".")[2]
    return any(
        "Parallel" in (ast.unparse(value.func)) or "DDP" in ast.unparse(value.func)
        for node in ast.walk(scope.source.tree)
        if isinstance(node, ast.Assign)
        for value in [node.value]
        if isinstance(value, ast.Call)
        for target in node.targets
        if ast.unparse(target).rpartition(".")[2] == last
    )


def _is_without_gradients(loop: ast.AST, call: ast.Call) -> bool:
    return any(
        isinstance(node, ast.With)
        and any("no_grad" in ast.unparse(i.context_expr) for i in node.items)
        and any(one is call for one in ast.walk(node))
        for node in ast.walk(loop)
    )
