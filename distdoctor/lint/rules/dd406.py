"""Parameters are replaced or unfrozen after DDP has wrapped the model.

Found
-----

    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP

    def build(network, classes):
        model = DDP(network)
        model.module.head = nn.Linear(64, classes)
        return model

    from torch.nn.parallel import DistributedDataParallel as DDP

    def build(network):
        for parameter in network.parameters():
            parameter.requires_grad = False
        model = DDP(network)
        for parameter in model.parameters():
            parameter.requires_grad = True
        return model

Left alone
----------
It is done before, or the model is wrapped again:

    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP

    def build(network, classes):
        network.head = nn.Linear(64, classes)
        network.requires_grad_(True)
        model = DDP(network)
        model.module.name = "first"
        model.module.head = nn.Linear(64, 2 * classes)
        model = DDP(model.module)
        return model
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from distdoctor.lint.code_base import Scope
from distdoctor.lint.communication import REPLICATES
from distdoctor.lint.reading import Reading
from distdoctor.lint.source_findings import SourceFinding, line_of

CODE = "DD406"

_LAYERS = ("torch.nn.", "nn.")


def find(reading: Reading) -> Iterator[SourceFinding]:
    """Changes of a wrapped model, behind the wrapping in one function."""
    for file in reading.code.files:
        if "Parallel" not in file.text:
            continue
        for scope in file.scopes:
            wraps = [*_wraps(scope, scope.body)]
            for wrap, names, block in wraps:
                last = max(one.lineno for one, _, _ in wraps)
                if wrap.lineno == last:
                    yield from _changes(scope, wrap, names, block)


def _wraps(
    scope: Scope, block: Sequence[ast.stmt]
) -> Iterator[tuple[ast.Assign, set[str], Sequence[ast.stmt]]]:
    """Statements that wrap a model, by which names it is known, and what follows."""
    for n, statement in enumerate(block):
        if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            continue
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
            call = statement.value
            if scope.source.dotted(call.func) in REPLICATES:
                names = {ast.unparse(target) for target in statement.targets}
                if call.args and isinstance(call.args[0], ast.Name | ast.Attribute):
                    names.add(ast.unparse(call.args[0]))
                yield statement, names, block[n + 1 :]
        for name in ("body", "orelse", "finalbody"):
            yield from _wraps(scope, getattr(statement, name, []))


def _changes(
    scope: Scope, wrap: ast.Assign, names: set[str], block: Sequence[ast.stmt]
) -> Iterator[SourceFinding]:
    for statement in block:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(statement):
            what = _change(scope, node, names)
            if what:
                yield SourceFinding(
                    code=CODE,
                    message=f"{what} after DDP has wrapped the model (line "
                    f"{wrap.lineno}), which averages what it found then",
                    at=line_of(scope, node),
                    related=(line_of(scope, wrap, "wrapped here"),),
                )
                return


def _change(scope: Scope, node: ast.AST, names: set[str]) -> str:
    """What a statement changes of a model of one of these names; "" if nothing."""
    match node:
        case ast.Assign(targets=[ast.Attribute() as target], value=ast.Call() as value):
            while isinstance(value.func, ast.Attribute) and isinstance(
                value.func.value, ast.Call
            ):
                value = value.func.value  # `nn.Linear(64, 10).to(device)`
            dotted = scope.source.dotted(value.func)
            if dotted.startswith(_LAYERS) and _belongs(target, names):
                return f"`{ast.unparse(target)}` is replaced"
        case ast.For(target=ast.Name(id=name), iter=ast.Call() as over):
            if not any("parameters" in p for p in [ast.unparse(over.func)]):
                return ""
            if isinstance(over.func, ast.Attribute) and _belongs(over.func, names):
                for one in node.body:
                    if (
                        isinstance(one, ast.Assign)
                        and ast.unparse(one.targets[0]) == f"{name}.requires_grad"
                        and isinstance(one.value, ast.Constant)
                        and one.value.value is True
                    ):
                        return "parameters are unfrozen"
        case ast.Call(func=ast.Attribute(attr="requires_grad_") as func, args=args):
            given = args[0] if args else None
            thaws = given is None or (
                isinstance(given, ast.Constant) and given.value is True
            )
            if thaws and _belongs(func, names):
                return "parameters are unfrozen"
    return ""


def _belongs(node: ast.expr, names: set[str]) -> bool:
    """Whether an attribute is one of a model of these names, or of a part of it."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
        if ast.unparse(node) in names:
            return True
    return False
