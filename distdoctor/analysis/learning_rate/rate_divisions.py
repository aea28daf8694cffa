"""Whether the source divides a rate or a loss by the number of ranks or of batches.

Names are followed through all files of the user at once, by their last part: what
`cfg.replicas` is given is what `self.cfg.replicas` has. That finds more than there is,
and is asked only where a division would excuse something.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

from distdoctor.analysis.memoize import memoize
from distdoctor.analysis.source.syntax_trees import last_name, parsed
from distdoctor.model.run import Run

_COUNTS = frozenset(
    {"get_world_size", "world_size", "worldsize", "num_replicas", "nprocs"}
    | {"num_processes", "world", "n_ranks", "nranks", "num_ranks"}
)
"""Names that tell the number of ranks, also in environments and arguments."""

_VARIABLE = "WORLD_SIZE"

_RATES = frozenset({"lr", "learning", "eta"})
"""Parts of names of learning rates."""

_WINDOWS = ("accum", "micro", "window")
"""Parts of names of how many batches are accumulated."""

_NUMERIC = frozenset(
    {"int", "float", "max", "min", "abs", "round", "sqrt", "getenv", "get", "tensor"}
)
"""Functions that make a number of one."""

_DIVIDING = frozenset({"div", "div_", "true_divide", "divide"})

_MOST_TURNS = 12  # until no further name is found


@memoize
def divided_rates(run: Run) -> bool:
    """Whether a learning rate may be divided by the number of ranks somewhere."""
    return _Flow(map(parsed, run.sources.values())).reaches_a_rate()


@memoize
def divided_losses(run: Run) -> bool:
    """Whether a loss that backward is called on may be divided by that number."""
    return _Flow(map(parsed, run.sources.values())).reaches_a_loss()


@memoize
def losses_by_ranks(run: Run) -> bool:
    """Whether a loss that backward is called on may be made from that number."""
    return _Flow(map(parsed, run.sources.values())).makes_a_loss()


@memoize
def scaled_rates(run: Run) -> bool:
    """Whether a learning rate may be made from that number somewhere."""
    return _Flow(map(parsed, run.sources.values())).makes_a_rate()


@memoize
def rates_divided_by_batches(run: Run) -> bool:
    """Whether a learning rate may be divided by the batches of a step somewhere."""
    trees = [parsed(text) for text in run.sources.values()]
    counts = {
        name
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.expr)
        for name in (last_name(node),)
        if any(part in name.lower() for part in _WINDOWS)
    }
    return _Flow(trees, counts).reaches_a_rate()


class _Flow:
    """Names that depend on a number, and on a division by it."""

    def __init__(
        self, trees: Iterable[ast.AST], counts: AbstractSet[str] = _COUNTS
    ) -> None:
        self._nodes = [node for tree in trees for node in ast.walk(tree)]
        self._functions = {
            node.name: node
            for node in self._nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        pairs = list(self._pairs())
        self._counts = self._closure(pairs, set(counts), divided=False)
        self._shares = self._closure(pairs, set(), divided=True)
        self._given = pairs

    def reaches_a_rate(self) -> bool:
        """Whether what looks like a learning rate is made from such a share."""
        return any(
            _is_rate(name) and self._is_share(value) for name, value in self._given
        ) or any(
            self._is_share(value)
            for node in self._nodes
            if isinstance(node, ast.Call) and "optim." in ast.unparse(node.func)
            for value in node.args[1:2]
        )

    def makes_a_rate(self) -> bool:
        """Whether what looks like a learning rate depends on the number at all."""
        return any(
            _is_rate(name) and _names(value) & self._counts
            for name, value in self._given
        )

    def reaches_a_loss(self) -> bool:
        """Whether backward is called on such a share."""
        return any(map(self._is_share, self._losses()))

    def makes_a_loss(self) -> bool:
        """Whether backward is called on what depends on the number at all."""
        return any(_names(loss) & self._counts for loss in self._losses())

    def _losses(self) -> Iterator[ast.expr]:
        """What backward is called on, with and without a GradScaler around it."""
        for node in self._nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr == "backward":
                    yield node.func.value
                elif node.func.attr == "scale":
                    yield from node.args

    def _closure(
        self, pairs: list[tuple[str, ast.expr]], known: set[str], *, divided: bool
    ) -> set[str]:
        """Names that have a value of that kind, or one made from such names."""
        for _ in range(_MOST_TURNS):
            found = {
                name
                for name, value in pairs
                if name not in known
                and (_names(value) & known or (divided and self._divides(value)))
            }
            if not found:
                break
            known = known | found
        return known

    def _is_share(self, value: ast.expr) -> bool:
        return bool(_names(value) & self._shares) or self._divides(value)

    def _divides(self, value: ast.expr) -> bool:
        """Whether something is divided by that number in an expression."""
        for node in ast.walk(value):
            match node:
                case ast.BinOp(op=ast.Div() | ast.FloorDiv(), right=by):
                    pass
                case ast.BinOp(op=ast.Pow(), left=by, right=ast.UnaryOp(op=ast.USub())):
                    pass
                case ast.Call(func=ast.Attribute(attr=name), args=[*_, by]) if (
                    name in _DIVIDING
                ):
                    pass
                case _:
                    continue
            if _names(by) & self._counts:
                return True
        return False

    def _pairs(self) -> Iterator[tuple[str, ast.expr]]:
        """What is given to which name, or is what a function of that name returns."""
        for node in self._nodes:
            match node:
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        yield from _assigned(target, value)
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    yield from _assigned(target, value)
                case ast.NamedExpr(target=target, value=value):
                    yield from _assigned(target, value)
                case ast.AugAssign(target=target, op=op, value=value):
                    whole = ast.BinOp(left=ast.Constant(1), op=op, right=value)
                    yield from _assigned(target, whole)
                case ast.Dict(keys=keys, values=values):
                    for key, value in zip(keys, values, strict=True):
                        if isinstance(key, ast.Constant):
                            yield str(key.value), value
                case ast.FunctionDef(name=name):
                    for inner in ast.walk(node):
                        if isinstance(inner, ast.Return) and inner.value is not None:
                            yield name, inner.value
                case ast.Call(func=func, args=args, keywords=keywords):
                    for given in keywords:
                        if given.arg:
                            yield given.arg, given.value
                    yield from self._passed(func, args)

    def _passed(
        self, func: ast.expr, args: list[ast.expr]
    ) -> Iterator[tuple[str, ast.expr]]:
        name = last_name(func)
        made = self._functions.get(name)
        if made is None and name[:1].isupper():  # a class: see how it is made
            made = self._functions.get("__init__")
        if made is None:
            return
        names = [one.arg for one in (*made.args.posonlyargs, *made.args.args)]
        if names[:1] in (["self"], ["cls"]):
            names = names[1:]
        yield from zip(names, args, strict=False)


def _assigned(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Tuple | ast.List):
        values = value.elts if isinstance(value, ast.Tuple | ast.List) else None
        for at, one in enumerate(target.elts):
            its = values[at] if values and len(values) == len(target.elts) else value
            yield from _assigned(one, its)
    elif name := last_name(target):
        yield name, value


def _names(value: ast.AST) -> set[str]:
    """Last parts of the names that a number is worked out from.

    What a function makes of its arguments is another thing: a loader that knows how
    many ranks there are is not their number.
    """
    found: set[str] = set()
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Constant) and node.value == _VARIABLE:
            found.add("world_size")
        if isinstance(node, ast.expr):
            found.add(last_name(node))
        if isinstance(node, ast.Call):
            name = last_name(node.func)
            found.add("world_size" if _is_size_of_ranks(node.func, name) else name)
            waiting += node.args if name in _NUMERIC else []
        elif not isinstance(node, ast.Attribute | ast.Name):
            waiting += ast.iter_child_nodes(node)
    return found - {""}


def _is_size_of_ranks(func: ast.expr, name: str) -> bool:
    """Whether it is the `size` of Horovod, a group, or a mesh."""
    return (
        name == "size"
        and isinstance(func, ast.Attribute)
        and last_name(func.value) in {"hvd", "group", "mesh", "pg", "comm"}
    )


def _is_rate(name: str) -> bool:
    return bool(_RATES & set(name.lower().replace("-", "_").split("_")))
