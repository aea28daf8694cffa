"""What expressions of the source are on one rank, as far as the source tells.

Followed are variables, attributes, arguments, returns and properties, across all files
of a program. What is not known stays unknown; of everything it is told whether the rank
has a part in it.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from distdoctor.analysis.source.conditions import Condition, conditions
from distdoctor.analysis.source.program import (
    MODULE,
    Function,
    Program,
    Use,
    all_parameters,
    called,
    defaults_of,
    own_nodes,
)


class _Unknown:
    """In place of a value that the source does not tell."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = _Unknown()


@dataclass(frozen=True, slots=True)
class Value:
    """What an expression is on a rank, and whether the rank has a part in it."""

    value: Any = UNKNOWN
    ranked: bool = False

    @property
    def is_known(self) -> bool:
        """Whether the source tells it."""
        return self.value is not UNKNOWN

    @property
    def truth(self) -> bool | None:
        """As a condition; None: not known."""
        return bool(self.value) if self.is_known else None


_NOTHING = Value()

_RANKS = frozenset(
    {"get_rank", "local_rank", "rank", "get_local_rank", "cross_rank", "get_world_rank"}
)
"""Functions of torch.distributed, Horovod, Ray and others that give the rank."""

_SIZES = frozenset({"get_world_size", "size", "local_size"})

_COORDINATES = frozenset(
    {"get_coordinate", "get_group_rank", "get_global_rank", "get_node_local_rank"}
)
"""Functions whose answer depends on the rank in a way that the source does not tell."""

_VARIABLES = frozenset(
    {"RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "PMI_RANK"}
) | {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"}

_SIZE_VARIABLES = frozenset(
    {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"}
)

_NAMES = frozenset({"rank", "local_rank", "global_rank", "process_index", "proc_id"})
"""Names that mean the rank where nothing else tells what they are."""

_SIZE_NAMES = frozenset({"world_size", "num_processes", "n_ranks", "nprocs"})

_FIRST = frozenset({"is_main_process", "is_local_main_process", "is_global_zero"})
"""Attributes and functions of trainers that are true on the first rank."""

_TRUE = frozenset({"is_initialized", "is_available"})

_BUILTINS: Mapping[str, Callable[..., Any]] = {
    "int": int,
    "str": str,
    "bool": bool,
    "float": float,
    "min": min,
    "max": max,
    "abs": abs,
    "divmod": divmod,
}

_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitXor: operator.xor,
}

_RAISED = (
    *(ArithmeticError, LookupError, TypeError, ValueError),
    *(AttributeError, AssertionError, MemoryError, RecursionError),
)
"""What operators and built-in functions raise on the values of a user's expression.

Values are what Python has as literals, and tuples of them; no code of the user's runs.
"""

_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}

_DEEPEST = 40  # expressions followed from one to the next
_MOST_WORK = 1_000  # expressions looked at for the sake of one
_MOST_VALUES = 12  # assignments, calls or functions that one name may stand for
_LONGEST = 1_000  # characters or elements of a value


class RankReader:
    """Reads a program as one rank would.

    Args:
        program: The program.
        rank: Of that rank; local ranks are taken to be the same.
        size: Number of ranks.
    """

    def __init__(self, program: Program, rank: int, size: int) -> None:
        self._program, self._rank, self._size = program, rank, size
        self._busy: set[tuple[int, int]] = set()
        self._depth = 0
        self._work = 0
        self._known: dict[int, Value] = {}

    def holds(
        self, condition: Condition, given: Mapping[str, Value] | None = None
    ) -> Value:
        """Whether a condition lets this rank through.

        Args:
            condition: Of a line.
            given: Values of the function's parameters, where they are known better.

        Returns:
            True, False or unknown, and whether the rank has a part in it.
        """
        scope = _Scope(condition.function, given or {})
        ranked = False
        unknown = condition.opaque
        failed = False
        for test, wanted in condition.tests:
            found = self._value(test, scope)
            ranked |= found.ranked
            if found.truth is None:
                unknown = True
            elif found.truth is not wanted and not condition.opaque:
                failed = True
        if failed:
            return Value(condition.negated, ranked)
        return Value(ranked=ranked) if unknown else Value(not condition.negated, ranked)

    def value(
        self,
        node: ast.expr,
        function: Function,
        given: Mapping[str, Value] | None = None,
    ) -> Value:
        """What an expression in a function is.

        Args:
            node: The expression.
            function: The function it stands in.
            given: What is known of the function's parameters, by name.

        Returns:
            The value, unknown where the source does not tell it.
        """
        return self._value(node, _Scope(function, given or {}))

    def arguments(
        self, call: ast.Call, scope: Function, given: Mapping[str, Value], of: Function
    ) -> dict[str, Value]:
        """What the parameters of a function are in one call of it.

        Args:
            call: The call.
            scope: The function that the call stands in.
            given: What is known of the parameters of `scope`, by name.
            of: The function that is called.

        Returns:
            The values by the names of the parameters of `of`; what is not known is
            unknown.
        """
        return self._arguments(call, _Scope(scope, given), of)

    # --- expressions ---

    def _value(self, node: ast.expr, scope: _Scope) -> Value:
        if not scope.given and id(node) in self._known:
            return self._known[id(node)]
        key = (id(node), id(scope.function))
        self._work = self._work + 1 if self._depth else 0
        if key in self._busy or self._depth > _DEEPEST or self._work > _MOST_WORK:
            return _NOTHING
        self._busy.add(key)
        self._depth += 1
        try:
            found = self._of(node, scope)
        except _RAISED:
            found = _NOTHING
        finally:
            self._busy.discard(key)
            self._depth -= 1
        if self._depth == 0 and not scope.given:
            self._known[id(node)] = found
        return found

    def _of(self, node: ast.expr, scope: _Scope) -> Value:
        match node:
            case ast.Constant(value=value):
                return Value(value)
            case ast.Name(id=name):
                return self._name(name, node.lineno, scope)
            case ast.Attribute():
                return self._attribute(node, scope)
            case ast.Call():
                return self._call(node, scope)
            case ast.NamedExpr(value=value):
                return self._value(value, scope)
            case ast.UnaryOp():
                return self._unary(node, scope)
            case ast.BinOp(left=left, op=op, right=right):
                apply = _BINARY.get(type(op))
                return _applied(
                    apply, [self._value(part, scope) for part in (left, right)]
                )
            case ast.BoolOp():
                return self._boolean(node, scope)
            case ast.Compare():
                return self._compare(node, scope)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._choice(test, body, orelse, scope)
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                values = [self._value(part, scope) for part in parts]
                return _applied(lambda *all_: all_, values)
            case ast.Subscript():
                return self._item(node, scope)
        inner = [
            self._value(part, scope)
            for part in ast.iter_child_nodes(node)
            if isinstance(part, ast.expr)
        ]
        return Value(ranked=any(value.ranked for value in inner))

    def _unary(self, node: ast.UnaryOp, scope: _Scope) -> Value:
        inner = self._value(node.operand, scope)
        match node.op:
            case ast.Not():
                return _applied(operator.not_, [inner])
            case ast.USub():
                return _applied(operator.neg, [inner])
        return Value(ranked=inner.ranked)

    def _boolean(self, node: ast.BoolOp, scope: _Scope) -> Value:
        values = [self._value(part, scope) for part in node.values]
        ranked = any(value.ranked for value in values)
        decisive = not isinstance(node.op, ast.And)  # an operand that decides alone
        if any(value.truth is decisive for value in values):
            return Value(decisive, ranked)
        if all(value.is_known for value in values):
            return Value(values[-1].value, ranked)
        return Value(ranked=ranked)

    def _compare(self, node: ast.Compare, scope: _Scope) -> Value:
        values = [self._value(part, scope) for part in (node.left, *node.comparators)]
        ranked = any(value.ranked for value in values)
        held = [
            _applied(_COMPARE.get(type(op)), [values[n], values[n + 1]])
            for n, op in enumerate(node.ops)
        ]
        if any(one.truth is False for one in held):
            return Value(False, ranked)
        if all(one.is_known for one in held):
            return Value(True, ranked)
        return Value(ranked=ranked)

    def _choice(
        self, test: ast.expr, body: ast.expr, orelse: ast.expr, scope: _Scope
    ) -> Value:
        which = self._value(test, scope)
        if which.truth is not None:
            chosen = self._value(body if which.truth else orelse, scope)
            return Value(chosen.value, chosen.ranked or which.ranked)
        return _either([self._value(body, scope), self._value(orelse, scope)], [which])

    # --- names ---

    def _name(self, name: str, line: int, scope: _Scope) -> Value:
        if name in scope.given:
            return scope.given[name]
        function: Function | None = scope.function
        if name == "__name__":
            return Value("__main__")
        while function is not None:
            if self._program.is_looped(function, name):
                return _NOTHING
            uses = self._program.assigned.get((function, name), [])
            if uses:
                at = line if function is scope.function else 0
                return self._assigned(uses, at, scope)
            if name in all_parameters(function):
                return self._parameter(name, function)
            if self._program.binds(function, name):
                return _by_name(name, self._rank, self._size)
            function = function.outer
        for module in self._program.functions:  # it may be imported
            if module.name == MODULE and (
                uses := self._program.assigned.get((module, name), [])
            ):
                return self._assigned(uses, 0, _Scope(module, {}))
        return _by_name(name, self._rank, self._size)

    def _assigned(self, uses: list[Use], line: int, scope: _Scope) -> Value:
        """The value that the assignments of a variable leave, seen from a line."""
        if len(uses) > _MOST_VALUES:
            return _NOTHING
        left: list[Value] = []
        ranked = False
        before = [use for use in uses if not line or use.line < line] or uses
        for use in sorted(before, key=lambda use: use.line):
            given = scope.given if use.function is scope.function else {}
            reached = True if len(uses) == 1 else self._reached(use, given)
            found = self._value(use.node, _Scope(use.function, given))
            if isinstance(reached, Value):
                ranked |= reached.ranked
                if reached.truth is False:
                    continue
                if reached.truth is True:
                    left.clear()
            left.append(found)
        if not left:
            return Value(ranked=ranked)
        result = _either(left, [])
        return Value(result.value, result.ranked or ranked)

    def _reached(self, use: Use, given: Mapping[str, Value]) -> Value:
        """Whether this rank comes to an assignment."""
        return self.all_hold(conditions(use.function, use.line), given)

    def all_hold(
        self, every: Iterable[Condition], given: Mapping[str, Value] | None = None
    ) -> Value:
        """Whether all of these let this rank through.

        Args:
            every: Conditions on one way.
            given: What is known of the function's parameters, by name.

        Returns:
            False if one surely fails, True if all surely hold, and else unknown.
        """
        found = [self.holds(condition, given) for condition in every]
        ranked = any(one.ranked for one in found)
        if any(one.truth is False for one in found):
            return Value(False, ranked)
        if all(one.truth for one in found):
            return Value(True, ranked)
        return Value(ranked=ranked)

    def _parameter(self, name: str, function: Function) -> Value:
        """A parameter, as the calls of its function in the program give it."""
        uses = self._program.calls.get(_callable_name(function), [])
        found = []
        for use in uses[:_MOST_VALUES]:
            assert isinstance(use.node, ast.Call)
            given = self._arguments(use.node, _Scope(use.function, {}), function)
            found.append(given.get(name, _NOTHING))
        known = [value for value in found if value.is_known or value.ranked]
        if known and len(uses) <= _MOST_VALUES:
            return _either(found, [])
        return _by_name(name, self._rank, self._size)

    def _arguments(
        self, call: ast.Call, scope: _Scope, function: Function
    ) -> dict[str, Value]:
        names = function.parameters
        if function.is_method and names and names[0] in {"self", "cls"}:
            names = names[1:]
        given = {}
        for name, node in zip(names, call.args, strict=False):
            if isinstance(node, ast.Starred):
                break
            given[name] = self._value(node, scope)
        for keyword in call.keywords:
            if keyword.arg:
                given[keyword.arg] = self._value(keyword.value, scope)
        outer = _Scope(function.outer or function, {})
        for name, default in defaults_of(function).items():
            if name not in given:
                given[name] = self._value(default, outer)
        return given

    # --- attributes ---

    def _attribute(self, node: ast.Attribute, scope: _Scope) -> Value:
        name = node.attr
        uses = self._program.stored.get(name, [])
        properties = [
            function
            for function in self._program.named(name)
            if function.is_method and _is_property(function)
        ]
        if properties:
            return _either(
                [self._returned(f, {}) for f in properties[:_MOST_VALUES]], []
            )
        if not uses:
            uses = self._program.keywords.get(name, [])
        if 0 < len(uses) <= _MOST_VALUES:
            found = []
            for use in uses:
                value = self._value(use.node, _Scope(use.function, {}))
                if value.is_known and value.value is None:
                    continue  # a mere declaration
                found.append(value)
            known = [value for value in found if value.is_known or value.ranked]
            if known:
                return _either(found, [])
        if name in _FIRST:
            return Value(self._rank == 0, True)
        base = self._value(node.value, scope)
        return _by_name(name, self._rank, self._size, Value(ranked=base.ranked))

    def _item(self, node: ast.Subscript, scope: _Scope) -> Value:
        key = self._value(node.slice, scope)
        if isinstance(key.value, str):
            if key.value in _VARIABLES:
                return Value(str(self._rank), True)
            if key.value in _SIZE_VARIABLES:
                return Value(str(self._size))
            if key.value in _NAMES | _SIZE_NAMES:
                return _by_name(key.value, self._rank, self._size)
        return _applied(operator.getitem, [self._value(node.value, scope), key])

    # --- calls ---

    def _call(self, node: ast.Call, scope: _Scope) -> Value:
        name = called(node)
        own = [f for f in self._program.named(name) if not _is_property(f)]
        if own:
            if len(own) > _MOST_VALUES:
                return _NOTHING
            found = [
                self._returned(function, self._arguments(node, scope, function))
                for function in own
            ]
            result = _either(found, [])
            if result.is_known or name not in _RANKS:
                return result
        if isinstance(node.func, ast.Name):
            value = self._lambda(node.func, scope)
            if value is not None:
                return value
        if (known := self._of_library(node, name, scope)) is not None:
            return known
        arguments = [self._value(part, scope) for part in node.args]
        arguments += [self._value(part.value, scope) for part in node.keywords]
        if isinstance(node.func, ast.Name) and name in _BUILTINS and not node.keywords:
            return _applied(_BUILTINS[name], arguments)
        receiver = Value()
        if isinstance(node.func, ast.Attribute):
            receiver = self._value(node.func.value, scope)
        return Value(ranked=any(part.ranked for part in [*arguments, receiver]))

    def _lambda(self, name: ast.Name, scope: _Scope) -> Value | None:
        for function in (scope.function, self._program.module_of(scope.function.file)):
            if function is None:
                continue
            for use in self._program.assigned.get((function, name.id), []):
                if isinstance(use.node, ast.Lambda):
                    return self._value(use.node.body, _Scope(use.function, {}))
        return None

    def _of_library(self, node: ast.Call, name: str, scope: _Scope) -> Value | None:
        plain = not node.args and not node.keywords
        if name in _RANKS:
            return Value(self._rank, True) if plain else Value(ranked=True)
        if name in _SIZES and plain:
            return Value(self._size)
        if name in _COORDINATES:
            return Value(ranked=True)
        if name in _FIRST:
            return Value(self._rank == 0, True)
        if name in _TRUE:
            return Value(True)
        if name in {"get", "getenv", "pop"} and node.args:
            key = self._value(node.args[0], scope).value
            if isinstance(key, str):
                if key in _VARIABLES:
                    return Value(str(self._rank), True)
                if key in _SIZE_VARIABLES:
                    return Value(str(self._size))
        return None

    def _returned(self, function: Function, given: Mapping[str, Value]) -> Value:
        """What a function gives back, called with these arguments."""
        key = (id(function), 0)
        if key in self._busy or self._depth > _DEEPEST:
            return _NOTHING
        self._busy.add(key)
        try:
            return self._result(function, given)
        finally:
            self._busy.discard(key)

    def _result(self, function: Function, given: Mapping[str, Value]) -> Value:
        returns = [
            node for node in own_nodes(function.node) if isinstance(node, ast.Return)
        ]
        if len(returns) > _MOST_VALUES:
            return _NOTHING
        left: list[Value] = []
        conditional: list[Value] = []
        for node in sorted(returns, key=lambda one: one.lineno):
            reached = self.all_hold(conditions(function, node.lineno), given)
            conditional.append(Value(ranked=reached.ranked))
            if reached.truth is False:
                continue
            value = Value(None)
            if node.value is not None:
                value = self._value(node.value, _Scope(function, given))
            left.append(value)
            if reached.truth is True:
                break
        return _either(left or [_NOTHING], conditional)


@dataclass(frozen=True, slots=True)
class _Scope:
    """Where an expression stands, and what is known of the parameters there."""

    function: Function
    given: Mapping[str, Value]


def _applied(apply: Callable[..., Any] | None, values: list[Value]) -> Value:
    ranked = any(value.ranked for value in values)
    if apply is None or not all(value.is_known for value in values):
        return Value(ranked=ranked)
    if any(_is_long(value.value) for value in values):
        return Value(ranked=ranked)
    return Value(apply(*(value.value for value in values)), ranked)


def _is_long(value: object) -> bool:
    if isinstance(value, int):
        return abs(value) > 1 << 40
    return isinstance(value, str | bytes | tuple) and len(value) > _LONGEST


def _either(values: list[Value], why: list[Value]) -> Value:
    """One of these values, and nobody knows which."""
    ranked = any(value.ranked for value in [*values, *why])
    first = values[0]
    alike = all(
        value.is_known and first.is_known and value.value == first.value
        for value in values
    )
    return Value(first.value if alike else UNKNOWN, ranked)


def _by_name(name: str, rank: int, size: int, otherwise: Value = _NOTHING) -> Value:
    if name in _NAMES:
        return Value(rank, True)
    if name in _SIZE_NAMES:
        return Value(size)
    if name.endswith("_rank"):
        return Value(ranked=True)
    return otherwise


def _callable_name(function: Function) -> str:
    """The simple name by which calls reach a function: a class's for `__init__`."""
    if function.simple_name == "__init__":
        return function.name.split(".")[-2]
    return function.simple_name


def _is_property(function: Function) -> bool:
    decorators = getattr(function.node, "decorator_list", [])
    names = {ast.unparse(node).rpartition(".")[2] for node in decorators}
    return bool(names & {"property", "cached_property"})
