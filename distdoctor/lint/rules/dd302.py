"""A DistributedSampler that shuffles is never told the epoch: each has the same order.

Found
-----

    from torch.utils.data import DataLoader, DistributedSampler

    def train(data, epochs, model, optimizer):
        sampler = DistributedSampler(data)
        loader = DataLoader(data, batch_size=32, sampler=sampler)
        for epoch in range(epochs):
            for inputs in loader:
                optimizer.zero_grad()
                model(inputs).sum().backward()
                optimizer.step()

Left alone
----------
It is told, or it does not shuffle, or there is one epoch:

    from torch.utils.data import DataLoader, DistributedSampler

    def train(data, test_data, epochs, model, optimizer):
        sampler = DistributedSampler(data)
        loader = DataLoader(data, batch_size=32, sampler=sampler)
        test_sampler = DistributedSampler(test_data, shuffle=False)
        test_loader = DataLoader(test_data, sampler=test_sampler)
        for epoch in range(epochs):
            loader.sampler.set_epoch(epoch)
            for inputs in loader:
                optimizer.zero_grad()
                model(inputs).sum().backward()
                optimizer.step()
            print(sum(model(inputs).sum() for inputs in test_loader))
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from distdoctor.lint.code_base import ProgramFile, Scope
from distdoctor.lint.reading import Reading
from distdoctor.lint.source_findings import Insertion, SourceFinding, inserted, line_of

CODE = "DD302"

_DEALT = re.compile(
    r"accelerat|lightning|Fabric|Trainer\(|catalyst|getattr\([^)]*epoch"
)
_TELLS = re.compile(r"([\w.\[\]\"']*)\.set_epoch")
_REST = re.compile(r"val|test|eval|dev|query|gallery|infer|predict", re.IGNORECASE)


def find(reading: Reading) -> Iterator[SourceFinding]:
    """Samplers that shuffle, in programs with epochs that never tell them."""
    for file in reading.code.files:
        if "DistributedSampler(" not in file.text or ".backward(" not in (
            reading.text_around(file)
        ):
            continue
        told = _TELLS.findall(reading.text_around(file))
        if _DEALT.search(reading.text_around(file)) or not all(
            _REST.search(one) for one in told
        ):
            continue
        epochs = _epochs(reading.code.around(file))
        if epochs is None:
            continue
        for scope in file.scopes:
            for statement, call in _samplers(scope):
                name = _name(statement)
                if _is_plain(call) or _REST.search(ast.unparse(statement)):
                    continue
                where, loop = epochs
                yield SourceFinding(
                    code=CODE,
                    message="this sampler shuffles, and nothing in the program calls "
                    "its `set_epoch`: every epoch has the same order",
                    at=line_of(scope, call),
                    related=(line_of(where, loop, "the loop over epochs"),),
                    fix=_fix(scope, where, loop, name),
                )


def _samplers(scope: Scope) -> Iterator[tuple[ast.stmt, ast.Call]]:
    for node in ast.walk(scope.node):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for part in ast.walk(node.value):
                if isinstance(part, ast.Call) and part in scope.calls:
                    dotted = scope.source.dotted(part.func)
                    if dotted.rpartition(".")[2] == "DistributedSampler":
                        yield node, part


def _name(statement: ast.stmt) -> str:
    target = (
        statement.targets[0]
        if isinstance(statement, ast.Assign)
        else getattr(statement, "target", None)
    )
    return target.id if isinstance(target, ast.Name) else ""


def _is_plain(call: ast.Call) -> bool:
    """Whether it does not shuffle, as far as is seen, or is given what nobody sees."""
    for one in call.keywords:
        if one.arg is None:
            return True
        if one.arg == "shuffle":
            value = one.value
            return not (isinstance(value, ast.Constant) and value.value is True)
    return len(call.args) > 3


def _epochs(files: Sequence[ProgramFile]) -> tuple[Scope, ast.For] | None:
    """The loop over epochs, by the name of what it counts."""
    for file in files:
        for scope in file.scopes:
            if not any("epoch" in word for word in scope.words):
                continue
            for node in _own_loops(scope.body):
                target = ast.unparse(node.target)
                if "epoch" in target and not isinstance(node.iter, ast.List):
                    return scope, node
    return None


def _own_loops(body: Sequence[ast.stmt]) -> Iterator[ast.For]:
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            continue
        if isinstance(statement, ast.For):
            yield statement
        for name in ("body", "orelse", "finalbody"):
            yield from _own_loops(getattr(statement, name, []))


def _fix(scope: Scope, where: Scope, loop: ast.For, name: str) -> Insertion | None:
    """Tell it at the top of the loop, where one function has both."""
    if scope is not where or not name or not isinstance(loop.target, ast.Name):
        return None
    text = f"{name}.set_epoch({loop.target.id})"
    return inserted(scope.source, loop.body[0], [text])
