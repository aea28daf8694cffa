"""Lines of the source where something was made that shows elsewhere.

Found by names: where the loss of a backward pass comes from, and which dictionary went
into a checkpoint.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from distdoctor.analysis.source.program import called, own_nodes
from distdoctor.analysis.source.syntax_trees import parsed, simple_name
from distdoctor.model.events import Place
from distdoctor.model.findings import Location, Role
from distdoctor.model.run import Run

_MOST_HOPS = 4

_MOST_LINES = 4

_AROUND = frozenset({"scale", "scale_loss", "mean", "sum"})
"""Methods that are called on a loss, or with it, before backward."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def losses_made(run: Run, backward: Iterable[Place]) -> list[Place]:
    """The lines that make the losses that backward is called on at some lines.

    Args:
        run: The run that is judged.
        backward: The lines where backward is called.

    Returns:
        A few lines, each once, without those of backward.
    """
    source = _Source(run)
    found: dict[Place, None] = {}
    for place in backward:
        for expression in source.losses_at(place):
            for made in source.origins(place.file, expression, _MOST_HOPS):
                if made != place:
                    found.setdefault(made)
    return list(found)[:_MOST_LINES]


def loss_lines(
    run: Run, backward: Sequence[Location], ranks: tuple[int, ...]
) -> list[Location]:
    """The same, of the lines of backward that a finding tells.

    Args:
        run: The run that is judged.
        backward: The lines where backward is called.
        ranks: Global ranks of the run.

    Returns:
        A location for each line.
    """
    made = losses_made(run, [location.place for location in backward])
    return [Location(place, ranks, Role.CULPRIT, "makes the loss") for place in made]


def mean_loss_lines(
    run: Run, backward: Sequence[Location], ranks: tuple[int, ...]
) -> list[Location]:
    """The same, where the losses are means: without what adds up, if there is more.

    Args:
        run: The run that is judged.
        backward: The lines where backward is called.
        ranks: Global ranks of the run.

    Returns:
        A location for each line.
    """
    made = loss_lines(run, backward, ranks)
    return [one for one in made if not _adds_up(run, one.place)] or made


def _adds_up(run: Run, place: Place) -> bool:
    """Whether a line is of a call that asks for a sum."""
    return any(
        isinstance(node, ast.Call)
        and node.lineno <= place.line <= (node.end_lineno or node.lineno)
        and any(_is_sum(one) for one in node.keywords)
        for node in ast.walk(parsed(run.sources.get(place.file, "")))
    )


def _is_sum(given: ast.keyword) -> bool:
    match given:
        case ast.keyword(arg="reduction", value=ast.Constant(value="sum")):
            return True
    return False


def saved_without(run: Run, part: str) -> list[Place]:
    """Dictionaries with the state of an optimizer, and without another part.

    Args:
        run: Whose source is read.
        part: Of a key or value, such as "scal" of a scaler.

    Returns:
        A few lines, maybe none.
    """
    found = []
    for file, text in run.sources.items():
        for node in ast.walk(parsed(text)):
            match node:
                case ast.Dict() | ast.Call(func=ast.Name(id="dict"), args=[]):
                    written = ast.unparse(node)
                    whole = "state_dict()" in written and "opt" in written.lower()
                    if whole and part not in written.lower():
                        found.append(Place(file, node.lineno))
    return found[:_MOST_LINES]


def zeroed_at(run: Run) -> list[Place]:
    """Lines that set parameters to zero, in all files; none if there are many.

    Factors of a product that are all zero have gradients of zero.

    Args:
        run: Whose source is read.

    Returns:
        The lines, each once.
    """
    found = [
        Place(file, node.lineno)
        for file, text in run.sources.items()
        for node in ast.walk(parsed(text))
        if isinstance(node, ast.Call) and _sets_to_zero(node)
    ]
    return found if len(found) <= _MOST_LINES else []


def _sets_to_zero(call: ast.Call) -> bool:
    if "grad" in ast.unparse(call):
        return False
    match call:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            last = call.args[-1] if call.args else None
            zero = isinstance(last, ast.Constant) and last.value == 0
            made = isinstance(last, ast.Call) and simple_name(last.func) == "zeros"
            return (
                name in {"zeros_", "zero_"}
                or (name in {"constant_", "fill_"} and zero)
                or (name == "Parameter" and made)
            )
    return False


class _Source:
    """All files of a run, as trees."""

    def __init__(self, run: Run) -> None:
        self._trees = {file: parsed(text) for file, text in run.sources.items()}

    def losses_at(self, place: Place) -> Iterator[ast.expr]:
        """What backward is called on at a line."""
        for node in ast.walk(self._trees.get(place.file, ast.Module([], []))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "backward"
                and node.lineno <= place.line <= (node.end_lineno or node.lineno)
            ):
                # `scaler.scale(loss)`, and `accelerator.backward(loss)`.
                yield node.args[0] if node.args else node.func.value

    def origins(self, file: str, value: ast.expr, hops: int) -> Iterator[Place]:
        """The lines that make a value, back through names and functions."""
        if hops < 1:
            return
        match value:
            case ast.Name(id=name):
                yield from self._of_name(file, name, value.lineno, hops)
            case ast.Attribute(attr=name):
                yield from self._of_attribute(file, name, value.lineno, hops)
            case ast.Subscript(value=owner, slice=ast.Constant(value=int(item))):
                yield from self._item(file, owner, item, hops)
            case ast.BinOp(left=left):
                yield from self.origins(file, left, hops)
            case ast.Call(func=ast.Attribute(attr=attr, value=owner), args=args) if (
                attr in _AROUND
            ):
                yield from self.origins(file, args[0] if args else owner, hops)
            case ast.Call():
                yield from self._item(file, value, 0, hops)

    def _item(
        self, file: str, value: ast.expr, item: int, hops: int
    ) -> Iterator[Place]:
        """The lines that make one of several values, such as a function returns."""
        match value:
            case ast.Tuple(elts=parts) if item < len(parts):
                inner = list(self.origins(file, parts[item], hops))
                yield from inner or [Place(file, parts[item].lineno)]
            case ast.Call(func=func):
                returned = list(self._returned(file, simple_name(func), item, hops))
                yield from returned or [Place(file, value.lineno)]
            case _:
                yield Place(file, value.lineno)

    def _of_name(self, file: str, name: str, line: int, hops: int) -> Iterator[Place]:
        function = self._around(file, line)
        scope: ast.AST = function or self._trees[file]
        assigned = list(_assigned(scope, ast.Name, name, line))
        for one, item in assigned:
            yield from self._of_assigned(file, one, item, hops)
        if assigned or function is None:
            return
        names = [
            one.arg for one in function.args.args if one.arg not in {"self", "cls"}
        ]
        if name in names:
            for where, tree in self._trees.items():
                for node in ast.walk(tree):
                    if isinstance(node, ast.Call) and called(node) == function.name:
                        by_name = {one.arg: one.value for one in node.keywords}
                        given_to = dict(zip(names, node.args, strict=False)) | by_name
                        if isinstance(its := given_to.get(name), ast.expr):
                            yield from self.origins(where, its, hops - 1)

    def _of_attribute(
        self, file: str, name: str, line: int, hops: int
    ) -> Iterator[Place]:
        """Of `self.loss`: as the same function sets it, or any of the file."""
        scopes = [self._around(file, line), self._trees[file]]
        for scope in scopes:
            if scope is None:
                continue
            before = line if scope is not scopes[-1] else 0
            assigned = list(_assigned(scope, ast.Attribute, name, before))
            for one, item in assigned:
                yield from self._of_assigned(file, one, item, hops)
            if assigned:
                return

    def _of_assigned(
        self, file: str, one: ast.Assign, item: int | None, hops: int
    ) -> Iterator[Place]:
        if item is None:
            inner = list(self.origins(file, one.value, hops - 1))
        else:
            inner = list(self._item(file, one.value, item, hops - 1))
        yield from inner or [Place(file, one.lineno)]

    def _returned(self, file: str, name: str, item: int, hops: int) -> Iterator[Place]:
        """The lines that make what a function gives back, or one of what it does.

        One of this file is meant, or if there is none, one of the others.
        """
        for where in [file, *(each for each in self._trees if each != file)]:
            found = False
            for function in ast.walk(self._trees[where]):
                if isinstance(function, _Function) and function.name == name:
                    found = True
                    yield from self._results(where, function, item, hops)
            if found:
                return

    def _results(
        self, file: str, function: _Function, item: int, hops: int
    ) -> Iterator[Place]:
        returns = [node for node in ast.walk(function) if isinstance(node, ast.Return)]
        for node in sorted(returns, key=lambda one: one.lineno):
            if node.value is not None:
                result = node.value
                if isinstance(result, ast.Tuple) and item < len(result.elts):
                    result = result.elts[item]
                inner = list(self.origins(file, result, hops - 1))
                yield from inner or [Place(file, node.lineno)]

    def _around(self, file: str, line: int) -> _Function | None:
        """The innermost function that a line is in."""
        found = [
            node
            for node in ast.walk(self._trees[file])
            if isinstance(node, _Function)
            and node.lineno <= line <= (node.end_lineno or node.lineno)
        ]
        return max(found, key=lambda node: node.lineno, default=None)


def _assigned(
    scope: ast.AST, kind: type[ast.Name | ast.Attribute], name: str, line: int
) -> Iterator[tuple[ast.Assign, int | None]]:
    """Assignments before a line, and which of several values a name or attribute gets.

    Args:
        scope: Where they stand.
        kind: Of what is assigned.
        name: Its name.
        line: 0: it does not matter.
    """
    # A variable belongs to its function, and an attribute to all of a class.
    nodes = own_nodes(scope) if kind is ast.Name else ast.walk(scope)
    for node in nodes:
        if isinstance(node, ast.Assign) and (not line or node.lineno < line):
            for target in node.targets:
                for item, part in _parts(target):
                    if isinstance(part, kind) and simple_name(part) == name:
                        yield node, item
                        break


def _parts(target: ast.expr) -> list[tuple[int | None, ast.expr]]:
    """What an assignment gives a value, and which one where it gives several."""
    if isinstance(target, ast.Tuple | ast.List):
        return list(enumerate(target.elts))
    return [(None, target)]
