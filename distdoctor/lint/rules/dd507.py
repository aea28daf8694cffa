"""Gradients are never cleared between steps.

Found
-----

    def train(model, loader, optimizer, criterion):
        for inputs, labels in loader:
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()

Left alone
----------
They are, by whatever means and in whatever file of the program:

    def train(model, loader, optimizer, criterion):
        for inputs, labels in loader:
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()
            for parameter in model.parameters():
                parameter.grad = None

Each step's are in a context of their own:

    import torch.distributed.autograd as dist_autograd

    def train(model, loader, optimizer, criterion):
        for inputs, labels in loader:
            with dist_autograd.context() as context:
                loss = criterion(model(inputs), labels)
                dist_autograd.backward(context, [loss])
                optimizer.step(context)
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from distdoctor.lint.reading import Reading
from distdoctor.lint.source_findings import SourceFinding, inserted, line_of
from distdoctor.lint.training_acts import TrainingAct, backwards_in

CODE = "DD507"

_CLEARED = re.compile(
    r"zero_grad|grad\s*=\s*None|grad\.(?:data\.)?zero_|grad\.(?:data\.)?fill_|clear_grad"
    r"|grad\.detach_|deepspeed|set_to_none|zero_\(|\.minimize\(|model_engine|autograd\.grad"
)


def _is_made_in(loop: ast.AST, optimizer: str) -> bool:
    return any(
        isinstance(node, ast.Assign)
        and any(ast.unparse(target) == optimizer for target in node.targets)
        for node in ast.walk(loop)
    )


def find(reading: Reading) -> Iterator[SourceFinding]:
    """Loops with backward and a step, in programs that clear nothing."""
    for scope, acts in reading.training:
        steps = [
            one
            for one in acts
            if one.act in {TrainingAct.STEP, TrainingAct.SCALED_STEP} and one.path
        ]
        for step in steps:
            loop = next(step.loops(), None)
            backwards = backwards_in(loop, acts, step)
            if loop is None or not backwards:
                continue
            if _CLEARED.search(reading.text_around(scope.source)):
                break
            if _is_made_in(loop, step.of):
                continue  # a new one in each round
            of = step.call.args[0] if step.act is TrainingAct.SCALED_STEP else None
            name = getattr(of, "id", "optimizer") if of is not None else step.of
            yield SourceFinding(
                code=CODE,
                message="gradients are added up and used, and nothing in the program "
                "clears them: each step is made by all batches before it",
                at=line_of(scope, backwards[0].call),
                related=(line_of(scope, step.call, "the step"),),
                fix=inserted(
                    scope.source,
                    step.statement,
                    [f"{name}.zero_grad()"],
                    behind=True,
                ),
            )
            break
