"""What an expression is worth on one rank, as far as its text tells.

Nothing is run: numbers, texts and truth values are computed that rest on the rank, on
the number of ranks and on constants. All else is unknown.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any, Protocol

from distdoctor.lint.code_base import ProgramFile, Scope
from distdoctor.lint.communication import REPLICATES, SHARDS
from distdoctor.lint.rank_words import (
    FIRSTS,
    RANK_CALLS,
    RANKS,
    SIZE_CALLS,
    SIZES,
    VARIABLES,
)

SIZE = 4
"""Ranks that are thought of: enough to tell the first, the last, odd and even."""


class Vague(Enum):
    """What is not known of a value."""

    UNKNOWN = "unknown"  # what it is; it is taken to be the same on all ranks
    LOCAL = "local"  # each rank has one of its own: its loss, its clock


UNKNOWN, LOCAL = Vague.UNKNOWN, Vague.LOCAL


class Kind(StrEnum):
    """Of things that a program makes."""

    REPLICATED = "replicated"  # a model that DDP has wrapped
    SHARDED = "sharded"  # one that FSDP has
    SHARE = "share"  # of data: every n-th item, from the rank's number on
    OBJECT = "object"  # of a class of the program's
    JOIN = "join"  # a context that waits for ranks with more data
    FUNCTION = "function"  # of the program's, not called


@dataclass(frozen=True, slots=True)
class MadeThing:
    """A thing that a program makes.

    Attributes:
        kind: Which.
        source: The file of its class.
        name: Of its class.
    """

    kind: Kind
    source: ProgramFile | None = None
    name: str = ""


Value = Any
"""A number, a text, a truth value, None, a tuple of them, `Made`, or `Vague`."""


@dataclass(eq=False, slots=True)
class RankFrame:
    """A function that is being gone through, and what its variables are."""

    scope: Scope
    values: dict[str, Value] = field(default_factory=dict)
    owner: MadeThing | None = None  # what `self` is


class Caller(Protocol):
    """Goes through functions of the program."""

    def returned(self, call: ast.Call, frame: RankFrame) -> Value:
        """What a function of the program gives back."""


_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: lambda a, b: a is b if a is None or b is None else a == b,
    ast.IsNot: lambda a, b: a is not b if a is None or b is None else a != b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}

_COMPUTED: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Div: operator.truediv,
}

_ASK_RANK = frozenset({"get_rank", "get_local_rank", "get_global_rank"})
"""Functions that tell the rank, wherever they are written."""

_CLOCKS = frozenset(
    {"time.time", "time.monotonic", "time.perf_counter", "time.process_time"}
    | {"datetime.datetime.now", "datetime.now"}
)
_LOOKS = frozenset(
    {"item", "any", "all", "mean", "sum", "detach", "float", "max", "isfinite"}
    | {"isnan", "isinf", "int", "bool", "abs", "cpu"}
)
_NUMERIC = frozenset({"isnan", "isinf", "isfinite", "float", "bool", "abs", "any"})
_NUMERIC_HOMES = frozenset({"math", "torch", "numpy", ""})
_TRUE_CALLS = frozenset({"is_initialized", "is_available", "is_torchelastic_launched"})
_SHARES = frozenset(
    {"Subset", "DataLoader", "TensorDataset", "list", "enumerate", "tqdm"}
)


class ValueReader:
    """Reads expressions as one rank would compute them.

    Args:
        rank: The rank.
        caller: Goes through functions of the program.
        known: What attributes, and variables of files, are worth on this rank; it is
            added to.
    """

    def __init__(
        self, rank: int, caller: Caller, known: dict[tuple[int, str, str, bool], Value]
    ) -> None:
        self.rank = rank
        self._caller = caller
        self._depth = 0
        self.is_ranked = False  # whether the rank, or a rank's own, was read
        self.known: dict[tuple[int, str, str, bool], Value] = known

    def value(self, node: ast.expr, frame: RankFrame) -> Value:
        """What an expression is worth."""
        read = _READERS.get(type(node))
        if read is None or self._depth > 40:
            return UNKNOWN
        self._depth += 1
        try:
            found = read(self, node, frame)
        finally:
            self._depth -= 1
        if found is LOCAL:
            self.is_ranked = True
        return found

    def _constant(self, node: ast.Constant, _frame: RankFrame) -> Value:
        return node.value

    def _name(self, node: ast.Name, frame: RankFrame) -> Value:
        name = node.id
        found = frame.values.get(name)
        if found is None and name not in frame.values:
            source = frame.scope.source
            known = source.globals.get(name, ())
            if len(known) == 1 and name not in source.imports:
                given = [(source.module, known[0])]
                found = self._stored(source, ("", name, True), given)
            elif name in source.classes or (
                source.named(name) and name not in frame.scope.parameters
            ):
                return MadeThing(Kind.FUNCTION, source, name)
            else:
                found = UNKNOWN
        return self._by_name(name) if found is UNKNOWN else found

    def _by_name(self, name: str) -> Value:
        """What a value is worth of which only the name is known."""
        if name in SIZES:
            return SIZE
        if name not in RANKS and name not in FIRSTS:
            return UNKNOWN
        self.is_ranked = True
        return self.rank if name in RANKS else self.rank == 0

    def _attribute(self, node: ast.Attribute, frame: RankFrame) -> Value:
        source = frame.scope.source
        of = node.value
        own = isinstance(of, ast.Name) and of.id == "self"
        if node.attr == "module" and isinstance(self.value(of, frame), MadeThing):
            return UNKNOWN  # the bare model
        owner = frame.scope.owner or (frame.owner.name if frame.owner else "")
        outer = frame.scope.outer
        while own and not owner and outer is not None:
            owner, outer = outer.owner, outer.outer
        key = owner if own else ""
        assigned = source.attributes.get((key, node.attr), ())
        if assigned:
            found = self._stored(source, (key, node.attr, False), assigned[:4])
            if found is not UNKNOWN and found is not None:
                return found
        return self._by_name(node.attr)

    def _stored(
        self,
        source: ProgramFile,
        key: tuple[str, str, bool],
        assigned: Sequence[tuple[Scope, ast.expr]],
    ) -> Value:
        """What an attribute, or a variable of a file, is worth by all it is given."""
        at = (id(source), *key)
        if at not in self.known:
            self.known[at] = UNKNOWN  # while it is asked for: it may rest on itself
            values = [self.value(value, RankFrame(scope)) for scope, value in assigned]
            made = [one for one in values if isinstance(one, MadeThing)]
            if made:
                self.known[at] = made[-1]
            elif len(values) == 1:
                self.known[at] = values[0]
        return self.known[at]

    def _call(self, node: ast.Call, frame: RankFrame) -> Value:
        source = frame.scope.source
        func = node.func
        dotted = source.dotted(func)
        start, _, last = dotted.rpartition(".")
        if not dotted:
            last = func.attr if isinstance(func, ast.Attribute) else ""
        known = self._of_library(node, dotted, start, last)
        if known is not UNKNOWN:
            return known
        if (
            last in {"int", "bool", "str", "float"}
            and len(node.args) == 1
            and not start
        ):
            return _converted(last, self.value(node.args[0], frame))
        if dotted in {"os.environ.get", "os.getenv", "environ.get", "getenv"}:
            name = self.value(node.args[0], frame) if node.args else UNKNOWN
            return self._variable(name)
        if dotted in _CLOCKS:
            return LOCAL
        if last in _SHARES and node.args:
            inner = self.value(node.args[-1 if last == "Subset" else 0], frame)
            if isinstance(inner, MadeThing) and inner.kind is Kind.SHARE:
                return inner
        if last == "range":
            return self._range(node, frame)
        if last in _NUMERIC and start in _NUMERIC_HOMES and len(node.args) == 1:
            return _only_local(self.value(node.args[0], frame))
        if isinstance(func, ast.Attribute) and last in _LOOKS and not node.args:
            return _only_local(self.value(func.value, frame))
        result = self._caller.returned(node, frame)
        if result is not UNKNOWN:
            return result
        if last in _ASK_RANK and not node.args:
            self.is_ranked = True
            return self.rank
        if last in FIRSTS:
            self.is_ranked = True
            return self.rank == 0
        return UNKNOWN

    def _of_library(self, node: ast.Call, dotted: str, start: str, last: str) -> Value:
        if dotted in REPLICATES:
            return MadeThing(Kind.REPLICATED)
        if dotted in SHARDS:
            return MadeThing(Kind.SHARDED)
        if last == "Join" and start.startswith("torch.distributed"):
            return MadeThing(Kind.JOIN)
        if last == "join" and isinstance(node.func, ast.Attribute) and not node.args:
            return MadeThing(Kind.JOIN)
        world = start.startswith(("torch.distributed", "horovod.", "xla_model"))
        if world and not node.args and not node.keywords:
            if last in RANK_CALLS:
                self.is_ranked = True
                return self.rank
            if last in SIZE_CALLS:
                return SIZE
        if start == "torch.distributed" and last in _TRUE_CALLS:
            return True
        return UNKNOWN

    def _variable(self, name: Value) -> Value:
        if name in VARIABLES:
            self.is_ranked = True
            return str(self.rank)
        return str(SIZE) if name == "WORLD_SIZE" else UNKNOWN

    def _range(self, node: ast.Call, frame: RankFrame) -> Value:
        ends = [self.value(one, frame) for one in node.args]
        if node.keywords or not ends or not all(type(end) is int for end in ends):
            return UNKNOWN
        try:
            found = range(*ends)
        except (TypeError, ValueError):
            return UNKNOWN
        return found if len(found) <= SIZE else UNKNOWN

    def _subscript(self, node: ast.Subscript, frame: RankFrame) -> Value:
        source = frame.scope.source
        if source.dotted(node.value) in {"os.environ", "environ"}:
            return self._variable(self.value(node.slice, frame))
        if isinstance(node.slice, ast.Slice):
            step, lower = node.slice.step, node.slice.lower
            if (
                step is not None
                and lower is not None
                and self.value(step, frame) == SIZE
                and self.value(lower, frame) == self.rank
                and self.value(lower, frame) is not True
            ):
                return MadeThing(Kind.SHARE)
        return UNKNOWN

    def _compare(self, node: ast.Compare, frame: RankFrame) -> Value:
        left = self.value(node.left, frame)
        result: Value = True
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.value(right_node, frame)
            if LOCAL in (left, right) and not isinstance(op, ast.Is | ast.IsNot):
                return LOCAL
            if isinstance(left, MadeThing) and not isinstance(right, Vague | MadeThing):
                return isinstance(op, ast.NotEq | ast.IsNot | ast.NotIn)
            if right is UNKNOWN and isinstance(op, ast.In | ast.NotIn):
                # Whether it is one of those: of the ranks, some are and some are not.
                return LOCAL if self._is_rank(left, node.left, frame) else UNKNOWN
            if UNKNOWN in (left, right) or isinstance(left, MadeThing):
                return UNKNOWN
            try:
                holds = _COMPARED[type(op)](left, right)
            except (TypeError, KeyError):
                return UNKNOWN
            if not holds:
                result = False
                break
            left = right
        return result

    def _is_rank(self, value: Value, node: ast.expr, frame: RankFrame) -> bool:
        """Whether a value is the rank itself, and no number that is alike by chance."""
        if type(value) is not int or value != self.rank:
            return False
        if isinstance(node, ast.Call):
            return True
        if not isinstance(node, ast.Name | ast.Attribute):
            return False
        name = node.attr if isinstance(node, ast.Attribute) else node.id
        return name in RANKS and frame.values.get(name, UNKNOWN) in {UNKNOWN, value}

    def _bool(self, node: ast.BoolOp, frame: RankFrame) -> Value:
        decides = isinstance(node.op, ast.Or)
        vague: Value = None
        value: Value = UNKNOWN
        for one in node.values:
            value = self.value(one, frame)
            if isinstance(value, Vague):
                vague = LOCAL if LOCAL in (vague, value) else UNKNOWN
            elif _holds(value) is decides:
                return value
        return value if vague is None else vague

    def _unary(self, node: ast.UnaryOp, frame: RankFrame) -> Value:
        value = self.value(node.operand, frame)
        if isinstance(value, Vague):
            return value
        if isinstance(node.op, ast.Not):
            return not _holds(value)
        if isinstance(node.op, ast.USub) and isinstance(value, int | float):
            return -value
        return UNKNOWN

    def _binary(self, node: ast.BinOp, frame: RankFrame) -> Value:
        left, right = self.value(node.left, frame), self.value(node.right, frame)
        if LOCAL in (left, right):
            return LOCAL
        if right is UNKNOWN and isinstance(node.op, ast.Mod | ast.FloorDiv):
            # The rank on its node, or the node: who knows how many are on one?
            return LOCAL if self._is_rank(left, node.left, frame) else UNKNOWN
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        compute = _COMPUTED.get(type(node.op))
        if not numbers or compute is None:
            return UNKNOWN
        try:
            return compute(left, right)
        except (ZeroDivisionError, OverflowError):
            return UNKNOWN

    def _choice(self, node: ast.IfExp, frame: RankFrame) -> Value:
        test = self.value(node.test, frame)
        if isinstance(test, Vague):
            return UNKNOWN
        return self.value(node.body if _holds(test) else node.orelse, frame)

    def _several(self, node: ast.Tuple | ast.List | ast.Set, frame: RankFrame) -> Value:
        values = tuple(self.value(one, frame) for one in node.elts)
        return UNKNOWN if UNKNOWN in values or LOCAL in values else values

    def _walrus(self, node: ast.NamedExpr, frame: RankFrame) -> Value:
        return self.value(node.value, frame)


def _holds(value: Value) -> bool:
    return True if isinstance(value, MadeThing) else bool(value)


def _only_local(value: Value) -> Value:
    return LOCAL if value is LOCAL else UNKNOWN


def _converted(name: str, value: Value) -> Value:
    if isinstance(value, Vague | MadeThing):
        return _only_local(value)
    try:
        return {"int": int, "bool": bool, "str": str, "float": float}[name](value)
    except (TypeError, ValueError, OverflowError):
        return UNKNOWN


_READERS: dict[type[ast.expr], Callable[[ValueReader, Any, RankFrame], Value]] = {
    ast.Constant: ValueReader._constant,
    ast.Name: ValueReader._name,
    ast.Attribute: ValueReader._attribute,
    ast.Call: ValueReader._call,
    ast.Subscript: ValueReader._subscript,
    ast.Compare: ValueReader._compare,
    ast.BoolOp: ValueReader._bool,
    ast.UnaryOp: ValueReader._unary,
    ast.BinOp: ValueReader._binary,
    ast.IfExp: ValueReader._choice,
    ast.Tuple: ValueReader._several,
    ast.List: ValueReader._several,
    ast.Set: ValueReader._several,
    ast.NamedExpr: ValueReader._walrus,
}
