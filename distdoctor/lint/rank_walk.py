"""Goes through a program's text as one rank would, and notes what it communicates.

A test that the text does not decide is decided by an oracle, for all ranks alike; so
two ranks that come to other calls were parted by what the text tells of the rank.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from distdoctor.lint.call_graph import ONE_RANK, CallGraph, decorated
from distdoctor.lint.code_base import Scope
from distdoctor.lint.communication import (
    ENDS,
    REPLICATES,
    SHARDS,
    WRITES,
    Communication,
    Deed,
)
from distdoctor.lint.mattering import Mattering
from distdoctor.lint.model_calls import model_call
from distdoctor.lint.oracle import Oracle
from distdoctor.lint.rank_values import (
    LOCAL,
    UNKNOWN,
    Kind,
    MadeThing,
    RankFrame,
    Value,
    ValueReader,
)
from distdoctor.lint.walked_steps import (
    BlockExit,
    CodeSpot,
    JointCall,
    TakenTurn,
    TooLong,
    Way,
)

_DEEPEST = 8  # functions inside of each other
_MOST_STATEMENTS = 6000  # of one walk
_UNITING = ("reduce", "gather", "sync", "broadcast", "mean_across", "average", "all_")


@dataclass
class RankWalk:
    """One rank's way through a function.

    Attributes:
        steps: The calls that it made which all ranks have to make.
        writes: The files that it wrote, but for those behind a test that each rank
            answers for itself.
        turns: The tests, and how they were answered.
        exits: Where it left functions, loops and the process before their ends.
        ended: How it left the function.
    """

    graph: CallGraph
    rank: int
    oracle: Oracle
    steps: list[JointCall] = field(default_factory=list)
    writes: list[tuple[CodeSpot, tuple[CodeSpot, ...]]] = field(default_factory=list)
    turns: list[TakenTurn] = field(default_factory=list)
    exits: list[BlockExit] = field(default_factory=list)
    ended: Way | None = None

    def __post_init__(self) -> None:
        self._reader = ValueReader(
            self.rank, self, self.graph.worths.setdefault(self.rank, {})
        )
        self._mattering = Mattering(self.graph)
        self._returned: dict[int, Value] = {}
        self._stack: list[tuple[Scope, ast.Call | None]] = []
        self._left = _MOST_STATEMENTS
        self._quiet = 0
        self._uneven: CodeSpot | None = None
        self._kept: set[Scope] = set()
        self._loops = 0  # around what is gone through
        self._over = False  # the job's process group is destroyed
        self._joined = False
        self._asks_own = False  # whether a test asked for what each rank has of its own
        self._own_tests = 0  # around what is gone through
        self._wrapped = 0
        self._guards: list[CodeSpot] = []

    def go(self, scope: Scope) -> None:
        """Go through a function, or a file's own lines.

        Raises:
            TooLong: There is more of it than can be gone through.
        """
        frame = RankFrame(scope)
        self._stack.append((scope, None))
        self.ended, _ = self._block(scope.body, frame)
        self.steps = [
            step
            for n, step in enumerate(self.steps)
            if n >= self._wrapped or step.communication.deed is not Deed.BACKWARD
        ]

    @property
    def effort(self) -> int:
        """How many statements were gone through."""
        return _MOST_STATEMENTS - self._left

    @property
    def is_ranked(self) -> bool:
        """Whether anything rested on the rank, or on what each rank has of its own."""
        return self._reader.is_ranked

    # What functions give back.

    def returned(self, call: ast.Call, frame: RankFrame) -> Value:
        """What a function of the program gives back."""
        if id(call) in self._returned:
            return self._returned[id(call)]
        target = self.graph.target(call, frame.scope)
        if target is None:
            return UNKNOWN
        if target.simple_name == "__init__" and target.owner:
            return MadeThing(Kind.OBJECT, target.source, target.owner)
        if target.size > 200 or target in self.graph.telling:
            return UNKNOWN
        self._quiet += 1
        try:
            return self._inline(call, target, frame)
        finally:
            self._quiet -= 1

    def _inline(self, call: ast.Call, target: Scope, frame: RankFrame) -> Value:
        if len(self._stack) > _DEEPEST or any(s is target for s, _ in self._stack):
            return UNKNOWN
        if _is_kept(target):
            if target in self._kept:
                return UNKNOWN  # it is not run again
            self._kept.add(target)
        inner = RankFrame(target, self._arguments(call, target, frame))
        guards = len(self._guards)
        if not self._is_let_in(target):
            del self._guards[guards:]
            return UNKNOWN
        self._stack.append((target, call))
        try:
            way, value = self._block(target.body, inner)
        finally:
            self._stack.pop()
            del self._guards[guards:]
        if way in {Way.ENDED, Way.FAILED}:
            raise _Gone(way)
        return value if way is Way.RETURN else None

    def _is_let_in(self, target: Scope) -> bool:
        if isinstance(target.node, ast.Module):
            return True
        for decorator in target.node.decorator_list:
            if decorated(decorator) in ONE_RANK:
                spot = CodeSpot(target, decorator)
                self._turn(spot, self.rank == 0)
                self._guards.append(spot)  # of all that it calls
                return self.rank == 0
        return True

    def _arguments(
        self, call: ast.Call, target: Scope, frame: RankFrame
    ) -> dict[str, Value]:
        names = target.parameters
        if target.owner and names and names[0] in {"self", "cls"}:
            names = names[1:]
        values: dict[str, Value] = {}
        for name, given in zip(names, call.args, strict=False):
            if isinstance(given, ast.Starred):
                break
            values[name] = self._reader.value(given, frame)
        for keyword in call.keywords:
            if keyword.arg:
                values[keyword.arg] = self._reader.value(keyword.value, frame)
        assert not isinstance(target.node, ast.Module)
        arguments = target.node.args
        every = [*arguments.posonlyargs, *arguments.args]
        defaults = arguments.defaults
        pairs = [*zip(every[len(every) - len(defaults) :], defaults, strict=True)]
        pairs += [
            (one, value)
            for one, value in zip(
                arguments.kwonlyargs, arguments.kw_defaults, strict=True
            )
            if value is not None
        ]
        for one, default in pairs:
            if one.arg not in values and isinstance(default, ast.Constant):
                values[one.arg] = default.value
        return {name: value for name, value in values.items() if value is not UNKNOWN}

    # Statements.

    def _block(
        self, statements: Sequence[ast.stmt], frame: RankFrame
    ) -> tuple[Way | None, Value]:
        for statement in statements:
            self._left -= 1
            if self._left < 0:
                raise TooLong
            try:
                way, value = self._statement(statement, frame)
            except _Gone as gone:
                if self._stack[-1][1] is not None:
                    raise
                return gone.way, None
            if way is not None:
                simple = not isinstance(
                    statement, ast.If | ast.For | ast.While | ast.With
                )
                if simple and not self._quiet:
                    spot = CodeSpot(frame.scope, statement)
                    at = BlockExit(spot, tuple(self._guards), len(self.steps))
                    self.exits.append(at)
                return way, value
        return None, None

    def _statement(self, node: ast.stmt, frame: RankFrame) -> tuple[Way | None, Value]:
        match node:
            case ast.Expr(value=value):
                self._effects(value, frame)
                if isinstance(value, ast.Call):
                    if frame.scope.source.dotted(value.func) in ENDS:
                        return self._leave(value), None
                    self._unite(value, frame)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                self._assignment(node, frame)
            case ast.If():
                return self._if(node, frame)
            case ast.For() | ast.AsyncFor():
                return self._for(node, frame)
            case ast.While():
                return self._while(node, frame)
            case ast.With() | ast.AsyncWith():
                return self._with(node, frame)
            case ast.Try() | ast.TryStar():
                return self._try(node, frame)
            case ast.Return(value=value):
                if value is None:
                    return Way.RETURN, None
                self._effects(value, frame)
                given = self._reader.value(value, frame)
                if type(given) is int and given < 0:  # as programs say that they failed
                    return Way.FAILED, given
                return Way.RETURN, given
            case ast.Break():
                return Way.BREAK, None
            case ast.Continue():
                return Way.CONTINUE, None
            case ast.Raise():
                return Way.FAILED, None
            case ast.Assert(test=test):
                if self._reader.value(test, frame) is False:
                    return Way.FAILED, None
            case ast.Match(subject=subject, cases=cases):
                self._effects(subject, frame)
                for case in cases:
                    self._forget(case.body, frame)
        return None, None

    def _assignment(
        self, node: ast.Assign | ast.AnnAssign | ast.AugAssign, frame: RankFrame
    ) -> None:
        if node.value is None:
            return
        self._effects(node.value, frame)
        if isinstance(node, ast.Assign):
            self._assign(node.targets, node.value, frame)
        elif isinstance(node, ast.AnnAssign):
            self._assign([node.target], node.value, frame)
        elif isinstance(node.target, ast.Name):
            known = frame.values.get(node.target.id)
            frame.values[node.target.id] = LOCAL if known is LOCAL else UNKNOWN

    def _leave(self, call: ast.Call) -> Way:
        """By ending the process: as failed, where the exit status may say so."""
        given = call.args[0] if call.args else None
        fine = given is None or (isinstance(given, ast.Constant) and not given.value)
        return Way.ENDED if fine else Way.FAILED

    def _if(self, node: ast.If, frame: RankFrame) -> tuple[Way | None, Value]:
        self._effects(node.test, frame)
        if not (
            self._mattering.block(node.body, frame.scope)
            or self._mattering.block(node.orelse, frame.scope)
        ):
            known = self._reader.value(node.test, frame)
            if isinstance(known, bool | int | str):
                return self._block(node.body if known else node.orelse, frame)
            self._forget(node.body, frame)
            self._forget(node.orelse, frame)
            return None, None
        prefer = not _leaves(node.body)
        before, self._asks_own = self._asks_own, False
        holds = self._truth(node.test, frame, prefer)
        own, self._asks_own = self._asks_own, before
        spot = CodeSpot(frame.scope, node)
        self._turn(spot, holds)
        self._guards.append(spot)
        self._own_tests += own
        try:
            return self._block(node.body if holds else node.orelse, frame)
        finally:
            self._guards.pop()
            self._own_tests -= own

    def _for(
        self, node: ast.For | ast.AsyncFor, frame: RankFrame
    ) -> tuple[Way | None, Value]:
        self._effects(node.iter, frame)
        over = self._reader.value(node.iter, frame)
        if not self._mattering.block(node.body, frame.scope):
            self._forget(node.body, frame)
            return self._block(node.orelse, frame)
        spot = CodeSpot(frame.scope, node)
        items: Sequence[Value] = [UNKNOWN] * self._rounds_here()
        if isinstance(over, range):
            items = over
            self._turn(spot, len(items))
        before = self._uneven
        if isinstance(over, MadeThing) and over.kind is Kind.SHARE and before is None:
            self._uneven = None if self._joined else spot
        try:
            return self._rounds(node, items, frame)
        finally:
            self._uneven = before

    def _rounds_here(self) -> int:
        """How often a loop is gone through.

        What some ranks leave, others go through again; inside of another loop that
        follows from its rounds.
        """
        return 1 if self._loops else 2

    def _round(
        self, body: Sequence[ast.stmt], frame: RankFrame
    ) -> tuple[Way | None, Value]:
        self._loops += 1
        try:
            return self._block(body, frame)
        finally:
            self._loops -= 1

    def _rounds(
        self, node: ast.For | ast.AsyncFor, items: Sequence[Value], frame: RankFrame
    ) -> tuple[Way | None, Value]:
        for item in items:
            self._bind(node.target, item, frame)
            way, value = self._round(node.body, frame)
            if way is Way.BREAK:
                return None, None
            if way not in {None, Way.CONTINUE}:
                return way, value
        return self._block(node.orelse, frame)

    def _while(self, node: ast.While, frame: RankFrame) -> tuple[Way | None, Value]:
        self._effects(node.test, frame)
        if not self._mattering.block(node.body, frame.scope):
            self._forget(node.body, frame)
            return None, None
        for _ in range(self._rounds_here()):
            if not self._truth(node.test, frame, True):
                self._turn(CodeSpot(frame.scope, node), False)
                break
            way, value = self._round(node.body, frame)
            if way is Way.BREAK:
                return None, None
            if way not in {None, Way.CONTINUE}:
                return way, value
        return self._block(node.orelse, frame)

    def _with(
        self, node: ast.With | ast.AsyncWith, frame: RankFrame
    ) -> tuple[Way | None, Value]:
        before = self._joined
        for item in node.items:
            self._effects(item.context_expr, frame)
            made = self._reader.value(item.context_expr, frame)
            if isinstance(made, MadeThing) and made.kind is Kind.JOIN:
                self._joined = True  # who has no more data answers the others
            if item.optional_vars is not None:
                self._bind(item.optional_vars, UNKNOWN, frame)
        try:
            return self._block(node.body, frame)
        finally:
            self._joined = before

    def _try(
        self, node: ast.Try | ast.TryStar, frame: RankFrame
    ) -> tuple[Way | None, Value]:
        way, value = self._block(node.body, frame)
        if way is Way.FAILED and node.handlers:
            way, value = self._block(node.handlers[-1].body, frame)
        elif way is None:
            way, value = self._block(node.orelse, frame)
        last, given = self._block(node.finalbody, frame)
        return (way, value) if last is None else (last, given)

    # What statements do.

    def _assign(
        self, targets: Sequence[ast.expr], value: ast.expr, frame: RankFrame
    ) -> None:
        worth = self._reader.value(value, frame)
        for target in targets:
            if (
                isinstance(target, ast.Tuple)
                and isinstance(value, ast.Tuple)
                and len(target.elts) == len(value.elts)
            ):
                for part, one in zip(target.elts, value.elts, strict=True):
                    self._bind(part, self._reader.value(one, frame), frame)
                continue
            if worth is UNKNOWN and _is_own_loss(target, value):
                worth = LOCAL
            self._bind(target, worth, frame)

    def _bind(self, target: ast.expr, value: Value, frame: RankFrame) -> None:
        if isinstance(target, ast.Name):
            frame.values[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            several = isinstance(value, tuple) and len(value) == len(target.elts)
            for n, part in enumerate(target.elts):
                self._bind(part, value[n] if several else UNKNOWN, frame)

    def _forget(self, statements: Sequence[ast.stmt], frame: RankFrame) -> None:
        """What is assigned in statements that were passed over may be anything."""
        for statement in statements:
            names = self.graph.assigned.get(id(statement))
            if names is None:
                names = frozenset(
                    node.id
                    for node in ast.walk(statement)
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
                )
                self.graph.assigned[id(statement)] = names
            for name in names:
                frame.values[name] = UNKNOWN

    def _unite(self, call: ast.Call, frame: RankFrame) -> None:
        """What was exchanged is no longer a value of each rank's own."""
        if self.graph.communication(call, frame.scope) is not None:
            for one in call.args:
                if isinstance(one, ast.Name):
                    frame.values[one.id] = UNKNOWN

    def _turn(self, spot: CodeSpot, way: object) -> None:
        if not self._quiet:
            self.turns.append(TakenTurn(spot, way, len(self.steps)))

    def _truth(self, test: ast.expr, frame: RankFrame, prefer: bool) -> bool:
        """Whether a test holds; the oracle decides what the text does not."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._truth(operand, frame, not prefer)
            case ast.BoolOp(op=ast.And(), values=values):
                return all(self._truth(one, frame, prefer) for one in values)
            case ast.BoolOp(values=values):
                return any(self._truth(one, frame, prefer) for one in values)
        value = self._reader.value(test, frame)
        if value is UNKNOWN or value is LOCAL:
            local = value is LOCAL
            self._asks_own |= local
            return self.oracle.decide(test, prefer, self.rank, local)
        return True if isinstance(value, MadeThing) else bool(value)

    def _effects(self, node: ast.expr, frame: RankFrame) -> None:
        """Make the calls in an expression that matter, from inside to outside."""
        if not self._mattering.calls(node, frame.scope):
            return
        match node:
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self._effects(test, frame)
                holds = self._truth(test, frame, True)
                self._turn(CodeSpot(frame.scope, node), holds)
                self._effects(body if holds else orelse, frame)
                return
            case ast.BoolOp(op=op, values=values):
                for n, one in enumerate(values):
                    self._effects(one, frame)
                    if any(
                        self._mattering.calls(later, frame.scope)
                        for later in values[n + 1 :]
                    ):
                        holds = self._truth(one, frame, isinstance(op, ast.And))
                        self._turn(CodeSpot(frame.scope, one), holds)
                        if holds is isinstance(op, ast.Or):
                            return
                return
            case ast.Lambda() | ast.Constant() | ast.Name():
                return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._effects(child, frame)
            elif isinstance(child, ast.keyword):
                self._effects(child.value, frame)
            elif isinstance(child, ast.comprehension):
                self._effects(child.iter, frame)
        if isinstance(node, ast.Call):
            self._effect(node, frame)

    def _effect(self, call: ast.Call, frame: RankFrame) -> None:
        scope = frame.scope
        told = self.graph.communication(call, scope)
        if scope.source.dotted(call.func).endswith("destroy_process_group"):
            self._over = True  # another world may have other ranks
        if told is not None:
            self._step(told, call, frame)
            return
        target = self.graph.target(call, scope)
        if target is not None:
            if target in self.graph.telling:
                self._returned.pop(id(call), None)
                self._returned[id(call)] = self._inline(call, target, frame)
                if target.simple_name == "__init__" and target.owner:
                    made = MadeThing(Kind.OBJECT, target.source, target.owner)
                    self._returned[id(call)] = made
            return
        dotted = scope.source.dotted(call.func)
        if (dotted in REPLICATES or dotted in SHARDS) and not self._quiet:
            # What ran backward before had nobody to average with.
            self._wrapped = len(self.steps)
        if dotted in WRITES and not self._quiet and not self._own_tests:
            self.writes.append((CodeSpot(scope, call), self._callers()))
            return
        if self.graph.averages(scope.source):
            said = model_call(call, lambda node: self._reader.value(node, frame))
            if said is not None:
                self._step(said, call, frame)

    def _step(self, told: Communication, call: ast.Call, frame: RankFrame) -> None:
        if not self._quiet and not self._over:
            spot = CodeSpot(frame.scope, call)
            guards = tuple(self._guards)
            self.steps.append(
                JointCall(told, spot, self._callers(), guards, self._uneven)
            )

    def _callers(self) -> tuple[CodeSpot, ...]:
        found = []
        for (outer, _), (_, call) in zip(self._stack, self._stack[1:], strict=False):
            if call is not None:
                found.append(CodeSpot(outer, call))
        return tuple(found)


def _is_kept(target: Scope) -> bool:
    """Whether a function keeps what it gave back, and gives that the next time."""
    decorators = getattr(target.node, "decorator_list", [])
    return any(decorated(one) in {"cache", "lru_cache"} for one in decorators)


class _Gone(Exception):
    """The rank leaves all functions."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self.way = way


def _leaves(body: Sequence[ast.stmt]) -> bool:
    """Whether a branch leaves the block it stands in, at its end."""
    last = body[-1]
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        func = last.value.func
        name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        return name in {"exit", "_exit", "quit"}
    return isinstance(last, ast.Return | ast.Break | ast.Continue | ast.Raise)


def _is_own_loss(target: ast.expr, value: ast.expr) -> bool:
    """Whether a loss is assigned that nobody has exchanged with other ranks."""
    if not (isinstance(target, ast.Name) and "loss" in target.id.lower()):
        return False
    calls = [one for one in ast.walk(value) if isinstance(one, ast.Call)]
    if not calls:
        return False
    words = [ast.unparse(one.func).lower() for one in calls]
    return not any(part in word for word in [*words, target.id] for part in _UNITING)
