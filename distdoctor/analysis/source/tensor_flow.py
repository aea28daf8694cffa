"""Follows a tensor on its way from the call that issued it to where it is read.

Only forward, from line to line as they are surely run, up to where somebody may wait.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from distdoctor.analysis.source.module_calls import forward_of, is_module
from distdoctor.analysis.source.possible_waits import Awaiting
from distdoctor.analysis.source.program import Function, Program, called
from distdoctor.analysis.source.rank_evaluation import RankReader
from distdoctor.analysis.source.tensor_usage import (
    TENSOR,
    Held,
    Usage,
    parts_of,
    path_of,
)
from distdoctor.model.events import Place

_DEEPEST = 4  # the user's functions that it is followed into, one by the other


class LostTrack(Exception):
    """From here on nobody knows: somebody may wait, or it is not surely run."""


class Returned(Exception):
    """The function ends here.

    Args:
        held: What it gives.
    """

    def __init__(self, held: Held) -> None:
        super().__init__()
        self.held = held


class Found(Exception):
    """It is read here.

    Args:
        place: The line.
    """

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place


class Settings:
    """What is known while a tensor is followed.

    Attributes:
        ranked: Whether a test of the rank was met, and read.

    Args:
        program: The user's files.
        reader: Reads it as the rank.
        awaiting: Tells where it may wait.
        dtype: Of the tensor.
    """

    def __init__(
        self, program: Program, reader: RankReader, awaiting: Awaiting, dtype: str
    ) -> None:
        self.program = program
        self.reader = reader
        self.awaiting = awaiting
        self.dtype = dtype
        self.ranked = False


class Walk:
    """The walk through one function.

    Args:
        function: That function.
        settings: What is known.
        waits_at: The line by which the wait is come to, if it is of this function.
        depth: Functions that were entered for the sake of the tensor.
    """

    def __init__(
        self, function: Function, settings: Settings, waits_at: int = 0, depth: int = 0
    ) -> None:
        self.function = function
        self.usage = Usage(settings.dtype, self._into)
        self.reaching: tuple[ast.Call, ...] = ()
        """Calls by which the tensor is issued: what waits in them waits for others."""
        self._settings = settings
        self._waits_at = waits_at
        self._depth = depth

    # --- blocks and statements ---

    def block(self, statements: Sequence[ast.stmt]) -> None:
        """Go through statements one by one.

        Args:
            statements: The statements of one block, in order.

        Raises:
            Found: One of them reads the tensor.
            Lost: It can be followed no further.
            Returned: The function ends.
        """
        for statement in statements:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        """Go through one statement; raises as `block` does.

        Args:
            node: The statement.
        """
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self.usage.forget(node.name)
            case ast.If(test=test):
                self._value(test)
                self._branch(node)
            case ast.For():
                self._loop(node)
            case ast.While(test=test):
                self._value(test)
                self._perhaps([*node.body, *node.orelse])
            case ast.With(items=items):
                self._with(items)
                self.block(node.body)
            case ast.Try():
                self.block(node.body)
                for handler in node.handlers:
                    self._perhaps(handler.body, raised=True)
                self.block([*node.orelse, *node.finalbody])
            case ast.Match(subject=subject, cases=cases):
                self._value(subject)
                for case in cases:
                    self._perhaps(case.body)
            case _:
                self._simple(node)

    def _simple(self, node: ast.stmt) -> None:
        self._look(node)
        match node:
            case ast.Return(value=value):
                held = self._read(value)
                raise Returned(held)
            case ast.Assign(targets=targets, value=value):
                held = self._read(value)
                for target in targets:
                    if isinstance(target, ast.Subscript):
                        self._read(target.slice)
                    self.usage.store(target, held)
            case ast.AnnAssign(target=target, value=value):
                self.usage.store(target, self._read(value))
            case ast.AugAssign(target=target, value=value):
                both = self.usage.of(target), self._read(value)
                if TENSOR in both:
                    self.usage.note(node.target)
                self._found()
                if both[0] is None:
                    self.usage.forget(path_of(target))
            case ast.Expr(value=value):
                self._read(value)
            case ast.Assert(test=test):
                self._read(test)
            case ast.Delete(targets=targets):
                for target in targets:
                    self.usage.forget(path_of(target))
            case ast.Raise() | ast.Break() | ast.Continue():
                raise LostTrack
        self._changed_by(node)

    def _branch(self, node: ast.If) -> None:
        truth = self._truth(node.test)
        if truth is None:
            self._perhaps(node.body)
            self._perhaps(node.orelse)
        else:
            self.block(node.body if truth else node.orelse)

    def _truth(self, test: ast.expr) -> bool | None:
        """Whether a test holds, at one time at least."""
        match test:
            case ast.BoolOp(op=ast.And(), values=values):
                every = [self._truth(value) for value in values]
                if False in every:
                    return False
                return None if None in every else True
            case ast.Compare(
                left=left,
                ops=[ast.Is() | ast.IsNot() as op],
                comparators=[ast.Constant(value=None)],
            ) if self.usage.of(left, sure=False) is not None:
                return isinstance(op, ast.IsNot)
        value = self._settings.reader.value(test, self.function)
        self._settings.ranked |= value.ranked
        if value.truth is None and not value.ranked and _is_periodic(test):
            return True
        return value.truth

    def _loop(self, node: ast.For) -> None:
        self._look(node.iter)
        item = self.usage.items_of(node.iter)
        self._found()
        if item is None:
            self._perhaps([*node.body, *node.orelse])
            return
        self.usage.store(node.target, item)
        self.block(node.body)  # of the first round, which there is
        self._perhaps([*node.body, *node.orelse])

    def _with(self, items: Sequence[ast.withitem]) -> None:
        for item in items:
            held = self._value(item.context_expr)
            if item.optional_vars is not None:
                self.usage.store(item.optional_vars, held)

    def _perhaps(self, block: Sequence[ast.stmt], *, raised: bool = False) -> None:
        """Pass by statements that may be run, or not."""
        leaves = ast.Return | ast.Break | ast.Continue
        for statement in block:
            if self._is_wait_at(statement) or self._settings.awaiting.may(statement):
                raise LostTrack
            for part in parts_of(statement):
                if isinstance(part, leaves) and not raised:
                    raise LostTrack
                if isinstance(part, ast.Name | ast.Attribute) and not isinstance(
                    part.ctx, ast.Load
                ):
                    self.usage.forget(path_of(part))
            self._changed_by(statement)

    # --- expressions ---

    def _value(self, node: ast.expr) -> Held:
        """What the head of a statement gives."""
        self._look(node)
        held = self._read(node)
        self._changed_by(node)
        return held

    def _read(self, node: ast.expr | None) -> Held:
        held = self.usage.of(node)
        self._found()
        return held

    def _found(self) -> None:
        node = self.usage.read
        if node is not None:
            function = self.function
            raise Found(Place(function.file, node.lineno, function.name))

    def _look(self, node: ast.AST) -> None:
        """Nobody may wait in what comes next."""
        if self._is_wait_at(node) or self._settings.awaiting.may(node, self.reaching):
            raise LostTrack

    def _is_wait_at(self, node: ast.AST) -> bool:
        reaches = any(part in self.reaching for part in parts_of(node))
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) or 0
        return bool(self._waits_at) and not reaches and first <= self._waits_at <= last

    def _changed_by(self, node: ast.AST) -> None:
        """Forget attributes that a function gives anew which is called here."""
        for path in [*self.usage.held]:
            attribute = path.rpartition(".")[2] if "." in path else ""
            if (
                attribute
                and self._settings.awaiting.changes(node, attribute)
                and not any(part in self.reaching for part in parts_of(node))
            ):
                self.usage.forget(path)

    # --- calls of the user's ---

    def _into(
        self, call: ast.Call, given: Sequence[Held], words: Mapping[str, Held]
    ) -> Held:
        """Follow tensors into a function of the user's, or a module."""
        if not any([*given, *words.values()]):
            return None
        program = self._settings.program
        if is_module(program, self.function, call.func):
            self.usage.note(call)
            return None
        function = self._callee(call)
        if function is None or self._depth >= _DEEPEST or is_elsewhere(function):
            return None
        names = function.parameters[1 if function.is_method else 0 :]
        inner = Walk(function, self._settings, depth=self._depth + 1)
        pairs = [*zip(names, given, strict=False), *words.items()]
        inner.usage.held.update({n: held for n, held in pairs if held is not None})
        try:
            inner.block(function.node.body)
        except Returned as returned:
            return returned.held
        except (Found, LostTrack):
            if self.usage.is_sure:
                raise
        return None

    def _callee(self, call: ast.Call) -> Function | None:
        """The function of the user's that is called, if there can be only one."""
        if any(isinstance(one, ast.Starred) for one in call.args):
            return None
        name = called(call)
        program = self._settings.program
        forward = forward_of(program, self.function, call.func)
        if forward is not None:
            return forward
        named = program.named(name)
        if len(named) != 1 or name in _OF_CONTAINERS:
            return None
        by_attribute = isinstance(call.func, ast.Attribute)
        return named[0] if named[0].is_method is by_attribute else None


_OF_CONTAINERS = frozenset(
    {*dir(dict), *dir(list), *dir(set), *dir(str), "put", "submit", "send"}
)
"""Methods that may be those of something else than the user's."""


def _is_periodic(test: ast.expr) -> bool:
    """Whether a test holds now and then: `step % 100 == 0`."""
    match test:
        case ast.Compare(
            left=ast.BinOp(op=ast.Mod()),
            ops=[ast.Eq()],
            comparators=[ast.Constant(value=int())],
        ):
            return True
        case ast.UnaryOp(op=ast.Not(), operand=ast.BinOp(op=ast.Mod())):
            return True
    return False


def is_elsewhere(function: Function) -> bool:
    """Whether a call of a function does not run its lines there and then.

    Args:
        function: A function of the program.

    Returns:
        Whether it is asynchronous or a generator.
    """
    return isinstance(function.node, ast.AsyncFunctionDef) or any(
        isinstance(part, ast.Yield | ast.YieldFrom)
        for statement in function.node.body
        for part in parts_of(statement)
    )
