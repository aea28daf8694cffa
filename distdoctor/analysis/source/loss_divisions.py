"""Whether a loss is divided by the number of ranks on its way to backward.

The loss is followed back from the line of backward: through variables, arguments,
results of the user's functions and losses of his own classes. What it is multiplied by
on the way is worked out for several numbers of ranks. Only what becomes smaller by just
that number is told; nothing is, where a number is not known and may depend on ranks.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import isclose
from typing import TypeAlias

from distdoctor.analysis.source.classes import Classes
from distdoctor.analysis.source.conditions import conditions
from distdoctor.analysis.source.program import (
    MODULE,
    Function,
    Program,
    Use,
    all_parameters,
    called,
    calls_in,
    defaults_of,
    own_nodes,
)
from distdoctor.analysis.source.rank_evaluation import RankReader
from distdoctor.model.events import Place

_DIVIDING = frozenset({"div", "div_", "true_divide", "divide"})

_MULTIPLYING = frozenset({"mul", "mul_", "multiply"})

_GIVEN = frozenset({"scale", "scale_loss"})
"""Methods of scalers: what they scale is their argument."""

_ALIKE = frozenset(
    {"mean", "sum", "float", "half", "to", "clone", "contiguous", "double", "squeeze"}
    | {"bfloat16", "view", "reshape", "cuda", "cpu", "type_as"}
)
"""Methods that give the tensor again, or what it comes to."""

_NUMERIC = frozenset({"float", "int", "tensor", "as_tensor"})

_DEEPEST = 12

_MOST = 24  # ways that are gone

_MOST_CALLS = 6  # of a function, for an argument


@dataclass(frozen=True, slots=True, eq=False)
class _Scene:
    """A function as it was entered; without `given`, nobody knows from which call."""

    function: Function
    given: Mapping[str, tuple[ast.expr, _Scene]] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Factor:
    """A number that a loss is multiplied with, or divided by."""

    node: ast.expr
    scene: _Scene
    divides: bool
    place: Place


_Trail: TypeAlias = tuple[_Factor, ...]


class Divisions:
    """Follows losses through a program.

    Args:
        program: The user's files.
        size: Number of ranks.
    """

    def __init__(self, program: Program, size: int) -> None:
        self._program = program
        self._classes = Classes(program)
        self._sizes = size, size + 1, 2 * size + 3
        self._readers = [RankReader(program, 0, one) for one in self._sizes]
        self._left = _MOST

    def by_ranks(self, backward: Place) -> Place | None:
        """The line that divides the loss of a backward pass by the number of ranks.

        Args:
            backward: The line that calls it.

        Returns:
            The line, or None if no line surely does.
        """
        for trail in self._trails(backward):
            place = self._divided(trail)
            if place is not None:
                return place
        return None

    def by_data(self, backward: Place) -> Place | None:
        """The line that divides that loss by what the source does not tell, a count.

        Args:
            backward: The line that calls it.

        Returns:
            The line, or None if there is none.
        """
        for trail in self._trails(backward):
            for factor in trail:
                if factor.divides and self._values(factor) is None:
                    return factor.place
        return None

    def _trails(self, backward: Place) -> Iterator[_Trail]:
        function = self._program.at(backward.file, backward.line)
        if function is None:
            return
        self._left = _MOST
        for call in calls_in(function):
            if called(call) != "backward" or not (
                call.lineno <= backward.line <= (call.end_lineno or call.lineno)
            ):
                continue
            if not isinstance(call.func, ast.Attribute):
                continue
            # Of `accelerator.backward(loss)`, the argument.
            loss = call.args[0] if call.args else call.func.value
            yield from self._follow(loss, _Scene(function), _DEEPEST)

    def _divided(self, trail: _Trail) -> Place | None:
        """The line that makes a loss smaller by the number of ranks, if all of it does.

        A window's length or an unknown weight may stand beside it.
        """
        products = [1.0 for _ in self._sizes]
        place: Place | None = None
        for factor in trail:
            values = self._values(factor)
            if values is None:
                if self._may_be_ranks(factor):
                    return None
                continue
            if values[0] == values[1] == values[2]:
                continue
            place = place or factor.place
            products = [a * b for a, b in zip(products, values, strict=True)]
        shares = [p * n for p, n in zip(products, self._sizes, strict=True)]
        return place if all(isclose(one, shares[0]) for one in shares) else None

    def _values(self, factor: _Factor) -> list[float] | None:
        found = []
        for reader in self._readers:
            value = reader.value(factor.node, factor.scene.function).value
            if isinstance(value, bool) or not isinstance(value, int | float):
                return None
            if not value:
                return None
            found.append(1.0 / value if factor.divides else float(value))
        return found

    def _may_be_ranks(self, factor: _Factor) -> bool:
        """Whether a number that is not known has a part that depends on the ranks."""
        for part in ast.walk(factor.node):
            if isinstance(part, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
                inner = _Factor(part, factor.scene, False, factor.place)
                values = self._values(inner)
                if values is not None and values[0] != values[1]:
                    return True
        return False

    # --- the loss ---

    def _follow(self, node: ast.expr, scene: _Scene, hops: int) -> Iterator[_Trail]:
        """What a loss is multiplied with on its ways back to where it is made."""
        self._left -= 1
        if hops < 1 or self._left < 0:
            return
        match node:
            case ast.Name(id=name):
                yield from self._variable(name, node.lineno, scene, hops - 1)
            case ast.Attribute(attr=name):
                yield from self._attribute(name, node.lineno, scene, hops - 1)
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                by = self._factors(right, scene, divides=True)
                yield from self._with(by, left, scene, hops)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                for loss, number in ((left, right), (right, left)):
                    by = self._factors(number, scene, divides=False)
                    if all(self._values(one) is not None for one in by):
                        yield from self._with(by, loss, scene, hops)
                        return
                yield from self._with(
                    self._factors(right, scene, divides=False), left, scene, hops
                )
                yield from self._with(
                    self._factors(left, scene, divides=False), right, scene, hops
                )
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
                yield from self._follow(left, scene, hops)
                yield from self._follow(right, scene, hops)
            case ast.UnaryOp(operand=inner) | ast.NamedExpr(value=inner):
                yield from self._follow(inner, scene, hops)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                truth = self._readers[0].value(test, scene.function).truth
                if truth is not False:
                    yield from self._follow(body, scene, hops)
                if truth is not True:
                    yield from self._follow(orelse, scene, hops)
            case ast.Subscript(value=ast.Call() as call, slice=ast.Constant(value=at)):
                item = at if isinstance(at, int) else None
                yield from self._called(call, scene, hops, item)
            case ast.Call():
                yield from self._call(node, scene, hops)
            case _:
                yield ()

    def _with(
        self, factors: _Trail, node: ast.expr, scene: _Scene, hops: int
    ) -> Iterator[_Trail]:
        for trail in self._follow(node, scene, hops):
            yield (*factors, *trail)

    def _call(self, node: ast.Call, scene: _Scene, hops: int) -> Iterator[_Trail]:
        name = called(node)
        match node:
            case ast.Call(func=ast.Attribute(value=owner), args=args) if (
                name in _DIVIDING | _MULTIPLYING and args
            ):
                # `loss.div(n)`, and `torch.div(loss, n)`.
                loss, by = (owner, args[0]) if len(args) == 1 else (args[0], args[1])
                found = self._factors(by, scene, divides=name in _DIVIDING)
                yield from self._with(found, loss, scene, hops)
            case ast.Call(func=ast.Attribute(), args=[loss, *_]) if name in _GIVEN and (
                not self._program.named(name)
            ):
                yield from self._follow(loss, scene, hops)
            case ast.Call(func=ast.Attribute(value=owner)) if name in _ALIKE:
                yield from self._follow(owner, scene, hops)
            case _:
                yield from self._called(node, scene, hops, None)

    def _called(
        self, call: ast.Call, scene: _Scene, hops: int, item: int | None
    ) -> Iterator[_Trail]:
        """Of what a function of the user's gives back, or one of several values."""
        found = False
        for function in self._functions(call)[:_MOST_CALLS]:
            here = _Scene(function, self._given(call, scene, function))
            for inner in own_nodes(function.node):
                if isinstance(inner, ast.Return) and inner.value is not None:
                    result = inner.value
                    if isinstance(result, ast.Tuple):
                        at = item or 0
                        if at >= len(result.elts):
                            continue
                        result = result.elts[at]
                    found = True
                    yield from self._follow(result, here, hops - 1)
        if not found:
            yield ()

    def _functions(self, call: ast.Call) -> list[Function]:
        """What is called: a function, a method, or the `forward` of a loss."""
        name = called(call)
        named = [one for one in self._program.named(name) if one.name != MODULE]
        if named:
            return named
        uses = (
            self._program.stored.get(name, [])
            if isinstance(call.func, ast.Attribute)
            else [
                use
                for (_, given), of in self._program.assigned.items()
                if given == name
                for use in of
            ]
        )
        makers = {called(use.node) for use in uses if isinstance(use.node, ast.Call)}
        owners = [self._classes.named(one) for one in sorted(makers)]
        methods = [one.method("forward") for one in owners if one is not None]
        return [one for one in methods if one is not None]

    def _given(
        self, call: ast.Call, scene: _Scene, function: Function
    ) -> dict[str, tuple[ast.expr, _Scene]]:
        names = function.parameters
        if function.is_method and names[:1] in (["self"], ["cls"]):
            names = names[1:]
        outer = _Scene(function.outer or function)
        given = {name: (one, outer) for name, one in defaults_of(function).items()}
        for name, one in zip(names, call.args, strict=False):
            if isinstance(one, ast.Starred):
                break
            given[name] = one, scene
        for keyword in call.keywords:
            if keyword.arg:
                given[keyword.arg] = keyword.value, scene
        return given

    def _variable(
        self, name: str, line: int, scene: _Scene, hops: int
    ) -> Iterator[_Trail]:
        function = scene.function
        uses = [
            *self._program.assigned.get((function, name), ()),
            *self._program.unpacked.get((function, name), ()),
        ]
        before = [use for use in uses if use.line < line]
        if before:
            yield from self._last(name, before, line, scene, hops)
        elif name in all_parameters(function):
            yield from self._parameter(name, scene, hops)
        elif function.outer is not None and not uses:
            yield from self._variable(name, line, _Scene(function.outer), hops)
        else:
            yield ()

    def _last(
        self, name: str, uses: list[Use], line: int, scene: _Scene, hops: int
    ) -> Iterator[_Trail]:
        """What a variable got last before a line, or may have got, as tests tell."""
        known = {(one.kind, one.line) for one in conditions(scene.function, line)}
        for use in sorted(uses, key=lambda use: use.line, reverse=True):
            further = [
                one
                for one in conditions(scene.function, use.line)
                if (one.kind, one.line) not in known
            ]
            reached = self._readers[0].all_hold(further).truth
            if reached is False:
                continue
            changed = self._changed(name, use.line, line, scene)
            yield from self._with(changed, use.node, scene, hops)
            if reached is True:
                return
        if name in all_parameters(scene.function):
            changed = self._changed(name, 0, line, scene)
            for trail in self._parameter(name, scene, hops):
                yield (*changed, *trail)

    def _changed(self, name: str, after: int, before: int, scene: _Scene) -> _Trail:
        """What a variable was multiplied with in place between two lines."""
        found: _Trail = ()
        for node in own_nodes(scene.function.node):
            match node:
                case ast.Expr(
                    value=ast.Call(
                        func=ast.Attribute(attr=how, value=ast.Name(id=of)), args=[by]
                    )
                ) if of == name and how in {"div_", "mul_"}:
                    if after < node.lineno < before:
                        found += self._factors(by, scene, divides=how == "div_")
        return found

    def _parameter(self, name: str, scene: _Scene, hops: int) -> Iterator[_Trail]:
        if scene.given is not None:
            if name in scene.given:
                node, where = scene.given[name]
                yield from self._follow(node, where, hops)
            else:
                yield ()
            return
        function = scene.function
        for use in self._program.calls.get(function.simple_name, ())[:_MOST_CALLS]:
            if isinstance(use.node, ast.Call):
                where = _Scene(use.function)
                given = self._given(use.node, where, function)
                if name in given:
                    yield from self._follow(*given[name], hops)

    def _attribute(
        self, name: str, line: int, scene: _Scene, hops: int
    ) -> Iterator[_Trail]:
        """Of `self.loss`: as the same function sets it, or any of them."""
        uses = self._program.stored.get(name, [])
        own = [one for one in uses if one.function is scene.function]
        own = [one for one in own if one.line < line]
        if own:
            last = max(own, key=lambda use: use.line)
            yield from self._follow(last.node, scene, hops)
            return
        for use in uses[:_MOST_CALLS]:
            if use.function is not scene.function:
                yield from self._follow(use.node, _Scene(use.function), hops)
        if not uses:
            yield ()

    # --- numbers ---

    def _factors(
        self, node: ast.expr, scene: _Scene, *, divides: bool, hops: int = _DEEPEST
    ) -> _Trail:
        """The numbers that a product or a quotient is made of."""
        place = Place(scene.function.file, node.lineno, scene.function.name)
        whole = _Factor(node, scene, divides, place)
        if hops < 1:
            return (whole,)
        match node:
            case ast.BinOp(left=left, op=ast.Mult() | ast.Div() as op, right=right):
                inverse = divides != isinstance(op, ast.Div)
                return (
                    *self._factors(left, scene, divides=divides, hops=hops - 1),
                    *self._factors(right, scene, divides=inverse, hops=hops - 1),
                )
            case ast.Name(id=name) if scene.given and name in scene.given:
                if not self._program.assigned.get((scene.function, name)):
                    inner, where = scene.given[name]
                    found = self._factors(inner, where, divides=divides, hops=hops - 1)
                    return _at(found, place)
            case ast.Name(id=name) if self._values(whole) is None:
                uses = self._program.assigned.get((scene.function, name), [])
                if len(uses) == 1:
                    inner = uses[0].node
                    found = self._factors(inner, scene, divides=divides, hops=hops - 1)
                    return _at(found, place)
            case ast.Attribute(value=ast.Name(), attr=name) if (
                self._values(whole) is None
            ):
                # Another class may have an attribute of that name.
                owner = self._classes.of(scene.function)
                own = [
                    use
                    for use in self._program.stored.get(name, ())
                    if owner is not None and owner.derives(use.function)
                ]
                if len(own) == 1:
                    (use,) = own
                    where = _Scene(use.function)
                    found = self._factors(
                        use.node, where, divides=divides, hops=hops - 1
                    )
                    return _at(found, place)
            case ast.Call(args=[inner, *_]) if (
                called(node) in _NUMERIC and self._values(whole) is None
            ):
                return self._factors(inner, scene, divides=divides, hops=hops - 1)
        return (whole,)


def _at(factors: _Trail, place: Place) -> _Trail:
    """Factors with the line that uses them, for it is of more interest."""
    return tuple(replace(one, place=place) for one in factors)
