"""Faults in how a step is made: windows, clearing, clipping, scaling."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from by_rule.asking import call_of, calls, has, is_method, wrapped_names
from by_rule.bases import (
    Base,
    indented,
    inserted,
    own_lines,
    replaced,
    swapped,
)
from by_rule.faulted import ADVICE, Making, fault, operator
from by_rule.operators.course import training_loops


def _methods(base: Base, name: str, at_least: int = 1) -> Iterator[ast.stmt]:
    for node in base.statements():
        call = call_of(node)
        if call is not None and is_method(call, name) and base.runs(node, at_least):
            yield node


def _windows(base: Base) -> Iterator[tuple[ast.For, ast.If]]:
    """Loops over batches with a branch that steps once in a while, by a remainder."""
    for loop in base.statements():
        if not isinstance(loop, ast.For) or not base.iterates(loop):
            continue
        for node in loop.body:
            if not isinstance(node, ast.If) or not has(loop, "backward"):
                continue
            counted = any(
                isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mod)
                for one in ast.walk(node.test)
            )
            rounds = base.count(node, 0)
            steps = base.count(node.body[0], 0)
            outside = any(has(one, "backward") for one in loop.body if one is not node)
            # With a backward pass of its own it steps another model, now and then.
            outside = outside and not has(node, "backward")
            if counted and outside and has(node, "step") and 0 < steps <= rounds // 2:
                yield loop, node


def _statement_text(base: Base, node: ast.expr) -> str:
    """The statement in which an expression stands."""
    return next(
        base.source(one) for one in base.above(node) if isinstance(one, ast.stmt)
    )


@operator
def loss_not_divided(base: Base) -> Making:
    """The loss of each batch of a window is not divided by their number."""
    for loop, node in _windows(base):
        sizes = {
            ast.unparse(one.right)
            for one in ast.walk(node.test)
            if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mod)
        }
        for one in ast.walk(loop):
            if (
                isinstance(one, ast.BinOp)
                and isinstance(one.op, ast.Div)
                and ast.unparse(one.right) in sizes
                and "loss" in _statement_text(base, one)
            ):
                edited = swapped(base, one, base.source(one.left))
                yield fault(
                    "loss_not_divided", base, edited, "DD501", severities=ADVICE
                )
                break


@operator
def cleared_in_window(base: Base) -> Making:
    """Gradients are cleared before each batch of a window."""
    for loop, node in _windows(base):
        cleared = [
            one
            for one in node.body
            if (call := call_of(one)) is not None and is_method(call, "zero_grad")
        ]
        if len(cleared) == 1:
            edited = inserted(base, loop.body[0], own_lines(base, cleared[0]))
            yield fault("cleared_in_window", base, edited, "DD503")


@operator
def never_cleared(base: Base) -> Making:
    """Gradients are not cleared."""
    if base.text.count("zero_grad") != 1:
        return
    for node in _methods(base, "zero_grad", 3):
        steps = [
            one.lineno
            for one in base.statements()
            if (call := call_of(one)) is not None and is_method(call, "step")
        ]
        # Where something is missing: there, at the step, or at the loop's head.
        near = [loop.lineno for loop in base.loops(node)[:1]] + steps
        edited = replaced(base, node, ["pass"])
        yield fault("never_cleared", base, edited, "DD507", lines=near)


@operator
def averaging_switched_off(base: Base) -> Making:
    """Forward and backward of each batch stand under `no_sync`."""
    stands = set(base.statements())
    for loop in training_loops(base):
        if "no_sync" in base.text:
            continue
        names = wrapped_names(base.tree)
        found = [
            (at, ast.unparse(call.func))
            for at, one in enumerate(loop.body)
            for call in calls(one)
            if ast.unparse(call.func) in names
        ]
        ends = [
            at
            for at, one in enumerate(loop.body)
            if (call := call_of(one)) is not None and is_method(call, "backward")
        ]
        if len(found) != 1 or len(ends) != 1 or found[0][0] >= ends[0]:
            continue
        inside = loop.body[found[0][0] : ends[0] + 1]
        if not all(one in stands for one in inside):
            continue
        merged = ast.copy_location(ast.Pass(), inside[0])
        merged.end_lineno = inside[-1].end_lineno
        lines = [line for one in inside for line in own_lines(base, one)]
        head = f"with {found[0][1]}.no_sync():"
        edited = replaced(base, merged, [head, *indented(lines)])
        yield fault("averaging_switched_off", base, edited, "DD505 DD404")


@operator
def remainder_dropped(base: Base) -> Making:
    """A window at the end of an epoch is not stepped."""
    for _, node in _windows(base):
        test = node.test
        if not isinstance(test, ast.BoolOp) or not isinstance(test.op, ast.Or):
            continue
        counted = [
            one
            for one in test.values
            if any(isinstance(part, ast.Mod) for part in ast.walk(one))
        ]
        if len(counted) == 1:
            edited = swapped(base, test, base.source(counted[0]))
            yield fault("remainder_dropped", base, edited, "DD502", severities=ADVICE)


def _scaling(base: Base) -> bool:
    return "GradScaler" in base.text


@operator
def clipped_while_scaled(base: Base) -> Making:
    """`unscale_` is left out before clipping."""
    for node in _methods(base, "unscale_", 2):
        following = base.after(node)
        if following is None or not _scaling(base):
            continue
        if any("clip_grad" in ast.unparse(one.func) for one in calls(following)):
            # What is missing before the clipping is told at the clipping.
            near = (following.lineno,)
            edited = replaced(base, node, ["pass"])
            yield fault("clipped_while_scaled", base, edited, "DD511", lines=near)


@operator
def scaler_not_updated(base: Base) -> Making:
    """`update` is left out."""
    for node in _methods(base, "update", 3):
        if _scaling(base) and "scaler" in base.source(node):
            edited = replaced(base, node, ["pass"])
            near = [
                one.lineno
                for one in _methods(base, "step", 3)
                if "scaler" in base.source(one)
            ]
            yield fault("scaler_not_updated", base, edited, "DD512", lines=near)


@operator
def step_past_scaler(base: Base) -> Making:
    """The optimizer steps without the scaler."""
    for node in _methods(base, "step", 3):
        call = call_of(node)
        assert call is not None
        if "scaler" in ast.unparse(call.func) and len(call.args) == 1:
            if "unscale_" in base.text:
                continue  # it would come to the same, but for overflow
            edited = replaced(base, node, [f"{base.source(call.args[0])}.step()"])
            yield fault("step_past_scaler", base, edited, "DD513")


@operator
def backward_past_scaler(base: Base) -> Making:
    """The loss is not scaled, and the scaler divides all the same."""
    for node in _methods(base, "backward", 3):
        call = call_of(node)
        assert call is not None
        assert isinstance(call.func, ast.Attribute)
        scaled = call.func.value
        if isinstance(scaled, ast.Call) and is_method(scaled, "scale"):
            loss = base.source(scaled.args[0])
            edited = replaced(base, node, [f"({loss}).backward()"])
            near = [
                one.lineno
                for name in ("unscale_", "step")
                for one in _methods(base, name, 3)
                if "scaler" in base.source(one)
            ]
            yield fault("backward_past_scaler", base, edited, "DD513", lines=near)
