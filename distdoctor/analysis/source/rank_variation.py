"""Whether an expression may be another on each rank, as far as the source tells.

What a rank draws, reads or is given by its data is its own. What went through a
collective is agreed on. Constants, options of the command line and counters of rounds
are common. Followed are variables, attributes, arguments, returns and properties; what
is found says where ranks may part, and proves nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from enum import IntEnum

from distdoctor.analysis.source.classes import Classes
from distdoctor.analysis.source.conditions import Condition, ConditionKind, conditions
from distdoctor.analysis.source.program import Function, Program, Use, called, own_nodes
from distdoctor.analysis.source.rank_origins import DRAWS, LOCAL
from distdoctor.model.events import Place


class Nature(IntEnum):
    """What an expression is to the ranks of a job; the greater decides."""

    COMMON = 0
    OPEN = 1  # the source does not tell
    AGREED = 2  # by a collective
    LOCAL = 3


_AGREE = frozenset(
    {"all_reduce", "broadcast", "all_gather", "all_gather_object", "broadcast_object"}
    | {"broadcast_object_list", "all_gather_into_tensor", "reduce_scatter", "allreduce"}
    | {"reduce_scatter_tensor", "scatter_object_list", "allgather", "bcast"}
)
"""Operations after which the ranks know what they were given, or give back, alike."""

_COMMON = frozenset(
    {"parse_args", "parse_known_args", "getenv", "get_world_size", "is_initialized"}
    | {"parameters", "named_parameters", "modules", "named_modules", "children"}
)
"""Functions whose answer is one for the whole job: options, the shape of the model."""

_RANKS = frozenset(
    {"get_rank", "get_local_rank", "get_node_local_rank", "rank", "local_rank"}
    | {"global_rank", "process_index", "is_main_process", "is_global_zero"}
    | {"get_world_rank"}
    | {"RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "PMI_RANK"}
)
"""Functions, variables, and variables of the environment, that tell ranks apart."""

_MOST_WORK = 400  # expressions looked at for the sake of one
_MOST_USES = 12  # assignments, calls or functions that one name may stand for
_MOST_CHANGES = 3


def nature(program: Program, node: ast.expr, function: Function) -> Nature:
    """Whether an expression in a function may be another on each rank.

    Args:
        program: The user's files.
        node: The expression.
        function: The function it stands in.

    Returns:
        What is known of it; `COMMON` says that nothing was found by which it would
        differ.
    """
    return _Reader(program).of(node, function)


def nature_of(program: Program, condition: Condition) -> Nature:
    """Whether a condition may let one rank through and not another.

    Args:
        program: The user's files.
        condition: A condition on the way to a line.

    Returns:
        The greatest nature of its tests.
    """
    if condition.kind is ConditionKind.HANDLER:
        return Nature.LOCAL
    found = (nature(program, test, condition.function) for test, _ in condition.tests)
    return max(found, default=Nature.COMMON)


def changes(program: Program, node: ast.expr, function: Function) -> list[Place]:
    """Lines in which that is made by which an expression differs among ranks.

    Args:
        program: The user's files.
        node: The expression.
        function: The function it stands in.

    Returns:
        A few lines, each once.
    """
    reader = _Reader(program)
    found: dict[Place, None] = {}
    for use in _made_of(program, node, function, set()):
        if reader.of_use(use) is Nature.LOCAL:
            found.setdefault(Place(use.function.file, use.line, use.function.name))
        if len(found) >= _MOST_CHANGES:
            break
    return list(found)


def _made_of(
    program: Program, node: ast.expr, function: Function, seen: set[int]
) -> Iterator[Use]:
    """Assignments, and what properties and functions give back, behind a test."""
    for part in ast.walk(node):
        match part:
            case ast.Name(id=name, ctx=ast.Load()):
                yield from program.assigned.get((function, name), ())
            case ast.Attribute(attr=name):
                for use in program.stored.get(name, ()):
                    if use.function.simple_name != "__init__":
                        yield use
        for inner in _functions(program, part):
            if id(inner) not in seen:
                seen.add(id(inner))
                for use in _returned(inner):
                    yield from _made_of(program, use.node, inner, seen)
                    yield use


def _functions(program: Program, node: ast.AST) -> list[Function]:
    """The user's functions that an expression calls, or asks as a property."""
    match node:
        case ast.Call() if name := called(node):
            found = [f for f in program.named(name) if not is_property(f)]
        case ast.Attribute(attr=name):
            found = [f for f in program.named(name) if is_property(f)]
        case _:
            found = []
    return found if len(found) <= _MOST_USES else []


def _returned(function: Function) -> list[Use]:
    """What a function gives back, each with the line that does."""
    return [
        Use(function, node.value, node.lineno)
        for node in own_nodes(function.node)
        if isinstance(node, ast.Return) and node.value is not None
    ]


def is_property(function: Function) -> bool:
    """Whether a function is asked for like an attribute.

    Args:
        function: A function of the program.

    Returns:
        Whether it is decorated as a property, a cached one included.
    """
    decorators = getattr(function.node, "decorator_list", [])
    names = {ast.unparse(node).rpartition(".")[2] for node in decorators}
    return bool(names & {"property", "cached_property"})


class _Reader:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._classes = Classes(program)
        self._known: dict[tuple[int, int], Nature] = {}
        self._work = 0

    def of(self, node: ast.expr, function: Function) -> Nature:
        key = (id(node), id(function))
        if key not in self._known:
            self._work += 1
            # What rests on itself, as a counter does, is as the rest of it.
            self._known[key] = Nature.COMMON
            if self._work > _MOST_WORK:
                return Nature.OPEN
            self._known[key] = self._of(node, function)
        return self._known[key]

    def of_use(self, use: Use) -> Nature:
        """What is assigned, and whether all ranks come to the assignment."""
        return max(self.of(use.node, use.function), self._reached(use))

    def _of(self, node: ast.expr, function: Function) -> Nature:
        match node:
            case ast.Lambda():
                return Nature.COMMON
            case ast.Constant(value=value):
                is_rank = isinstance(value, str) and value in _RANKS
                return Nature.LOCAL if is_rank else Nature.COMMON
            case ast.Name(id=name):
                return self._name(name, function)
            case ast.Attribute():
                return self._attribute(node, function)
            case ast.Call():
                return self._call(node, function)
            case ast.Yield() | ast.YieldFrom() | ast.Await():
                return Nature.OPEN
        return self._most(_inner(node), function)

    def _most(self, nodes: Iterable[ast.expr], function: Function) -> Nature:
        return max((self.of(node, function) for node in nodes), default=Nature.COMMON)

    def _uses(self, uses: list[Use]) -> Nature:
        if len(uses) > _MOST_USES:
            return Nature.OPEN
        return max((self.of_use(use) for use in uses), default=Nature.COMMON)

    def _reached(self, use: Use) -> Nature:
        """A count of what happens to one rank is its own, though it counts by one."""
        tests = [
            test
            for condition in conditions(use.function, use.line)
            if condition.kind in {ConditionKind.BRANCH, ConditionKind.LEAVING}
            for test, _ in condition.tests
        ]
        found = self._most(tests, use.function)
        return found if found is Nature.LOCAL else Nature.COMMON

    def _name(self, name: str, function: Function) -> Nature:
        scope: Function | None = function
        while scope is not None:
            if self._is_agreed(name, scope, 0):
                return Nature.AGREED
            if self._program.is_looped(scope, name):
                return self._element(name, scope)
            if uses := self._program.assigned.get((scope, name)):
                return self._uses(uses)
            if name in _parameters(scope):
                return self._parameter(name, scope)
            if self._program.binds(scope, name):
                return self._unpacked(name, scope)
            scope = scope.outer
        return Nature.LOCAL if name in _RANKS else Nature.COMMON  # a function, a module

    def _is_agreed(self, name: str, function: Function, depth: int) -> bool:
        """Whether a collective is given the variable, maybe by a helper."""
        for node in own_nodes(function.node):
            if not isinstance(node, ast.Call):
                continue
            given = [n for n, one in enumerate(node.args) if _holds(one, name)]
            keyed = [k.arg for k in node.keywords if k.arg and _holds(k.value, name)]
            if not given and not keyed:
                continue
            if called(node) in _AGREE and called(node) not in _names(self._program):
                return True
            if depth < _DEEPEST_HELPER:
                for helper in _functions(self._program, node):
                    names = helper.parameters[helper.is_method :]
                    taken = [names[n] for n in given if n < len(names)] + keyed
                    if any(self._is_agreed(one, helper, depth + 1) for one in taken):
                        return True
        return False

    def _element(self, name: str, function: Function) -> Nature:
        """A loop's variable: a counter is common where its range is."""
        loops = (
            node
            for node in own_nodes(function.node)
            if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension)
        )
        return self._most(
            (
                source
                for node in loops
                if name in _names_in(node.target)
                for source in _sources(node.target, node.iter, name)
            ),
            function,
        )

    def _unpacked(self, name: str, function: Function) -> Nature:
        """One of several variables that are assigned together."""
        found = [
            self.of(node.value, function)
            for node in own_nodes(function.node)
            if isinstance(node, ast.Assign)
            and any(name in _names_in(target) for target in node.targets)
        ]
        return max(found, default=Nature.OPEN)

    def _parameter(self, name: str, function: Function) -> Nature:
        if name in {"self", "cls"}:
            return Nature.COMMON
        callee = function.simple_name
        if callee == "__init__":
            callee = function.name.split(".")[-2]
        uses = self._program.calls.get(callee, [])
        if not uses or len(uses) > _MOST_USES:
            return Nature.OPEN
        names = function.parameters[function.is_method :]
        found = [Nature.COMMON]  # the default of those that leave it out
        for use in uses:
            assert isinstance(use.node, ast.Call)
            given = [k.value for k in use.node.keywords if k.arg == name]
            if name in names and names.index(name) < len(use.node.args):
                given.append(use.node.args[names.index(name)])
            found.append(self._most(given, use.function))
        return max(found)

    def _attribute(self, node: ast.Attribute, function: Function) -> Nature:
        if node.attr == "environ":
            return Nature.COMMON  # but for what `_RANKS` has of it
        asked = _functions(self._program, node)
        found = [self._uses(_returned(inner)) for inner in asked]
        if uses := self._program.stored.get(node.attr):
            found.append(self._uses(uses))
        if not found and node.attr in _RANKS:
            return Nature.LOCAL
        return max(found) if found else self.of(node.value, function)

    def _call(self, node: ast.Call, function: Function) -> Nature:
        name = called(node)
        own = _functions(self._program, node)
        if own:
            return max(self._uses(_returned(inner)) for inner in own)
        if name in _AGREE:
            return Nature.AGREED
        if name in _COMMON:
            return self._most(node.args, function)
        if name in DRAWS | LOCAL | _RANKS:
            return Nature.LOCAL
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        found = self._most(given, function)
        if isinstance(node.func, ast.Attribute):
            found = max(found, self.of(node.func.value, function))
        known = isinstance(node.func, ast.Name) and (
            name in _PLAIN or self._classes.named(name) is not None
        )
        return found if known else max(found, Nature.OPEN)  # it may ask the machine


_DEEPEST_HELPER = 2

_PLAIN = frozenset(
    {"range", "len", "int", "float", "bool", "str", "min", "max", "abs", "sum", "zip"}
    | {"enumerate", "list", "tuple", "dict", "set", "sorted", "reversed", "isinstance"}
)
"""Functions that give back what their arguments make."""


def _inner(node: ast.AST) -> Iterator[ast.expr]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        elif isinstance(child, ast.comprehension):
            yield from (child.iter, *child.ifs)


def _sources(target: ast.expr, iterated: ast.expr, name: str) -> list[ast.expr]:
    """What a loop's variable is an element of; none: it counts rounds."""
    if not isinstance(target, ast.Tuple) or not isinstance(iterated, ast.Call):
        return [iterated]
    parts: list[tuple[ast.expr, list[ast.expr]]] = []
    match called(iterated):
        case "enumerate" if len(target.elts) == 2:
            parts = [(target.elts[0], []), (target.elts[1], iterated.args[:1])]
        case "zip" if len(target.elts) == len(iterated.args):
            pairs = zip(target.elts, iterated.args, strict=True)
            parts = [(part, [given]) for part, given in pairs]
    found = [sources for part, sources in parts if name in _names_in(part)]
    plain = not any(
        isinstance(one, ast.Starred) for one in [*target.elts, *iterated.args]
    )
    return found[0] if len(found) == 1 and plain else [iterated]


def _names(program: Program) -> set[str]:
    return {function.simple_name for function in program.functions}


def _names_in(node: ast.expr) -> list[str]:
    return [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]


def _holds(node: ast.expr, name: str) -> bool:
    """Whether an argument is the variable itself, or a list of such."""
    match node:
        case ast.Name(id=other):
            return other == name
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return any(_holds(part, name) for part in parts)
        case ast.Starred(value=inner):
            return _holds(inner, name)
    return False


def called_of(node: ast.expr) -> str:
    """The simple name of what an expression calls; "" if it is no call.

    Args:
        node: The expression.

    Returns:
        The name.
    """
    return called(node) if isinstance(node, ast.Call) else ""


def _parameters(function: Function) -> set[str]:
    arguments = getattr(function.node, "args", None)
    if arguments is None:
        return set()
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return {each.arg for each in every}
