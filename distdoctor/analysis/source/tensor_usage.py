"""What an expression does with tensors on their way: it names them, or reads them.

Only what surely computes with the values is a reading. Shapes, views, lists and calls
of what nobody knows are none.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

from distdoctor.analysis.source.program import called
from distdoctor.analysis.source.tensor_names import (
    ALIASES,
    DTYPES,
    EATERS,
    NO_COMPUTING,
    NOT_READING,
    OF_LISTS,
    OF_TORCH,
    PARTS,
    READING,
    READING_BUILTINS,
    SAME_LISTS,
    VIEWS,
    WITH_ARGUMENT,
)

TENSOR: Literal["tensor"] = "tensor"
SEVERAL: Literal["several"] = "several"
"""A list of such tensors."""

Held = Literal["tensor", "several"] | tuple["Held | None", ...] | None
"""What of tensors on their way an expression gives; None: nothing, or nobody knows."""

_NOT_COMPUTING = (ast.Is, ast.IsNot, ast.In, ast.NotIn)
"""Comparisons that do not compute with the values."""

Into = Callable[[ast.Call, Sequence[Held], Mapping[str, Held]], Held]
"""Follows tensors into what a call of the user's does; see `Usage`."""


def path_of(node: ast.expr) -> str:
    """A name or its attributes, as in `self.pool.room`; "" if it is none.

    Args:
        node: The expression.

    Returns:
        The names, joined by dots.
    """
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=base, attr=attr):
            before = path_of(base)
            return f"{before}.{attr}" if before else ""
    return ""


class Usage:
    """Reads expressions, in the order in which they are computed.

    Attributes:
        held: Names, and attributes of names, that are tensors on their way.
        results: Likewise, calls of which it is known what they give.
        read: The first expression that reads such a tensor.

    Args:
        dtype: Of the tensors; "": nobody knows.
        into: Is asked for calls of the user's own functions and modules.
    """

    def __init__(self, dtype: str, into: Into) -> None:
        self.held: dict[str, Held] = {}
        self.results: dict[ast.Call, Held] = {}
        self.read: ast.expr | None = None
        self._dtype = dtype
        self._into = into
        self._unsure = 0

    @property
    def is_sure(self) -> bool:
        """Whether what is being looked at is surely computed."""
        return not self._unsure

    def of(self, node: ast.expr | None, *, sure: bool = True) -> Held:
        """What an expression gives, with its readings noted.

        Args:
            node: The expression.
            sure: Whether it is surely computed; else its readings count for nothing.

        Returns:
            What it holds of tensors on their way; None: nothing.
        """
        if node is None:
            return None
        if sure:
            return self._of(node)
        with self.unsure():
            return self._of(node)

    @contextmanager
    def unsure(self) -> Iterator[None]:
        """What is read within is not surely read, or not surely early.

        Yields:
            Nothing; the caller reads expressions meanwhile.
        """
        self._unsure += 1
        try:
            yield
        finally:
            self._unsure -= 1

    def items_of(self, node: ast.expr) -> Held:
        """What a loop over an expression gives, one by one.

        Args:
            node: What the loop goes through.

        Returns:
            What one item holds of tensors on their way.
        """
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            match node.func.id:
                case "zip":
                    return _several(tuple(map(self.items_of, node.args)))
                case "enumerate" if node.args:
                    return _several((None, self.items_of(node.args[0])))
        held = self.of(node)
        if isinstance(held, tuple):
            return TENSOR if TENSOR in held else None
        return TENSOR if held else None

    def store(self, target: ast.expr, held: Held) -> None:
        """Give a value to what stands to the left of an assignment.

        Args:
            target: A name, an attribute, or several of them.
            held: What the value holds of tensors on their way.
        """
        if isinstance(target, ast.Tuple | ast.List):
            several = held if isinstance(held, tuple) else ()
            fits = len(several) == len(target.elts)
            for n, part in enumerate(target.elts):
                inner: Held = TENSOR if held == SEVERAL else None
                self.store(part, several[n] if fits else inner)
            return
        if isinstance(target, ast.Starred):
            self.store(target.value, None)
        elif path := path_of(target):
            self.forget(path)
            if held is not None:
                self.held[path] = held

    def forget(self, path: str) -> None:
        """A name is something else from here on.

        Args:
            path: The name, or its attributes, as of `path_of`.
        """
        whole = path.removesuffix(".data")
        for known in list(self.held):
            if known in {path, whole} or known.startswith(f"{path}."):
                del self.held[known]

    def note(self, node: ast.expr) -> None:
        """An expression reads the values.

        Args:
            node: The expression; only the first that surely reads is kept.
        """
        if self.read is None and not self._unsure:
            self.read = node

    def _of(self, node: ast.expr) -> Held:
        path = path_of(node)
        if path and path in self.held:
            return self.held[path]
        match node:
            case ast.Attribute(value=base, attr=attr):
                same = self.of(base) == TENSOR and attr in ALIASES
                return TENSOR if same else None
            case ast.Subscript():
                return self._item(node)
            case ast.Call():
                return self._call(node)
            case ast.BinOp(left=left, op=op, right=right):
                values = [self.of(left), self.of(right)]
                self._note_if(TENSOR in values, node)
                return (
                    SEVERAL if isinstance(op, ast.Add) and SEVERAL in values else None
                )
            case ast.UnaryOp(op=op, operand=operand):
                computes = self.of(operand) == TENSOR and not isinstance(op, ast.Not)
                self._note_if(computes, node)
            case ast.Compare(left=left, ops=ops, comparators=others):
                values = [self.of(left), *map(self.of, others)]
                computes = not any(isinstance(one, _NOT_COMPUTING) for one in ops)
                self._note_if(computes and TENSOR in values, node)
            case ast.BoolOp(values=[first, *rest]):
                self.of(first)
                for part in rest:
                    self.of(part, sure=False)
            case ast.FormattedValue(value=value):
                self._note_if(self.of(value) is not None, node)
            case ast.Lambda() | ast.GeneratorExp() | ast.DictComp():
                pass
            case _:
                return self._passed_on(node)
        return None

    def _passed_on(self, node: ast.expr) -> Held:
        """What an expression gives that computes nothing, and hands on its parts."""
        match node:
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self.of(test)
                both = self.of(body, sure=False), self.of(orelse, sure=False)
                return both[0] if both[0] == both[1] else None
            case ast.NamedExpr(target=target, value=value):
                held = self.of(value)
                self.store(target, held)
                return held
            case ast.Tuple(elts=parts):
                return _several(tuple(map(self.of, parts)))
            case ast.List(elts=parts) | ast.Set(elts=parts):
                return SEVERAL if TENSOR in [self.of(part) for part in parts] else None
            case (
                ast.ListComp(elt=elt, generators=parts)
                | ast.SetComp(elt=elt, generators=parts)
            ):
                return self._each(elt, parts)
            case ast.Starred(value=value):
                return self.of(value)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.of(child)
        return None

    def _note_if(self, reads: bool, node: ast.expr) -> None:
        if reads:
            self.note(node)

    def _item(self, node: ast.Subscript) -> Held:
        held = self.of(node.value)
        if self.of(node.slice) == TENSOR:
            self.note(node)
        if held == TENSOR:
            return TENSOR  # a view, unless it is picked by a mask
        if isinstance(node.slice, ast.Slice):
            return held
        if held == SEVERAL:
            return TENSOR
        match node.slice:
            case ast.Constant(value=int(at)) if isinstance(held, tuple):
                return held[at] if -len(held) <= at < len(held) else None
        return None

    def _each(self, elt: ast.expr, parts: list[ast.comprehension]) -> Held:
        """What a comprehension gives; its first round is made if there is an item."""
        item = self.items_of(parts[0].iter)
        before = dict(self.held)
        self.store(parts[0].target, item)
        plain = item is not None and len(parts) == 1 and not parts[0].ifs
        held = self.of(elt, sure=plain)
        self.held = before
        return SEVERAL if held == TENSOR and plain else None

    def _call(self, node: ast.Call) -> Held:
        if node in self.results:
            return self.results[node]
        name = called(node)
        base: Held = None
        if isinstance(node.func, ast.Attribute):
            base = self.of(node.func.value)
        given = [self._argument(part, name) for part in node.args]
        words = {
            one.arg or "": self._argument(one.value, name) for one in node.keywords
        }
        if base == TENSOR:
            return self._method(node, name)
        if base is not None:
            return base if name == "copy" else None
        every = [*given, *words.values()]
        if isinstance(node.func, ast.Attribute):
            root, _, inner = path_of(node.func).partition(".")
            if root in OF_TORCH:
                return self._of_torch(node, name, inner, every)
            if name in {"append", "extend", "insert"} and any(every):
                self.store(node.func.value, SEVERAL)
                return None
        elif isinstance(node.func, ast.Name):
            if name in SAME_LISTS and given:
                return given[0] if given[0] != TENSOR else None
            if self._reads_builtin(name, every):
                self.note(node)
                return None
        held = self._into(node, given, words)
        if held is None and name in WITH_ARGUMENT and TENSOR in given:
            self.note(node)
        return held

    def _argument(self, node: ast.expr, taker: str) -> Held:
        if isinstance(node, ast.GeneratorExp) and taker in EATERS:
            return self._each(node.elt, node.generators)
        return self.of(node)

    def _method(self, node: ast.Call, name: str) -> Held:
        wanted = DTYPES.get(name, "")
        if wanted and self._dtype and wanted != self._dtype:
            self.note(node)
            return None
        if name in VIEWS:
            return TENSOR
        if name in PARTS:
            return SEVERAL
        if name in READING:
            self.note(node)
        elif name in {"set_", "resize_", "zero_", "fill_", "copy_"}:
            assert isinstance(node.func, ast.Attribute)
            self.forget(path_of(node.func.value))  # it is something else, or written
        return None

    def _of_torch(
        self, node: ast.Call, name: str, inner: str, every: Sequence[Held]
    ) -> Held:
        modules = inner.split(".")[:-1]
        if not any(every) or name[:1].isupper() or name in NOT_READING:
            return None
        if not NO_COMPUTING.isdisjoint(modules):
            return None
        if name in VIEWS | PARTS:
            return TENSOR if name in VIEWS else SEVERAL
        if any(one is not None for one in every):
            self.note(node)
        return None

    def _reads_builtin(self, name: str, every: Sequence[Held]) -> bool:
        reads = name in READING_BUILTINS or name in OF_LISTS
        return reads and any(one is not None for one in every)


def _several(parts: tuple[Held, ...]) -> Held:
    return parts if any(part is not None for part in parts) else None


def parts_of(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all in it that is computed with it: no functions defined inside.

    Args:
        node: The node.

    Yields:
        The nodes, from outside to inside.
    """
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(
            child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
        ):
            yield from parts_of(child)
