"""Where a value comes from that is not the same on all ranks.

From an argument of a call back through variables, attributes, parameters, returned
values, entries of dictionaries and options of a command line, up to a line that draws a
random number, asks for the time or for the environment, or computes with the rank. Only
the text is read: what is found is where to look, and no proof.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator, Sequence, Set

from distdoctor.analysis.source.chains import chains_to
from distdoctor.analysis.source.conditions import Condition, conditions
from distdoctor.analysis.source.program import (
    Function,
    Program,
    called,
    own_nodes,
)
from distdoctor.analysis.source.ranked import RankReader
from distdoctor.model.events import Place

DRAWS = frozenset(
    {"random", "uniform", "loguniform", "randint", "randrange", "integers", "choice"}
    | {"choices", "sample", "gauss", "normal", "normalvariate", "lognormvariate"}
    | {"triangular", "betavariate", "expovariate", "lognormal", "exponential"}
    | {"standard_normal", "rand", "randn", "randperm", "random_sample", "shuffle"}
    | {"uniform_", "normal_", "random_", "multinomial", "bernoulli", "token_hex"}
)
"""Functions of `random`, numpy, torch and `secrets` that draw."""

LOCAL = frozenset(
    {"getenv", "time", "time_ns", "monotonic", "perf_counter", "urandom", "getpid"}
    | {"uuid4", "uuid1", "gethostname", "hash", "id", "node"}
)
"""Functions whose answer belongs to a process or a machine."""

_RANKS = frozenset(
    {"get_rank", "get_local_rank", "get_node_local_rank", "rank", "local_rank"}
    | {"global_rank", "process_index", "RANK", "LOCAL_RANK", "is_main_process"}
)

_MOST_VALUES = 200  # that are gone through

_MOST_PLACES = 3

_MOST_ASKED = 32  # ranks for whom a test is worked out


def origins(program: Program, place: Place, name: str, position: int) -> list[Place]:
    """Lines that make an argument of a call, and may make it differ among ranks.

    Args:
        program: The user's files.
        place: The line of the call.
        name: The argument's keyword; also the key under which a dictionary has it.
        position: Its position; -1: it has none.
    """
    return _found(_Search(program), program, place, name, position)


def _found(
    search: _Search, program: Program, place: Place, name: str, position: int
) -> list[Place]:
    function = program.at(place.file, place.line)
    if function is not None:
        for call in _calls_at(function, place.line):
            search.add_argument(call, function, name, position)
    return search.places()


def makers(
    program: Program, place: Place, name: str, position: int, made_by: Set[str]
) -> list[Place]:
    """Lines that make an argument of a call, by a call of one of these functions.

    Args:
        program: The user's files.
        place: The line of the call.
        name: The argument's keyword.
        position: Its position; -1: it has none.
        made_by: Simple names of the functions.
    """
    return _found(_Search(program, made_by), program, place, name, position)


def guarded(
    program: Program, place: Place, rank: int, others: Sequence[int], size: int
) -> Place | None:
    """Of a line and its callers, the innermost that only some ranks come to.

    Args:
        program: The user's files.
        place: A line that is only run on some ranks.
        rank: One that came to it.
        others: Ranks that did not.
        size: Number of all ranks.

    Returns:
        A line under a test of the rank; None where the source shows none.
    """
    inside = RankReader(program, rank, size)
    outside = [RankReader(program, other, size) for other in others[:_MOST_ASKED]]
    for chain in chains_to(program, place):
        for here in reversed(chain):
            function = program.at(here.file, here.line)
            if function is not None and any(
                _parts(condition, inside, outside)
                for condition in conditions(function, here.line)
            ):
                return here
    return None


def _parts(
    condition: Condition, inside: RankReader, outside: Sequence[RankReader]
) -> bool:
    """Whether a condition depends on the rank, and may let only one side through."""
    found = inside.holds(condition)
    if found.truth is False or not (found.ranked or _asks_for_rank(condition)):
        return False
    # A test that is known to let all others through as well explains nothing.
    return not outside or any(
        reader.holds(condition).truth is not True for reader in outside
    )


class _Search:
    """Goes back from a value to what makes it.

    Args:
        program: The user's files.
        made_by: Look for calls of these functions, not for what differs among ranks.
    """

    def __init__(self, program: Program, made_by: Set[str] = frozenset()) -> None:
        self._program = program
        self._made_by = made_by
        self._open: deque[tuple[ast.expr, Function, int]] = deque()
        self._known: set[int] = set()

    def add_argument(
        self, call: ast.Call, function: Function, name: str, position: int
    ) -> None:
        """Take the argument of a call to the values that are gone through."""
        given = [one.value for one in call.keywords if one.arg == name]
        if 0 <= position < len(call.args):
            given.append(call.args[position])
        given += [value for part in ast.walk(call) for value in _entries(part, name)]
        for value in given:
            self._add(value, function, value.lineno)

    def places(self) -> list[Place]:
        """What was found, nearest to the call first."""
        found: dict[Place, None] = {}
        for _ in range(_MOST_VALUES):
            if not self._open or len(found) >= _MOST_PLACES:
                break
            value, function, line = self._open.popleft()
            if self._is_found(value, function, line):
                found.setdefault(Place(function.file, line, function.name))
                continue
            self._follow(value, function)
        return list(found)

    def _is_found(self, value: ast.expr, function: Function, line: int) -> bool:
        if self._made_by:
            return any(
                isinstance(part, ast.Call) and called(part) in self._made_by
                for part in ast.walk(value)
            )
        return _differs(value) or _is_ranked(function, line)

    def _add(self, value: ast.expr, function: Function, line: int) -> None:
        if id(value) not in self._known:
            self._known.add(id(value))
            self._open.append((value, function, line))

    def _follow(self, value: ast.expr, function: Function) -> None:
        """Take what a value is made of."""
        for part in ast.walk(value):
            match part:
                case ast.Name(id=name):
                    self._variable(name, function, value)
                case ast.Attribute(attr=name):
                    self._attribute(name)
                case ast.Subscript(slice=ast.Constant(value=str(name))):
                    self._entry(name)
                case ast.Call():
                    self._returned(part)

    def _variable(self, name: str, function: Function, user: ast.expr) -> None:
        scope: Function | None = function
        while scope is not None:
            for use in self._program.assigned.get((scope, name), ()):
                if _is_rank(use.node):  # who computes with it is of interest
                    self._add_user(user, function)
                else:
                    self._add(use.node, use.function, use.line)
            if name in scope.parameters:
                self._parameter(name, scope)
            if self._program.binds(scope, name):
                return
            scope = scope.outer

    def _add_user(self, user: ast.expr, function: Function) -> None:
        marked = ast.copy_location(ast.Name(id="rank", ctx=ast.Load()), user)
        self._open.appendleft((marked, function, user.lineno))

    def _parameter(self, name: str, function: Function) -> None:
        position = function.parameters.index(name) - function.is_method
        callee = function.simple_name
        if callee == "__init__":
            callee = function.name.split(".")[-2]
        for use in self._program.calls.get(callee, ()):
            if isinstance(use.node, ast.Call):
                self.add_argument(use.node, use.function, name, position)

    def _attribute(self, name: str) -> None:
        for use in (
            *self._program.stored.get(name, ()),
            *self._program.keywords.get(name, ()),
        ):
            self._add(use.node, use.function, use.line)
        for function in self._program.functions:
            for use in self._program.assigned.get((function, name), ()):
                self._add(use.node, use.function, use.line)
        for use in self._program.calls.get("add_argument", ()):
            if isinstance(use.node, ast.Call) and _is_option(use.node, name):
                for keyword in use.node.keywords:
                    if keyword.arg == "default":
                        self._add(keyword.value, use.function, use.line)

    def _entry(self, name: str) -> None:
        for function in self._program.functions:
            for node in own_nodes(function.node):
                for value in _entries(node, name):
                    self._add(value, function, value.lineno)
        for use in self._program.keywords.get(name, ()):
            self._add(use.node, use.function, use.line)

    def _returned(self, call: ast.Call) -> None:
        for function in self._program.named(called(call)):
            for node in own_nodes(function.node):
                if isinstance(node, ast.Return) and node.value is not None:
                    self._add(node.value, function, node.lineno)


def _calls_at(function: Function, line: int) -> Iterator[ast.Call]:
    for node in own_nodes(function.node):
        if isinstance(node, ast.Call) and (
            node.lineno <= line <= (node.end_lineno or node.lineno)
        ):
            yield node


def _entries(node: ast.AST, name: str) -> Iterator[ast.expr]:
    """Values that a dictionary has, or is given, under a name."""
    match node:
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                if isinstance(key, ast.Constant) and key.value == name:
                    yield value
        case ast.Assign(targets=targets, value=given):
            for target in targets:
                match target:
                    case ast.Subscript(slice=ast.Constant(value=word)) if word == name:
                        yield given


def _is_option(call: ast.Call, name: str) -> bool:
    given = [one.value for one in call.args if isinstance(one, ast.Constant)]
    return any(str(one).lstrip("-").replace("-", "_") == name for one in given)


def _differs(value: ast.expr) -> bool:
    """Whether an expression draws, asks the machine, or computes with the rank."""
    for part in ast.walk(value):
        match part:
            case ast.Call() if called(part) in DRAWS | LOCAL | _RANKS:
                return True
            case ast.Attribute(attr="environ"):
                return True
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in _RANKS:
                return True
    return False


def _is_rank(value: ast.expr) -> bool:
    """Whether an expression is the rank, and nothing is computed with it."""
    match value:
        case ast.Call(func=ast.Name(id="int"), args=[inner]):
            return _is_rank(inner) or any(
                isinstance(part, ast.Constant) and part.value in _RANKS
                for part in ast.walk(inner)
            )
        case ast.Call():
            return called(value) in _RANKS
    return False


def _is_ranked(function: Function, line: int) -> bool:
    """Whether a line is only come to on some ranks, by a test of the rank."""
    return any(map(_asks_for_rank, conditions(function, line)))


def _asks_for_rank(condition: Condition) -> bool:
    return any(
        _differs(test) and not any(_draws(part) for part in ast.walk(test))
        for test, _ in condition.tests
    )


def _draws(part: ast.AST) -> bool:
    return isinstance(part, ast.Call) and called(part) in DRAWS | LOCAL
