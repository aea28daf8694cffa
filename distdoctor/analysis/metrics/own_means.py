"""Whether the source gives a sum over ranks the mean of a rank's own losses.

That is certain only where the function that makes the sum also makes the mean, of
losses that torch averages itself, and nothing else is done to it in between.
"""

from __future__ import annotations

import ast

from distdoctor.analysis.metrics.averaged_averages import REDUCING
from distdoctor.analysis.source.program import (
    Function,
    Program,
    all_parameters,
    called,
    own_nodes,
)
from distdoctor.model.events import Place

_LOSSES = frozenset(
    {"cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"}
    | {"binary_cross_entropy", "binary_cross_entropy_with_logits", "poisson_nll_loss"}
)
"""Functions that make a mean, unless they are asked for something else.

Source: torch 2.13, nn/functional.py.
"""

_MODULES = frozenset(
    {"CrossEntropyLoss", "NLLLoss", "MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss"}
    | {"BCELoss", "BCEWithLogitsLoss", "PoissonNLLLoss"}
)
"""Likewise, of torch's modules."""

_OTHERWISE = frozenset({"reduction", "reduce", "size_average", None})
"""Arguments by which a loss may be no mean; None: `**options`."""

_WRAPPING = frozenset({"tensor", "as_tensor", "stack", "cat", "Tensor", "float"})

_CONVERTING = frozenset(
    {"to", "float", "double", "cuda", "cpu", "detach", "clone", "item"}
)

_MEANS = frozenset({"mean", "fmean"})

_AROUND = frozenset({"enumerate", "tqdm"})

_DEEPEST = 12  # expressions that make each other


def gives_own_mean(program: Program, place: Place) -> bool:
    """Whether a line sums up the means of what each rank has found itself.

    Args:
        program: The user's files.
        place: The line.

    Returns:
        Whether it surely does, as far as names tell.
    """
    function = program.at(place.file, place.line)
    if function is None:
        return False
    given = [
        value
        for node in own_nodes(function.node)
        if isinstance(node, ast.Call)
        and called(node) in REDUCING
        and node.lineno <= place.line <= (node.end_lineno or 0)
        for value in [*node.args[:1], *_tensor_of(node)]
    ]
    made = _Made(program, function, place.line)
    return len(given) == 1 and made.is_mean(given[0], 0) and made.is_all()


def _tensor_of(call: ast.Call) -> list[ast.expr]:
    return [one.value for one in call.keywords if one.arg == "tensor"]


class _Made:
    """What a function makes of losses.

    Args:
        program: That it is of.
        function: Whose lines are followed.
        line: Up to which.
    """

    def __init__(self, program: Program, function: Function, line: int) -> None:
        self._program, self._function, self._line = program, function, line
        self._followed: set[str] = set()  # variables
        self._read: set[ast.AST] = set()  # where they are read, as far as is known

    def is_all(self) -> bool:
        """Whether nothing else reads, and may change, the variables before the line."""
        return all(
            node in self._read
            for node in own_nodes(self._function.node)
            if isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Load)
            and node.id in self._followed
            and node.lineno < self._line
        )

    def is_mean(self, value: ast.expr, depth: int) -> bool:
        """Whether it is the mean of this rank's losses."""
        if depth > _DEEPEST:
            return False
        match value:
            case ast.Name():
                made = self._assigned(value)
                return len(made) == 1 and self.is_mean(made[0], depth + 1)
            case ast.BinOp(
                left=ast.Call(func=ast.Name(id="sum"), args=[some]),
                op=ast.Div(),
                right=ast.Call(func=ast.Name(id="len"), args=[counted]),
            ):
                same = ast.unparse(some) == ast.unparse(counted)
                self._read.add(counted)
                return same and self._are_losses(some, depth + 1)
            case ast.BinOp(
                left=total,
                op=ast.Div(),
                right=ast.Call(func=ast.Name(id="len"), args=[loader]),
            ):
                return self._is_total(_bare(total), ast.unparse(loader), depth + 1)
            case ast.Call(func=ast.Attribute(value=owner, attr="mean"), args=[]):
                return not value.keywords and self._are_losses(owner, depth + 1)
            case ast.Call(args=[some]) if called(value) in _MEANS:
                own = self._program.named(called(value)) or value.keywords
                return not own and self._are_losses(some, depth + 1)
        inner = _bare(value)
        return inner is not value and self.is_mean(inner, depth + 1)

    def _are_losses(self, some: ast.expr, depth: int) -> bool:
        """Whether it is the losses of several batches."""
        if depth > _DEEPEST:
            return False
        match some:
            case ast.Name(id=name):
                made, added = self._assigned(some), self._appended(name)
                if len(made) != 1:
                    return False
                if isinstance(made[0], ast.List) and not made[0].elts and added:
                    return all(self._is_loss(one, depth + 1) for one in added)
                return not added and self._are_losses(made[0], depth + 1)
            case ast.ListComp(elt=one, generators=[_]):
                return self._is_loss(one, depth + 1)
        inner = _bare(some)
        return inner is not some and self._are_losses(inner, depth + 1)

    def _is_total(self, total: ast.expr, loader: str, depth: int) -> bool:
        """Whether losses are added up to it, one in each round over a loader."""
        if not isinstance(total, ast.Name):
            return False
        self._read.add(total)
        added = [
            each.value
            for node in own_nodes(self._function.node)
            if isinstance(node, ast.For) and _iterated(node.iter) == loader
            for each in node.body
            if isinstance(each, ast.AugAssign)
            and isinstance(each.op, ast.Add)
            and ast.unparse(each.target) == total.id
        ]
        # One assignment makes the zero, and the other adds to it.
        made = self._assigned(total)
        zero = [one for one in made if ast.unparse(one) in {"0", "0.0"}]
        return (
            len(made) == 2
            and len(zero) == len(added) == 1
            and self._is_loss(added[0], depth + 1)
        )

    def _is_loss(self, value: ast.expr, depth: int) -> bool:
        """Whether it is the mean that torch makes of one batch."""
        if depth > _DEEPEST:
            return False
        match value:
            case ast.Name():
                made = self._assigned(value)
                return len(made) == 1 and self._is_loss(made[0], depth + 1)
            case ast.Call() if self._is_of_torch(value):
                return _is_as_usual(value)
        inner = _bare(value)
        return inner is not value and self._is_loss(inner, depth + 1)

    def _is_of_torch(self, call: ast.Call) -> bool:
        """Whether what is called is one of torch's losses, wherever it was made."""
        name, program = called(call), self._program
        if program.named(name) or name in all_parameters(self._function):
            return False
        made = [*program.stored.get(name, [])]
        if isinstance(call.func, ast.Name):
            module = program.module_of(self._function.file)
            made = [
                use
                for scope in (self._function, module)
                if scope is not None
                for use in program.assigned.get((scope, name), [])
            ]
        return (
            name in _LOSSES if not made else all(_is_module(use.node) for use in made)
        )

    def _assigned(self, name: ast.Name) -> list[ast.expr]:
        """What a variable of the function is given, if that is all it can be."""
        self._followed.add(name.id)
        self._read.add(name)
        program, function = self._program, self._function
        if (
            name.id in all_parameters(function)
            or program.is_looped(function, name.id)
            or program.unpacked.get((function, name.id))
        ):
            return []
        return [
            use.node
            for use in program.assigned.get((function, name.id), [])
            if use.line <= self._line
        ]

    def _appended(self, name: str) -> list[ast.expr]:
        found = []
        for node in own_nodes(self._function.node):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id=owner), attr="append"),
                    args=[one],
                ) if owner == name:
                    assert isinstance(node.func, ast.Attribute)
                    self._read.add(node.func.value)
                    found.append(one)
        return found


def _bare(value: ast.expr) -> ast.expr:
    """A value before it became a tensor, or another one of the same."""
    match value:
        case ast.Call(args=[inner, *_]) if called(value) in _WRAPPING:
            return inner
        case ast.Call(func=ast.Attribute(value=owner, attr=attr)) if (
            attr in _CONVERTING
        ):
            return owner
        case ast.List(elts=[one]):
            return one
    return value


def _iterated(value: ast.expr) -> str:
    match value:
        case ast.Call(args=[inner, *_]) if called(value) in _AROUND:
            return ast.unparse(inner)
    return ast.unparse(value)


def _is_module(value: ast.expr) -> bool:
    """Whether it makes one of torch's losses that are means."""
    return (
        isinstance(value, ast.Call)
        and called(value) in _MODULES
        and _is_as_usual(value)
    )


def _is_as_usual(call: ast.Call) -> bool:
    """Whether a loss is asked for no other reduction."""
    return len(call.args) <= 2 and not any(
        one.arg in _OTHERWISE for one in call.keywords
    )
