"""Gradients of several batches are summed up, and the loss is not divided by as many.

Found
-----

    def train(model, loader, optimizer, criterion, accumulation=4):
        for step, (inputs, labels) in enumerate(loader):
            loss = criterion(model(inputs), labels)
            loss.backward()
            if (step + 1) % accumulation == 0:
                optimizer.step()
                optimizer.zero_grad()

Left alone
----------
It is divided, somewhere; or the step of another model is what is rare:

    def train(model, loader, optimizer, criterion, accumulation=4):
        for step, (inputs, labels) in enumerate(loader):
            loss = criterion(model(inputs), labels)
            (loss / accumulation).backward()
            if (step + 1) % accumulation == 0:
                optimizer.step()
                optimizer.zero_grad()

    def adversarial(critic, maker, loader, optimizer_c, optimizer_m, every=5):
        for step, real in enumerate(loader):
            optimizer_c.zero_grad()
            (critic(maker(real)) - critic(real)).mean().backward()
            optimizer_c.step()
            if step % every == 0:
                optimizer_m.zero_grad()
                (-critic(maker(real)).mean()).backward()
                optimizer_m.step()

What is left at the end is divided by its own number:

    def with_the_rest(model, loader, optimizer, criterion, accumulation=4):
        for step, (inputs, labels) in enumerate(loader):
            left = len(loader) - step // accumulation * accumulation
            window = min(accumulation, left)
            loss = criterion(model(inputs), labels) / window
            loss.backward()
            if (step + 1) % accumulation == 0:
                optimizer.step()
                optimizer.zero_grad()
        if (step + 1) % accumulation != 0:
            optimizer.step()
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from distdoctor.lint.code_base import Scope
from distdoctor.lint.reading import Reading
from distdoctor.lint.source_findings import SourceFinding, line_of, short
from distdoctor.lint.training_acts import Done, TrainingAct
from distdoctor.lint.window_tests import windows

CODE = "DD501"

_DIVIDED = re.compile(
    r"grad\.(?:data\.)?(?:div_|mul_)|grad\s*[*/]=|multiply_grads|reduction\s*=\s*.sum"
    r"|\baccelerat|deepspeed|gradient_as_bucket|\bfabric\b|scale_grad|grad_scale"
)
"""By which a sum of gradients may be made a mean elsewhere."""


def find(reading: Reading) -> Iterator[SourceFinding]:
    """Backward passes whose sum is used as it is."""
    for scope, acts in reading.training:
        for loop, step, size, test in windows(scope, acts):
            backwards = [
                one
                for one in acts
                if one.act is TrainingAct.BACKWARD and one.goes_with(step)
                if loop in [*one.loops()]
            ]
            text = reading.text_around(scope.source)
            if _DIVIDED.search(text) or _is_divided(scope, backwards, size):
                continue
            yield SourceFinding(
                code=CODE,
                message=f"{short(size, 40)} backward passes make one step (line "
                f"{step.line}), and nothing divides the loss by as many: gradients are "
                "so many times too large",
                at=line_of(scope, backwards[0].call),
                related=(line_of(scope, test, "steps are made behind this test"),),
            )
            break


def _is_divided(scope: Scope, backwards: list[Done], size: ast.expr) -> bool:
    """Whether a loss, or anything by that number, is divided in the file.

    Also by a product with a fraction, and by a call that nobody sees into.
    """
    names = {name for one in backwards for name in _names_in(one.call)}
    number = ast.unparse(size)
    last = re.split(r"\W", number)[-1]
    made_of_it = _made_of(scope, last)
    for node in ast.walk(scope.source.tree):
        match node:
            case ast.BinOp(op=ast.Div(), left=left, right=right):
                of = ast.unparse(left)
                if last in ast.unparse(right) and "len(" not in of:
                    return True
                if _is_of(left, names):
                    return True
            case ast.Assign(
                targets=targets, value=ast.BinOp(op=ast.Div(), right=right)
            ):
                # What else is divided by such a number may be a figure that is logged.
                losses = any(_is_of(target, names) for target in targets)
                if losses and _is_of(right, made_of_it):
                    return True
            case ast.AugAssign(op=ast.Div() | ast.Mult(), target=target):
                if _is_of(target, names):
                    return True
            case ast.Call(func=ast.Attribute(attr="div" | "div_" | "mul" | "mul_")):
                return True
    for one in backwards:
        calls = [part for part in ast.walk(one.call) if isinstance(part, ast.Call)]
        if one.call.args or len(calls) > 2 + one.is_scaled:
            return True  # what is run backward is made by something else
    return False


def _made_of(scope: Scope, number: str) -> set[str]:
    """Names that the file gives what it makes of a number."""
    return {
        target.id
        for node in ast.walk(scope.source.tree)
        if isinstance(node, ast.Assign) and number in _names_in(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _is_of(node: ast.expr, names: set[str]) -> bool:
    return not names.isdisjoint(_names_in(node))


def _names_in(node: ast.expr) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
