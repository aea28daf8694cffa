"""Which line of the source gives ranks different arguments for one call.

From the call back through variables, attributes, parameters and returns: a condition
by rank on the way, `if rank == 0: width = 4`, singles out ranks; an expression of the
rank, `16 * (rank + 1)`, tells where they differ and nothing more.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.divergence.parting_branches import (
    GivenCalls,
    Sides,
    chains,
    of_group,
    program_of,
)
from distdoctor.analysis.divergence.rank_guards import GUARD
from distdoctor.analysis.source.call_chains import call_between
from distdoctor.analysis.source.conditions import Condition, ConditionKind, conditions
from distdoctor.analysis.source.program import (
    Function,
    Use,
    called,
    calls_in,
    own_nodes,
)
from distdoctor.analysis.source.rank_choices import gone_through
from distdoctor.analysis.source.rank_origins import chosen_operation, made, numbered
from distdoctor.model.events import Place
from distdoctor.model.findings import Certainty, Location, Role
from distdoctor.model.run import Run, named

_ARGUMENTS = {
    Cause.NUMEL,
    Cause.DTYPE,
    Cause.REDUCE_OP,
    Cause.ROOT,
    Cause.OPERATION,
    Cause.SPLITS,
}

_KEYWORDS = {
    Cause.ROOT: frozenset(
        {"src", "dst", "group_src", "group_dst", "root", "root_rank", "rank"}
    ),
    Cause.REDUCE_OP: frozenset({"op", "reduce_op", "average"}),
}
"""What only one argument of a call decides: by which names it may be given."""

_MOST_EXPRESSIONS = 400

_CHANGES = frozenset({"append", "extend", "insert", "add", "update", "pop", "remove"})
"""Methods that change what a variable holds."""


def singled_out(run: Run, divergence: Divergence) -> Divergence:
    """The same divergence, with the line by which the arguments came to differ.

    Args:
        run: The run that is judged.
        divergence: The divergence as it is known so far.

    Returns:
        The same object if no such line is known.
    """
    calls = divergence.calls
    if (
        divergence.why not in _ARGUMENTS
        or GUARD in divergence.details
        or len(calls) < 2
    ):
        return divergence
    sides: dict[str, list[int]] = {}
    for rank, call in sorted(calls.items()):
        sides.setdefault(str(call), []).append(rank)
    places = {call.place for call in calls.values()}
    if len(sides) != 2 or len(places) != 1 or None in places:
        return divergence
    first, second = sides.values()
    ways = chains(run, calls[first[0]])
    if not ways:
        return divergence
    keywords = _KEYWORDS.get(divergence.why, frozenset())
    search = _Search(Sides(run, first, second), ways[0], keywords)
    search.run()
    if search.special:
        condition, ranks = search.special[0]
        agreed = {chosen for _, chosen in search.special} == {ranks}
        tie = not divergence.culprits
        culprits = ranks if tie and agreed else divergence.culprits
        everyone = tuple(sorted(calls))
        role = Role.CULPRIT if culprits else Role.PARTY
        return replace(
            divergence,
            culprits=culprits,
            victims=of_group(everyone, culprits) if culprits else divergence.victims,
            certainty=Certainty.LIKELY if tie and culprits else divergence.certainty,
            elsewhere=(
                Location(condition.place, culprits or everyone, role, str(condition)),
                *divergence.elsewhere,
            ),
            remarks=f"{divergence.remarks} What is passed depends on `{condition}` at "
            f"{condition.place}, which singles out {named(ranks)}.",
            details={**divergence.details, GUARD: str(condition)},
        )
    if search.ranked:
        place = search.ranked[-1]
        everyone = tuple(sorted(calls))
        line = Location(place, everyone, Role.PARTY, "depends on the rank")
        return replace(
            divergence,
            elsewhere=(line, *divergence.elsewhere),
            remarks=f"{divergence.remarks} What is passed depends on the rank at "
            f"{place}.",
        )
    return divergence


def with_makers(run: Run, divergence: Divergence) -> Divergence:
    """The same divergence of what is passed, with the lines that make it.

    Args:
        run: The run that is judged.
        divergence: The divergence as it is known so far.

    Returns:
        The same object if no such line is known.
    """
    if divergence.why not in _PASSED or len(divergence.calls) > _MOST_CALLS:
        return divergence
    if divergence.elsewhere and divergence.why is not Cause.ORDER:
        return divergence
    one_line = len({call.place for call in divergence.calls.values()}) == 1
    if not run.sources or not (one_line or divergence.why is Cause.MISFIT):
        return divergence
    find, remark = _FOUND_BY.get(divergence.why, (made, "made here"))
    ranks: dict[Place, set[int]] = {}
    for rank, call in divergence.calls.items():
        odd = rank in divergence.culprits or not divergence.culprits
        for place in find(program_of(run), call.place) if call.place and odd else []:
            ranks.setdefault(place, set()).add(rank)
    known = {(line.place.file, line.place.line) for line in divergence.elsewhere}
    role = Role.CULPRIT if divergence.culprits else Role.PARTY
    lines = [
        Location(place, tuple(sorted(who)), role, remark)
        for place, who in ranks.items()
        if (place.file, place.line) not in known
    ]
    return (
        replace(divergence, elsewhere=(*divergence.elsewhere, *lines))
        if lines
        else divergence
    )


_FOUND_BY = {
    Cause.ROOT: (numbered, "computed here"),
    Cause.REDUCE_OP: (chosen_operation, "chosen here"),
    Cause.ORDER: (gone_through, "gives the order"),
    Cause.CIRCLE: (gone_through, "gives the order"),
}

_PASSED = {Cause.NUMEL, Cause.DTYPE, Cause.SPLITS, Cause.MISFIT, *_FOUND_BY}

_MOST_CALLS = 64  # ranks whose lines are looked for, each by itself


@dataclass(frozen=True, slots=True)
class _Expression:
    node: ast.expr
    function: Function
    at: int  # of its function in the chain of callers; -1: not in it


class _Search:
    """Goes back from a call's arguments to where they depend on the rank."""

    def __init__(
        self, sides: Sides, chain: tuple[Place, ...], keywords: frozenset[str]
    ) -> None:
        self._sides, self._chain, self._keywords = sides, chain, keywords
        self._program = sides.program
        self._seen: set[int] = set()
        self._open: list[_Expression] = []
        self.special: list[tuple[Condition, tuple[int, ...]]] = []
        self.ranked: list[Place] = []

    def run(self) -> None:
        place, at = self._chain[-1], len(self._chain) - 1
        function = self._program.at(place.file, place.line)
        if function is None:
            return
        for call in calls_in(function):
            if call.lineno <= place.line <= (call.end_lineno or 0):
                self._push(self._arguments(call), function, at)
                self._push([call.func], function, at)
        while self._open and len(self._seen) < _MOST_EXPRESSIONS:
            self._look(self._open.pop(0))

    def _arguments(self, call: ast.Call) -> list[ast.expr]:
        """Those of a call that may make the difference; its tensor comes first."""
        named_ = [each for each in call.keywords if each.arg in self._keywords]
        if named_:
            return [each.value for each in named_]
        if self._keywords:
            return [*call.args[1:], *(e.value for e in call.keywords if e.arg is None)]
        return [*call.args, *(each.value for each in call.keywords)]

    def _push(self, nodes: Sequence[ast.expr], function: Function, at: int) -> None:
        for node in nodes:
            if id(node) not in self._seen:
                self._seen.add(id(node))
                self._open.append(_Expression(node, function, at))

    def _look(self, one: _Expression) -> None:
        for node in [one.node, *own_nodes(one.node)]:
            match node:
                case ast.IfExp(test=test):
                    self._test(test, one)
                case ast.Compare():
                    self._test(node, one)
                case ast.Name(id=name):
                    self._name(name, node.lineno, one)
                case ast.Attribute(attr=name):
                    self._uses(self._program.stored.get(name, []), one)
                case ast.Call():
                    for function in self._program.named(called(node)):
                        self._returns(function)

    def _test(self, test: ast.expr, one: _Expression) -> None:
        tests = ((test, True),)
        condition = Condition(ConditionKind.BRANCH, one.function, test.lineno, tests)
        self._condition(condition, one.at)

    def _condition(self, condition: Condition, at: int) -> None:
        given = GivenCalls(self._chain, max(at, 0))
        for sides in (self._sides, self._sides.swapped()):
            if sides.parts(condition, given):
                few = sides.singles_out(condition, given)
                ranks = tuple(sides.inside if few else sides.outside)
                self.special.append((condition, ranks))
                return

    def _name(self, name: str, line: int, one: _Expression) -> None:
        function: Function | None = one.function
        while function is not None:
            uses = self._program.assigned.get((function, name), [])
            if function is one.function and not function.name.startswith("<"):
                uses = [use for use in uses if use.line <= line] or uses
            if uses:
                self._uses(uses, one)
                self._changes(function, name, one)
                return
            function = function.outer
        if name in one.function.parameters and one.at > 0:
            self._argument(name, one)

    def _uses(self, uses: Sequence[Use], one: _Expression) -> None:
        for use in uses:
            at = one.at if use.function is one.function else -1
            for condition in conditions(use.function, use.line):
                self._condition(condition, at)
            given = GivenCalls(self._chain, max(at, 0)).of(self._sides, 0)
            value = self._sides.reader(0).value(use.node, use.function, given)
            if value.ranked and not isinstance(use.node, ast.Call):
                self.ranked.append(
                    Place(use.function.file, use.line, use.function.name)
                )
            self._push([use.node], use.function, at)

    def _changes(self, function: Function, name: str, one: _Expression) -> None:
        """Conditions under which a function changes what a variable holds."""
        for call in calls_in(function):
            match call.func:
                case ast.Attribute(value=ast.Name(id=base), attr=method):
                    if base == name and method in _CHANGES:
                        for condition in conditions(function, call.lineno):
                            self._condition(condition, one.at)

    def _argument(self, name: str, one: _Expression) -> None:
        """What the caller gave for a parameter."""
        caller = self._chain[one.at - 1]
        call = call_between(self._program, caller, one.function)
        function = self._program.at(caller.file, caller.line)
        if call is None or function is None:
            return
        names = one.function.parameters
        if one.function.is_method:
            names = names[1:]
        given = dict(zip(names, call.args, strict=False))
        given |= {each.arg: each.value for each in call.keywords if each.arg}
        if name in given:
            self._push([given[name]], function, one.at - 1)

    def _returns(self, function: Function) -> None:
        for node in own_nodes(function.node):
            if isinstance(node, ast.Return) and node.value is not None:
                for condition in conditions(function, node.lineno):
                    self._condition(condition, -1)
                self._push([node.value], function, -1)
