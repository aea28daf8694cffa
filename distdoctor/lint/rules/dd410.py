"""Weights are loaded on some ranks only, or with names that do not fit and no error.

Found
-----
Rank 0 alone loads them, behind the wrapping:

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    def build(network, path):
        model = DDP(network)
        if dist.get_rank() == 0:
            model.module.load_state_dict(torch.load(path))
        return model

The wrapped model's names begin with `module.`, and `strict=False` hides that:

    import torch
    from torch.nn.parallel import DistributedDataParallel as DDP

    def stages(network, second, path):
        first = DDP(network)
        torch.save(first.state_dict(), path)
        second.load_state_dict(torch.load(path), strict=False)
        return DDP(second)

Left alone
----------
Rank 0 loads them before DDP hands them to all, and the bare model is saved:

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    def build(network, path):
        if dist.get_rank() == 0:
            network.load_state_dict(torch.load(path))
        return DDP(network)

    def stages(network, second, path):
        first = DDP(network)
        torch.save(first.module.state_dict(), path)
        second.load_state_dict(torch.load(path), strict=False)
        return DDP(second)
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from distdoctor.lint.code_base import Scope
from distdoctor.lint.parted_ranks import How
from distdoctor.lint.parting_words import told
from distdoctor.lint.reading import Reading
from distdoctor.lint.source_findings import SourceFinding, line_of

CODE = "DD410"

_RENAMED = re.compile(
    r"""["']module\.|consume_prefix|removeprefix|\[7:\]|["']module["']|\.partition\("""
)


def find(reading: Reading) -> Iterator[SourceFinding]:
    """Loads by some ranks, and names that fit nothing."""
    for parting in reading.partings:
        if parting.how is How.LOAD:
            yield told(parting, CODE)
    for file in reading.code.files:
        if "strict" not in file.text or "Parallel" not in file.text:
            continue
        if _RENAMED.search(reading.text_around(file)):
            continue
        wrapped = {
            ast.unparse(target)
            for scope in file.scopes
            for target in reading.graph.wrapped(scope)
        }
        saves = [
            (scope, call)
            for scope in file.scopes
            for call in scope.calls
            if _is_saved_wrapped(call, wrapped)
        ]
        if not saves:
            continue
        for scope in file.scopes:
            for call in scope.calls:
                if _is_lax(call) and not _is_of_wrapped(call, wrapped):
                    yield _hidden(scope, call, saves[0])


def _is_saved_wrapped(call: ast.Call, wrapped: set[str]) -> bool:
    func = call.func
    return (
        isinstance(func, ast.Attribute)
        and func.attr == "state_dict"
        and ast.unparse(func.value) in wrapped
    )


def _is_lax(call: ast.Call) -> bool:
    func = call.func
    return (
        isinstance(func, ast.Attribute)
        and func.attr == "load_state_dict"
        and any(
            one.arg == "strict"
            and isinstance(one.value, ast.Constant)
            and one.value.value is False
            for one in call.keywords
        )
    )


def _is_of_wrapped(call: ast.Call, wrapped: set[str]) -> bool:
    func = call.func
    assert isinstance(func, ast.Attribute)
    return ast.unparse(func.value) in wrapped


def _hidden(
    scope: Scope, call: ast.Call, saved: tuple[Scope, ast.Call]
) -> SourceFinding:
    where, save = saved
    return SourceFinding(
        code=CODE,
        message="what was saved of the wrapped model (line "
        f"{save.lineno}) has names that begin with `module.`; a bare model takes none "
        "of them, and `strict=False` says nothing",
        at=line_of(scope, call),
        related=(line_of(where, save, "saved here"),),
    )
