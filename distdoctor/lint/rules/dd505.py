"""The last backward pass before a step is inside of `no_sync`, or forward is not.

Found
-----

    def train(model, batches, optimizer):
        for window in batches:
            for inputs in window:
                with model.no_sync():
                    model(inputs).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

`no_sync` is asked for in forward, too:

    def train(model, batches, optimizer):
        for window in batches:
            for inputs in window[:-1]:
                loss = model(inputs).sum()
                with model.no_sync():
                    loss.backward()
            model(window[-1]).sum().backward()
            optimizer.step()

Left alone
----------
The last one is outside:

    from contextlib import nullcontext

    def train(model, batches, optimizer):
        for window in batches:
            for n, inputs in enumerate(window):
                last = n + 1 == len(window)
                with nullcontext() if last else model.no_sync():
                    model(inputs).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            with model.no_sync():
                for inputs in window[:-1]:
                    model(inputs).sum().backward()
            model(window[-1]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from distdoctor.lint.code_base import Scope
from distdoctor.lint.reading import Reading
from distdoctor.lint.source_findings import SourceFinding, line_of
from distdoctor.lint.training_acts import Done, TrainingAct

CODE = "DD505"


def find(reading: Reading) -> Iterator[SourceFinding]:
    """Contexts that leave the gradients of a step unaveraged."""
    for scope, acts in reading.training:
        backwards = [one for one in acts if one.act is TrainingAct.BACKWARD]
        contexts = [_context(one) for one in backwards]
        found = [one for one in contexts if one is not None]
        if not found:
            continue
        steps = [
            one
            for one in acts
            if one.act in {TrainingAct.STEP, TrainingAct.SCALED_STEP}
        ]
        where = scope
        if not steps and scope.source.text.count(".backward(") == len(found):
            # Another function makes the step, and no other one runs backward.
            for other, others in reading.training:
                if other.source is scope.source and not steps:
                    where = other
                    steps = [one for one in others if one.act is TrainingAct.STEP]
        if len(found) == len(contexts) and steps and not _exchanges(reading, where):
            yield SourceFinding(
                code=CODE,
                message="every backward pass before the step in line "
                f"{steps[-1].line} is inside of `no_sync`: its gradients are never "
                "averaged",
                at=line_of(scope, found[0]),
                related=(line_of(where, steps[-1].call, "the step"),),
            )
            continue
        for context in found:
            if _lacks_forward(scope, context, acts):
                yield SourceFinding(
                    code=CODE,
                    message="backward alone is inside of `no_sync`; DDP asks for it in "
                    "forward, and averages all the same",
                    at=line_of(scope, context),
                )


def _context(backward: Done) -> ast.With | None:
    """The `with model.no_sync()` that a backward pass is in whatever happens."""
    for branch in reversed(backward.path):
        node = branch.node
        if isinstance(node, ast.With):
            for item in node.items:
                one = item.context_expr
                if isinstance(one, ast.Call) and _is_no_sync(one):
                    return node
        if isinstance(node, ast.If):
            return None  # only sometimes
    return None


def _is_no_sync(call: ast.Call) -> bool:
    return (
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "no_sync"
        and not call.args
        and not call.keywords
    )


def _exchanges(reading: Reading, scope: Scope) -> bool:
    """Whether the function communicates itself: it may average by its own means."""
    return any(
        (told := reading.graph.communication(call, scope)) is not None
        and told.name != "backward"
        for call in scope.calls
    ) or any(word in name for name in scope.words for word in ("reduce", "sync_grad"))


def _lacks_forward(scope: Scope, context: ast.With, acts: Sequence[Done]) -> bool:
    """Whether the model is called outside of the context, and never inside."""
    call = context.items[0].context_expr
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Attribute)
    model = ast.unparse(call.func.value)
    inside = {id(node) for node in ast.walk(context)}
    forwards = [one for one in scope.calls if ast.unparse(one.func) == model]
    others = [
        one
        for one in scope.calls
        if id(one) in inside
        and not any(done.call is one for done in acts)
        and not _is_no_sync(one)
    ]
    return bool(forwards) and not others
