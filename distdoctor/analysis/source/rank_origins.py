"""Where a value comes from that is not the same on all ranks.

From an argument of a call back through variables, attributes, parameters, returned
values, entries of dictionaries and options of a command line, up to a line that draws a
random number, asks for the time or for the environment, or computes with the rank. Only
the text is read: what is found is where to look, and no proof.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence, Set

from distdoctor.analysis.source.conditions import Condition, ConditionKind, conditions
from distdoctor.analysis.source.guards import guards
from distdoctor.analysis.source.program import (
    Function,
    Program,
    called,
    own_nodes,
)
from distdoctor.analysis.source.rank_evaluation import RankReader
from distdoctor.analysis.source.value_search import RANKS, ValueSearch
from distdoctor.model.events import Place

DRAWS = frozenset(
    {"random", "uniform", "loguniform", "randint", "randrange", "integers", "choice"}
    | {"choices", "sample", "gauss", "normal", "normalvariate", "lognormvariate"}
    | {"triangular", "betavariate", "expovariate", "lognormal", "exponential"}
    | {"standard_normal", "rand", "randn", "randperm", "random_sample", "shuffle"}
    | {"uniform_", "normal_", "random_", "multinomial", "bernoulli", "token_hex"}
    | {"randn_like", "rand_like", "randint_like"}
)
"""Functions of `random`, numpy, torch and `secrets` that draw."""

LOCAL = frozenset(
    {"getenv", "time", "time_ns", "monotonic", "perf_counter", "urandom", "getpid"}
    | {"uuid4", "uuid1", "gethostname", "hash", "id", "node"}
)
"""Functions whose answer belongs to a process or a machine."""

_MOST_ASKED = 32  # ranks for whom a test is worked out


def origins(program: Program, place: Place, name: str, position: int) -> list[Place]:
    """Lines that make an argument of a call, and may make it differ among ranks.

    Args:
        program: The user's files.
        place: The line of the call.
        name: The argument's keyword; also the key under which a dictionary has it.
        position: Its position; -1: it has none.

    Returns:
        A few lines, nearest to the call first.
    """
    search = ValueSearch(program, is_sought=_may_differ)
    return _found(search, program, place, name, position)


def _found(
    search: ValueSearch, program: Program, place: Place, name: str, position: int
) -> list[Place]:
    for call, function in _calls_at(program, place):
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

    Returns:
        A few lines, nearest to the call first.
    """
    search = ValueSearch(program, is_sought=_is_made_by(made_by))
    return _found(search, program, place, name, position)


def _is_made_by(names: Set[str]) -> Callable[[ast.expr, Function, int], bool]:
    """A test of a value: whether a function of one of these simple names is called."""

    def is_made(value: ast.expr, _function: Function, _line: int) -> bool:
        return any(
            isinstance(part, ast.Call) and called(part) in names
            for part in ast.walk(value)
        )

    return is_made


MAKERS = frozenset(
    {"tensor", "as_tensor", "from_numpy", "array", "asarray", "stack", "cat", "concat"}
    | {"zeros", "ones", "full", "empty", "arange", "linspace", "eye", "rand", "randn"}
    | {"empty_like", "zeros_like", "ones_like", "full_like", "randint", "randperm"}
    | {"bincount", "unique", "nonzero", "histc", "pad_sequence", "frombuffer"}
)
"""Functions of torch and numpy that make a tensor, of a size or a dtype of its own."""

_PEERS = {"src": 1, "dst": 1, "group_src": -1, "group_dst": -1}
"""Arguments that name a rank, with their positions in most calls."""

_SETTINGS = frozenset({"group", "async_op", "op", "tag", *_PEERS})


def made(program: Program, place: Place) -> list[Place]:
    """Lines that make the tensors, or their splits, of a communication call.

    Args:
        program: The user's files.
        place: The line of the call.

    Returns:
        A few lines, nearest to the call first.
    """
    search = ValueSearch(program, is_sought=_is_made_by(MAKERS), through_loops=True)
    for call, function in _calls_at(program, place):
        given = [one for one in call.keywords if one.arg not in _SETTINGS]
        splits = [one.value for one in given if "split" in (one.arg or "")]
        if called(call) == "all_to_all_single":
            splits += call.args[2:4]
        for value in splits or [*call.args, *(one.value for one in given)]:
            search.add(value, function, value.lineno)
        break  # the outermost: others are its arguments
    return [one for one in search.places() if one.line != place.line]


def numbered(program: Program, place: Place) -> list[Place]:
    """Lines that compute which rank is named as root in a communication call.

    And, behind them, those that may make what it is computed of differ among ranks.

    Args:
        program: The user's files.
        place: The line of the call.

    Returns:
        A few lines, nearest to the call first.
    """

    def is_computed(value: ast.expr, _function: Function, _line: int) -> bool:
        return isinstance(value, ast.BinOp | ast.Subscript | ast.IfExp) or (
            isinstance(value, ast.Call) and not [*program.named(called(value))]
        )

    found: dict[Place, None] = {}
    for is_sought in (is_computed, _may_differ):
        search = ValueSearch(program, is_sought=is_sought)
        for call, function in _calls_at(program, place):
            for name, position in _PEERS.items():
                search.add_argument(call, function, name, position)
        found |= dict.fromkeys(search.places())
    return [one for one in found if one.line != place.line]


def chosen_operation(program: Program, place: Place) -> list[Place]:
    """Lines that choose the reduce op of a communication call, by a test.

    Args:
        program: The user's files.
        place: The line of the call.

    Returns:
        A few lines, nearest to the call first.
    """

    def is_chosen(value: ast.expr, function: Function, line: int) -> bool:
        tested = isinstance(value, ast.IfExp | ast.Compare)
        return (
            tested or bool(_tests(function, line)) or _may_differ(value, function, line)
        )

    search = ValueSearch(program, is_sought=is_chosen)
    for call, function in _calls_at(program, place):
        search.add_argument(call, function, "op", 1)
    return [one for one in search.places() if one.line != place.line]


def _tests(function: Function, line: int) -> list[Condition]:
    """Branches around a line, and no loops."""
    return [
        one for one in conditions(function, line) if one.kind is ConditionKind.BRANCH
    ]


def is_looped_root(program: Program, place: Place) -> bool:
    """Whether a loop around a communication call goes through its roots, or peers.

    Args:
        program: The user's files.
        place: The line of the call.

    Returns:
        Whether it does, or the line is in no known file.
    """
    if program.at(place.file, place.line) is None:
        return True  # nothing is known of it
    for call, function in _calls_at(program, place):
        given = {one.arg: one.value for one in call.keywords}
        named = [given[name] for name in _PEERS if name in given] or call.args[1:2]
        if any(
            isinstance(part, ast.Name) and program.is_looped(function, part.id)
            for one in named
            for part in ast.walk(one)
        ):
            return True
    return False


def asked_for(program: Program, condition: Condition) -> list[Place]:
    """Lines that make what a condition asks for: that may differ, or is None.

    Args:
        program: The user's files.
        condition: Its tests are followed back.

    Returns:
        A few lines, nearest to the condition first.
    """

    def is_sought(value: ast.expr, function: Function, line: int) -> bool:
        parts = ast.walk(value) if isinstance(value, ast.IfExp) else [value]
        none = any(isinstance(one, ast.Constant) and one.value is None for one in parts)
        return none or _may_differ(value, function, line)

    search = ValueSearch(program, is_sought=is_sought)
    for test, _ in condition.tests:
        for part in ast.walk(test):
            if isinstance(part, ast.Name | ast.Attribute | ast.Call):
                search.add(part, condition.function, condition.line)
    return [one for one in search.places() if one != condition.place]


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
        A line under a test of the rank, or a decorator with such a test; None where
        the source shows none.
    """
    inside = RankReader(program, rank, size)
    outside = [RankReader(program, other, size) for other in others[:_MOST_ASKED]]
    for chain in guards(program, place):
        for guard in chain:
            if any(_parts(one, inside, outside) for one in guard.conditions):
                return guard.place
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


def _calls_at(program: Program, place: Place) -> Iterator[tuple[ast.Call, Function]]:
    """The calls at a line, outermost first, with the function they stand in.

    None where the line is in no known file.
    """
    function = program.at(place.file, place.line)
    if function is None:
        return
    for node in own_nodes(function.node):
        if isinstance(node, ast.Call) and (
            node.lineno <= place.line <= (node.end_lineno or node.lineno)
        ):
            yield node, function


def _may_differ(value: ast.expr, function: Function, line: int) -> bool:
    """Whether a value may differ among ranks where it is made."""
    return _differs(value) or _is_ranked(function, line)


def _differs(value: ast.expr) -> bool:
    """Whether an expression draws, asks the machine, or computes with the rank."""
    for part in ast.walk(value):
        match part:
            case ast.Call() if called(part) in DRAWS | LOCAL | RANKS:
                return True
            case ast.Attribute(attr="environ"):
                return True
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in RANKS:
                return True
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
