"""The tests by which a loop makes a step only after several backward passes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from distdoctor.lint.code_base import Scope
from distdoctor.lint.training_acts import Done, TrainingAct, backwards_in


def window_of(test: ast.expr, scope: Scope) -> ast.expr | None:
    """By how many batches a test is met once; None: it is no such test.

    `(step + 1) % accumulation == 0` gives `accumulation`, also where a variable has it.

    Args:
        test: The test.
        scope: The function that it stands in.
    """
    found = _remainder(test)
    if found is not None:
        return found
    names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    for node in ast.walk(scope.node):
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id in names
            for target in node.targets
        ):
            found = _remainder(node.value)
            if found is not None and isinstance(node.value, ast.Compare | ast.BoolOp):
                return found
    return None


def _remainder(node: ast.expr) -> ast.expr | None:
    for part in ast.walk(node):
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod):
            return part.right
    return None


def windows(
    scope: Scope, acts: Sequence[Done]
) -> Iterator[tuple[ast.AST, Done, ast.expr, ast.If]]:
    """Loops that step once in several batches, whatever they step there.

    Args:
        scope: The function.
        acts: What it does to train.

    Yields:
        The loop, the step, the number of batches and the test.
    """
    for step in acts:
        if step.act not in {TrainingAct.STEP, TrainingAct.SCALED_STEP}:
            continue
        loop = next(step.loops(), None)
        if loop is None:
            continue
        for test in step.tests_within(loop):
            size = window_of(test.test, scope)
            if size is not None and _is_window(scope, acts, step, loop, test):
                yield loop, step, size, test
                break


def _is_window(
    scope: Scope, acts: Sequence[Done], step: Done, loop: ast.AST, test: ast.If
) -> bool:
    """Whether backward runs for each batch, and each step is made behind such a test.

    A loop that trains one of two models each few batches has a backward behind it.
    """
    backwards = backwards_in(loop, acts, step)
    if not backwards or any(test in one.tests_within(loop) for one in backwards):
        return False
    if _is_of_a_loop_within(loop, test.test):
        return False
    return all(
        any(window_of(one.test, scope) for one in other.tests_within(loop))
        for other in acts
        if other.act in {TrainingAct.STEP, TrainingAct.SCALED_STEP}
        and loop in [*other.loops()]
    )


def _is_of_a_loop_within(loop: ast.AST, test: ast.expr) -> bool:
    """Whether a test asks for what a loop within this one has counted.

    Behind that loop, so are the batches known that are left and make no whole window.
    """
    asked = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    return any(
        isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Store)
        and node.id in asked
        for inner in ast.walk(loop)
        if isinstance(inner, ast.For | ast.While) and inner is not loop
        for node in ast.walk(inner)
    )
