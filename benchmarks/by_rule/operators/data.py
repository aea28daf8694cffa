"""Faults in which samples a rank reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from by_rule.asking import SAMPLER, call_of, is_method, keyword, name_of
from by_rule.bases import Base, replaced, swapped
from by_rule.faulted import ADVICE, Making, fault, operator


def _samplers(base: Base) -> Iterator[tuple[ast.stmt, ast.Call]]:
    """Statements that make a sampler for training, and its call."""
    for node in base.statements():
        if not isinstance(node, ast.Assign) or not base.runs(node):
            continue
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and name_of(call) == SAMPLER:
                yield node, call


def _is_shuffled(call: ast.Call) -> bool:
    given = keyword(call, "shuffle")
    return given is None or (isinstance(given, ast.Constant) and bool(given.value))


def _without(base: Base, call: ast.Call, *names: str) -> list[str]:
    """Arguments of a call that is given some by name, as text."""
    return [
        *(base.source(one) for one in call.args),
        *(
            f"{one.arg}={base.source(one.value)}"
            for one in call.keywords
            if one.arg not in names
        ),
    ]


@operator
def sampler_left_out(base: Base) -> Making:
    """A loader is made without its sampler: all ranks read the same."""
    samplers = {
        ast.unparse(node.targets[0])
        for node, call in _samplers(base)
        if isinstance(node, ast.Assign) and _is_shuffled(call)
    }
    for node in base.statements():
        if not isinstance(node, (ast.Assign, ast.Return)) or not base.runs(node):
            continue
        for call in ast.walk(node):
            if not isinstance(call, ast.Call) or name_of(call) != "DataLoader":
                continue
            sampler = keyword(call, "sampler")
            if sampler is not None and ast.unparse(sampler) in samplers:
                words = _without(base, call, "sampler")
                text = f"{base.source(call.func)}({', '.join(words)})"
                edited = swapped(base, call, text)
                yield fault("sampler_left_out", base, edited, "DD301")


@operator
def sampler_of_rank_0(base: Base) -> Making:
    """All ranks read the part of rank 0."""
    for _, call in _samplers(base):
        if not _is_shuffled(call) or len(call.args) > 1:
            continue
        words = _without(base, call, "num_replicas", "rank")
        words += [f"num_replicas={base.ranks}", "rank=0"]
        edited = swapped(base, call, f"{base.source(call.func)}({', '.join(words)})")
        yield fault("sampler_of_rank_0", base, edited, "DD301")


@operator
def epoch_not_set(base: Base) -> Making:
    """The sampler is not told the epoch: each has the same order."""
    shuffled = {
        ast.unparse(node.targets[0])
        for node, call in _samplers(base)
        if isinstance(node, ast.Assign) and _is_shuffled(call)
    }
    for node in base.statements():
        call = call_of(node)
        if call is None or not is_method(call, "set_epoch") or not base.runs(node, 2):
            continue
        assert isinstance(call.func, ast.Attribute)
        if ast.unparse(call.func.value) not in shuffled:
            continue
        made = [
            one.lineno
            for one, _ in _samplers(base)
            if isinstance(one, ast.Assign)
            and ast.unparse(one.targets[0]) == ast.unparse(call.func.value)
        ]
        around = [loop.lineno for loop in base.loops(node)]
        edited = replaced(base, node, ["pass"])
        yield fault(
            "epoch_not_set",
            base,
            edited,
            "DD302",
            lines=[*made, *around],
            severities=ADVICE,
        )
