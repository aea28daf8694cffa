"""Whether a model computes with a buffer of its own when it is evaluated.

A layer may keep numbers for the log alone, or for training alone, and a queue of what
it has seen. Gone through is what `forward` functions come to outside of training.
Names tell which buffer is meant: two of one name are not told apart.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from distdoctor.analysis.source.conditions import Condition, conditions
from distdoctor.analysis.source.program import (
    Function,
    Program,
    called,
    own_nodes,
)
from distdoctor.analysis.source.rank_variation import is_property

_MOST_FUNCTIONS = 400  # that are gone through


class Buffers:
    """The buffers of a program's modules.

    Args:
        program: The user's files.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        calls = [use.node for use in program.calls.get("register_buffer", ())]
        self._registered = {
            str(node.args[0].value)
            for node in calls
            if isinstance(node, ast.Call) and node.args
            if isinstance(node.args[0], ast.Constant)
        } | {
            name
            for name, uses in program.stored.items()
            for use in uses
            if isinstance(use.node, ast.Call) and called(use.node) == "Buffer"
        }
        self._computing: set[str] | None = None

    def are_computed_with(self, name: str) -> bool | None:
        """Whether an evaluation may read a buffer, and it is kept as a whole.

        Args:
            name: Without the modules that it is in.

        Returns:
            None: it is registered in none of the files.
        """
        if name not in self._registered:
            return None
        if self._computing is None:
            self._computing = self._read_in_evaluation()
        return name in self._computing and not self._is_filled_in_parts(name)

    def _is_filled_in_parts(self, name: str) -> bool:
        """Whether only parts of it are ever written, as of a queue or a cache."""
        parts = whole = False
        for function in self._program.functions:
            for node in own_nodes(function.node):
                for target in _written(node):
                    if isinstance(target, ast.Subscript):
                        here = _buffer_of(target.value) == name
                        parts |= here and not _is_everything(target.slice)
                        whole |= here and _is_everything(target.slice)
                    elif _buffer_of(target) == name:
                        whole |= function.simple_name != "__init__"
        return parts and not whole

    def _read_in_evaluation(self) -> set[str]:
        found: set[str] = set()
        waiting = [*self._program.named("forward"), *self._program.named("__call__")]
        known = set(waiting)
        for function in waiting:  # which grows
            for node in _computed(function, self._registered):
                names: list[str] = []
                match node:
                    case ast.Call():
                        names.append(called(node))
                    case ast.Attribute(attr=attr):
                        found.add(attr)
                        if any(map(is_property, self._program.named(attr))):
                            names.append(attr)
                for name in names:
                    for other in self._program.named(name):
                        if other not in known and len(known) < _MOST_FUNCTIONS:
                            known.add(other)
                            waiting.append(other)
        return found


def _computed(function: Function, buffers: set[str]) -> Iterator[ast.expr]:
    """Expressions of a function that count for its result in an evaluation."""
    if not isinstance(function.node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    statements = [
        node
        for node in own_nodes(function.node)
        if isinstance(node, ast.stmt) and _may_come_to(function, node)
    ]
    updates = _updates(statements, buffers)
    for one in statements:
        for part in _own_expressions(one):
            for node in _live(part):
                # What it keeps up to date, it calls for all the same.
                if one not in updates or isinstance(node, ast.Call):
                    yield node


def _may_come_to(function: Function, statement: ast.stmt) -> bool:
    inside = set(ast.walk(statement))  # `a if test else b` parts only itself
    return all(
        _may_hold(condition)
        for condition in conditions(function, statement.lineno)
        if not any(test in inside for test, _ in condition.tests)
    )


def _updates(statements: list[ast.stmt], buffers: set[str]) -> set[ast.stmt]:
    """Statements that write into buffers, and those that only make what is written."""
    found = {
        one
        for one in statements
        if any(_buffer_of(target) in buffers for target in _written(one))
    }
    uses: dict[str, set[ast.stmt]] = {}
    for one in statements:
        for part in _own_expressions(one):
            for node in ast.walk(part):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                    uses.setdefault(node.id, set()).add(one)
    more = True
    while more:
        more = False
        for one in statements:
            match one:
                case ast.Assign(targets=targets) if one not in found:
                    names = [
                        part.id
                        for target in targets
                        for part in ast.walk(target)
                        if isinstance(part, ast.Name)
                    ]
                    plain = all(isinstance(t, ast.Name | ast.Tuple) for t in targets)
                    using = [uses.get(name, set()) for name in names]
                    if plain and any(using) and all(one <= found for one in using):
                        found.add(one)
                        more = True
    return found


def _written(node: ast.AST) -> Iterator[ast.expr]:
    """What a statement writes into: by `=`, `+=`, or a method as `copy_`."""
    match node:
        case ast.Assign(targets=targets):
            for target in targets:
                yield from target.elts if isinstance(target, ast.Tuple) else [target]
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            yield target
        case ast.Expr(value=ast.Call(func=ast.Attribute() as method)):
            while method.attr.endswith("_"):
                match method.value:
                    case ast.Call(func=ast.Attribute() as inner):
                        method = inner
                    case target:
                        yield target
                        return


def _buffer_of(target: ast.expr) -> str:
    """The attribute that is written into, whole or in parts; "" if it is none."""
    while isinstance(target, ast.Subscript) or (
        isinstance(target, ast.Attribute) and target.attr == "data"
    ):
        target = target.value
    return target.attr if isinstance(target, ast.Attribute) else ""


def _is_everything(index: ast.expr) -> bool:
    """Whether it is that of `x[:]` or `x[...]`."""
    match index:
        case ast.Slice(lower=None, upper=None, step=None):
            return True
        case ast.Constant(value=value):
            return value is Ellipsis
    return False


def _own_expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """Those of a statement, without those of statements inside."""
    for _, value in ast.iter_fields(statement):
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, ast.expr):
                yield one
            elif isinstance(one, ast.withitem):
                yield one.context_expr


def _live(node: ast.expr) -> Iterator[ast.expr]:
    """The parts of an expression that are computed in an evaluation."""
    match node:
        case ast.IfExp(test=test, body=body, orelse=orelse):
            truth = _truth(test)
            yield from _live(test)
            if truth is not False:
                yield from _live(body)
            if truth is not True:
                yield from _live(orelse)
            return
        case ast.Call(func=ast.Attribute(value=value)):
            yield node
            yield from _live(value)  # `x.mean(0)` is no attribute `mean`
            inner: list[ast.AST] = [*node.args, *(one.value for one in node.keywords)]
        case ast.Attribute(ctx=ast.Load()):
            yield node
            inner = [node.value]
        case _:
            if isinstance(node, ast.Call):
                yield node
            inner = list(ast.iter_child_nodes(node))
    for part in inner:
        if isinstance(part, ast.expr):
            yield from _live(part)
        elif isinstance(part, ast.comprehension):
            for one in (part.iter, *part.ifs):
                yield from _live(one)


def _may_hold(condition: Condition) -> bool:
    """Whether a condition may let an evaluation through."""
    found = [_truth(test) for test, _ in condition.tests]
    wanted = [one for _, one in condition.tests]
    fails = any(
        truth is not None and truth is not holds
        for truth, holds in zip(found, wanted, strict=True)
    )
    if fails:
        return condition.negated or condition.opaque
    if None in found or not found or condition.opaque:
        return True
    return not condition.negated


def _truth(test: ast.expr) -> bool | None:
    """What a test is in an evaluation; None: it is not about that."""
    match test:
        case ast.Attribute(attr="training"):
            return False
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            truth = _truth(inner)
            return None if truth is None else not truth
        case ast.BoolOp(op=op, values=values):
            decisive = isinstance(op, ast.Or)
            found = [_truth(one) for one in values]
            if decisive in found:
                return decisive
            return None if None in found else not decisive
    return None
