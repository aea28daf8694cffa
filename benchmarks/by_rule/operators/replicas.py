"""Faults by which replicas of a model part."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from by_rule.asking import (
    OPTIMIZERS,
    call_of,
    calls,
    has,
    is_method,
    keyword,
    name_of,
    wrapped_names,
)
from by_rule.bases import Base, appended, indented, own_lines, replaced, swapped
from by_rule.faulted import ADVICE, Making, fault, operator
from by_rule.operators.calls import lone, only, some_rank
from by_rule.operators.course import training_loops

PARTED = "DD402 DD414"

_SETS_RATES = re.compile(r"OneCycleLR|CyclicLR|\[.lr.\]")
"""Where the rate that an optimizer was made with is overwritten."""


_FORGIVES = re.compile(
    r"Adam|Adagrad|RMSprop|Lars|LARS|Lamb|LAMB|clip_grad_norm|trust_ratio"
)
"""What makes steps that are the same for gradients of any length."""


def _optimizers(base: Base) -> Iterator[tuple[ast.Assign, ast.Call, str]]:
    """Statements that make an optimizer of a wrapped model, its call, the model."""
    for node in base.statements():
        if not isinstance(node, ast.Assign) or not base.runs(node):
            continue
        call = node.value
        if not isinstance(call, ast.Call) or name_of(call) not in OPTIMIZERS:
            continue
        first = call.args[0] if call.args else None
        if first is None or not is_method(first, "parameters"):
            continue
        assert isinstance(first, ast.Call)
        assert isinstance(first.func, ast.Attribute)
        model = ast.unparse(first.func.value)
        wrap = wrapped_names(base.tree).get(model)
        # A name of another function's is another model, unless it is an attribute.
        if wrap is not None and ("." in model or _function(base, wrap, node)):
            yield node, call, model


def _function(base: Base, *nodes: ast.stmt) -> bool:
    """Whether statements stand in one function."""
    found = {
        next(
            (one for one in base.above(node) if isinstance(one, ast.FunctionDef)), None
        )
        for node in nodes
    }
    return len(found) == 1


def _steps(base: Base) -> Iterator[ast.stmt]:
    """Steps of an optimizer of a wrapped model, made by all ranks, in a loop."""
    names = {ast.unparse(node.targets[0]) for node, _, _ in _optimizers(base)}
    for node in base.statements():
        call = call_of(node)
        if call is None or not is_method(call, "step") or not base.runs(node, 3):
            continue
        assert isinstance(call.func, ast.Attribute)
        if ast.unparse(call.func.value) in names:
            yield node


@operator
def unwrapped_forward(base: Base) -> Making:
    """The wrapped model is gone around: nothing is averaged."""
    for loop in training_loops(base):
        forwards = [
            call
            for call in calls(loop)
            if isinstance(call.func, (ast.Name, ast.Attribute))
            and ast.unparse(call.func) in wrapped_names(base.tree)
        ]
        # Who switches averaging off does it by hand, or never means to.
        by_hand = re.search(r"no_sync|require_backward|\.grad\b", base.text)
        if len(forwards) == 1 and not by_hand:
            name = forwards[0].func
            edited = swapped(base, name, f"{base.source(name)}.module")
            yield fault("unwrapped_forward", base, edited, "DD404")


@operator
def late_unfreeze(base: Base) -> Making:
    """A parameter is frozen while the model is wrapped, and trained later."""
    for name, node in wrapped_names(base.tree).items():
        call = node.value
        assert isinstance(call, ast.Call)
        if node not in set(base.statements()) or not base.runs(node) or not call.args:
            continue
        if "requires_grad" in base.text or not isinstance(call.args[0], ast.Name):
            continue
        inner = base.source(call.args[0])
        frozen = f"next({inner}.parameters()).requires_grad_(False)"
        freed = f"next({name}.parameters()).requires_grad_(True)"
        edited = replaced(base, node, [frozen, *own_lines(base, node), freed])
        yield fault("late_unfreeze", base, edited, "DD406")


@operator
def optimizer_misses_some(base: Base) -> Making:
    """The optimizer gets all parameters but the first."""
    for _, call, _ in _optimizers(base):
        first = call.args[0]
        edited = swapped(base, first, f"list({base.source(first)})[1:]")
        # Some are left out on purpose: advice will do.
        name = "optimizer_misses_some"
        yield fault(name, base, edited, "DD407", severities=ADVICE)


@operator
def other_rate_on_one_rank(base: Base) -> Making:
    """Rank k has twice the learning rate."""
    if _SETS_RATES.search(base.text):
        return
    for node, call, _ in _optimizers(base):
        rate = keyword(call, "lr")
        if rate is None or not base.get_rank:
            continue
        rank = some_rank(base, node)
        value = f"({base.source(rate)}) * (1 + ({base.get_rank} == {rank}))"
        edited = swapped(base, rate, value)
        yield fault("other_rate_on_one_rank", base, edited, "DD412", [{rank}])


@operator
def step_left_out_by_one_rank(base: Base) -> Making:
    """Rank k does not step."""
    for node in _steps(base) if base.get_rank else ():
        rank = some_rank(base, node)
        head = f"if {base.get_rank} != {rank}:"
        edited = replaced(base, node, [head, *indented(own_lines(base, node))])
        codes = f"{PARTED} DD417"
        if base.meets(node):  # the step communicates, and the others wait in it
            codes = "DD108 DD212 DD201"
        name = "step_left_out_by_one_rank"
        yield fault(name, base, edited, codes, lone(base, rank))


@operator
def weights_changed_on_one_rank(base: Base) -> Making:
    """Rank k shrinks its weights after each step."""
    models = {
        ast.unparse(node.targets[0]): model for node, _, model in _optimizers(base)
    }
    for node in _steps(base) if base.get_rank else ():
        call = call_of(node)
        assert call is not None
        assert isinstance(call.func, ast.Attribute)
        model = models[ast.unparse(call.func.value)]
        rank = some_rank(base, node)
        edited = appended(
            base,
            node,
            [
                only(base, rank),
                f"    for weight in {model}.parameters():",
                "        weight.data.mul_(0.99)",
            ],
        )
        yield fault("weights_changed_on_one_rank", base, edited, PARTED, [{rank}])


@operator
def state_loaded_by_one_rank(base: Base) -> Making:
    """Rank 0 alone loads an optimizer's state."""
    names = {ast.unparse(node.targets[0]) for node, _, _ in _optimizers(base)}
    for node in base.statements() if base.get_rank else ():
        call = call_of(node)
        if call is None or not is_method(call, "load_state_dict"):
            continue
        assert isinstance(call.func, ast.Attribute)
        if ast.unparse(call.func.value) not in names or not base.runs(node):
            continue
        edited = replaced(base, node, [only(base, 0), *indented(own_lines(base, node))])
        others = set(range(1, base.ranks))
        codes = "DD408 DD410 DD411 DD402"
        yield fault("state_loaded_by_one_rank", base, edited, codes, [{0}, others])


@operator
def gradients_not_divided(base: Base) -> Making:
    """Gradients that are summed by hand are not divided."""
    if _FORGIVES.search(base.text):
        return
    for node in base.statements():
        text = base.source(node)
        if ".grad" not in text or not base.runs(node):
            continue
        if not re.search(r"world|ranks|size", text):
            continue  # by something else than the number of ranks
        divided = isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div)
        call = call_of(node)
        if divided or (call is not None and is_method(call, "div_")):
            edited = replaced(base, node, ["pass"])
            yield fault("gradients_not_divided", base, edited, "DD405")


@operator
def seed_of_each_rank(base: Base) -> Making:
    """Each rank seeds the making of a model that nobody broadcasts by its rank."""
    if re.search("broadcast|FSDP|DDP|DataParallel", base.text):
        return
    if "fully_shard" in base.text or not base.get_rank:
        return
    found = [
        (node, call)
        for node in base.statements()
        if (call := call_of(node)) is not None and is_method(call, "manual_seed")
    ]
    averaged = any(
        has(node, "all_reduce") and ".grad" in base.text
        for node in ast.walk(base.tree)
        if isinstance(node, ast.FunctionDef)
    )
    for node, call in found[:1]:
        if averaged and call.args and base.runs(node):
            seed = call.args[0]
            if "rank" in base.source(seed):
                continue
            text = f"{base.source(seed)} + {base.get_rank}"
            edited = swapped(base, seed, text)
            yield fault(
                "seed_of_each_rank",
                base,
                edited,
                "DD401",
                [set(range(base.ranks)), set(range(1, base.ranks)), set()],
            )


@operator
def checkpoint_by_all(base: Base) -> Making:
    """All ranks write what rank 0 alone was to write."""
    for node in base.statements():
        if not isinstance(node, ast.If) or node.orelse or len(node.body) != 1:
            continue
        test = ast.unparse(node.test)
        body = node.body[0]
        call = call_of(body)
        if call is None or ast.unparse(call.func) != "torch.save":
            continue
        if test.replace(" ", "").endswith("==0") and "rank" in test:
            name = ast.unparse(call.args[1]) if len(call.args) > 1 else ""
            if "rank" in name or not base.count(body, 0):
                continue
            edited = replaced(base, node, own_lines(base, body))
            yield fault("checkpoint_by_all", base, edited, "DD409 DD312")
