"""Where the paths of ranks parted, by the branch of the source that let only some pass.

The chain of callers of a call is known from the stack of a rank that stands in it, and
otherwise from the source. A condition on that chain which depends on the rank, lets
those through who made the call, and keeps those out who did not, explains the call;
unless those who are kept out have a branch of their own with its counterpart.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from distdoctor.analysis.memoize import memoize
from distdoctor.analysis.source.call_chains import call_between, chains_to
from distdoctor.analysis.source.conditions import (
    Condition,
    ConditionKind,
    conditions,
    of_rounds_before,
)
from distdoctor.analysis.source.program import (
    MODULE,
    Function,
    Program,
    called,
    calls_in,
    names_called,
    own_nodes,
)
from distdoctor.analysis.source.rank_evaluation import RankReader, Value
from distdoctor.model.events import Call, Place
from distdoctor.model.run import Run

_MANY = 8  # ranks of a larger job, to ask whom a condition would single out there

_MOST_ASKED = 32  # ranks of each side for whom a condition is worked out

_DEEPEST = 4  # helpers followed in search of a counterpart


@dataclass(frozen=True, slots=True)
class BranchParting:
    """A condition of the source at which ranks part, and the way to the call behind it.

    Attributes:
        condition: It depends on the rank.
        chain: Lines of the callers, outermost first, and of the call.
        at: Which of these lines stands behind the condition.
        singles_out: It lets the few through, in a job of many ranks, not the many.
        has_counterpart: The source brings the others to their part of the call.
    """

    condition: Condition
    chain: tuple[Place, ...]
    at: int
    singles_out: bool
    has_counterpart: bool

    def way(self) -> str:
        """The chain, for readers: `main:62 → report:31 if is_main() → mean:26`.

        Returns:
            The functions and lines, with the test behind the line it stands at.
        """
        steps = []
        for n, place in enumerate(self.chain):
            # That by which a callback is handed out stands beside the way.
            here = n == self.at and place.function == self.condition.place.function
            test = f" {self.condition}" if here else ""
            steps.append(f"{line_of_way(place)}{test}")
        return " → ".join(steps)


def line_of_way(place: Place) -> str:
    """A line of a way, for readers: its function, and its number.

    Args:
        place: The line.

    Returns:
        `function:line`, or the file's name where there is no function.
    """
    name = place.function.rpartition(".")[2].strip("<>") or place.file
    return f"{name}:{place.line}"


@memoize
def program_of(run: Run) -> Program:
    """The user's files that a run knows, as one program.

    Args:
        run: The run that is judged.

    Returns:
        The program, parsed once per run.
    """
    return Program(run.sources)


def parting(
    run: Run, call: Call, inside: Sequence[int], outside: Sequence[int]
) -> BranchParting | None:
    """The condition by which only some ranks came to a call.

    Args:
        run: Holds sources and stacks.
        call: As one of the ranks made it that are inside.
        inside: Ranks that came to it.
        outside: Ranks that did not.

    Returns:
        The innermost such condition; None if there is none on one of the ways to it.
    """
    if call.place is None or not outside or call.place.file not in run.sources:
        return None
    way = (call.place, call.callers)
    key = ("parting", way, call.op, tuple(inside), tuple(outside))
    known: dict[object, BranchParting | None] = run.memory.setdefault("partings", {})
    if key not in known:
        known[key] = _parting(run, call, inside, outside)
    return known[key]


def _parting(
    run: Run, call: Call, inside: Sequence[int], outside: Sequence[int]
) -> BranchParting | None:
    found: BranchParting | None = None
    sides = Sides(run, inside[:_MOST_ASKED], outside[:_MOST_ASKED])
    for chain in chains(run, call):
        one = _on(sides, chain, call)
        if one is None:
            return None  # there is a way to it that all may take
        found = found or one
    return found


def chains(run: Run, call: Call) -> list[tuple[Place, ...]]:
    """The lines of a call's callers, outermost first, with its own as the last.

    One chain if its callers were noted, or its rank was seen standing in it; else all
    that the source allows.

    Args:
        run: The run that is judged.
        call: A call of the run.

    Returns:
        The chains, empty if the call has no line.
    """
    if call.place is None:
        return []
    if call.callers:
        return [(*reversed(call.callers), call.place)]
    stack = [frame.place for frame in run.stacks.get(call.rank, ())]
    here = (call.place.file, call.place.line)
    for n, place in enumerate(stack):
        if (place.file, place.line) == here:
            return [(*reversed(stack[n:]),)]
    return chains_to(program_of(run), call.place)


def ways_to(run: Run, call: Call) -> list[tuple[Place, ...]]:
    """The chains of callers of a call, without those that the text only seems to have.

    A method of the user's may have the name of a library's (`step`): such a chain
    begins in the middle of the program, where others begin with the program.

    Args:
        run: The run that is judged.
        call: A call of the run.

    Returns:
        The chains that begin outside of all functions, or all if none does.
    """
    program = program_of(run)
    found = chains(run, call)
    whole = []
    for chain in found:
        first = program.at(chain[0].file, chain[0].line)
        if first is not None and first.name == MODULE:
            whole.append(chain)
    return whole or found


class Sides:
    """Ranks on both sides of a condition, and what the source is for each of them."""

    def __init__(self, run: Run, inside: Sequence[int], outside: Sequence[int]) -> None:
        self.program = program_of(run)
        self.inside, self.outside = inside, outside
        self._run, self._size = run, run.world_size
        self._readers: dict[tuple[int, int], RankReader] = {}

    def swapped(self) -> Sides:
        """The same with inside and outside exchanged.

        Returns:
            The other view; what was read of the source is kept.
        """
        other = Sides(self._run, self.outside, self.inside)
        other._readers = self._readers
        return other

    def reader(self, rank: int, size: int = 0) -> RankReader:
        """What the source is for a rank of a job of so many.

        Args:
            rank: A global rank of the run.
            size: Number of ranks of that job; 0: of the run.

        Returns:
            The reader, made once for each rank and size.
        """
        key = (rank, size or self._size)
        if key not in self._readers:
            self._readers[key] = RankReader(self.program, *key)
        return self._readers[key]

    def parts(self, condition: Condition, given: GivenCalls) -> bool:
        """Whether a condition depends on the rank and lets just the one side through.

        What else it depends on may be unknown: `rank == 0 and step % 10 == 0`.

        Args:
            condition: A condition on the way to the call of those inside.
            given: The calls by which the chain comes to the condition's function.

        Returns:
            Whether it explains that one side came and the other did not.
        """
        yes = [self.holds(condition, rank, given) for rank in self.inside]
        no = [self.holds(condition, rank, given) for rank in self.outside]
        if not all(value.ranked for value in [*yes, *no]):
            return False
        if all(value.truth is False for value in no):
            return all(value.truth is not False for value in yes)
        return all(value.truth is True for value in yes) and not any(
            value.truth is True for value in no
        )

    def holds(self, condition: Condition, rank: int, given: GivenCalls) -> Value:
        """Whether a condition lets one of the ranks through.

        Args:
            condition: The condition.
            rank: A global rank of the run.
            given: The calls by which the chain comes to the condition's function.

        Returns:
            Its truth, and whether it depends on the rank.
        """
        return self.reader(rank).holds(condition, given.of(self, rank))

    def singles_out(self, condition: Condition, given: GivenCalls) -> bool:
        """Whether it would let at most half of many ranks through.

        Args:
            condition: The condition.
            given: The calls by which the chain comes to the condition's function.

        Returns:
            Whether those it lets through are the few, as in `rank == 0`.
        """
        many = [
            self.reader(rank, _MANY).holds(condition, given.of(self, rank, _MANY))
            for rank in range(_MANY)
        ]
        let = [value.truth is not False for value in many]
        if not any(value.truth is False for value in many):
            let = [value.truth is True for value in many]
        return 2 * sum(let) <= _MANY


@dataclass(frozen=True, slots=True)
class GivenCalls:
    """The calls by which a chain comes to a function: they tell its arguments."""

    chain: tuple[Place, ...]
    at: int

    def of(self, sides: Sides, rank: int, size: int = 0) -> Mapping[str, Value]:
        """The parameters of the function at that position, for a rank.

        Args:
            sides: The ranks, and what the source is for them.
            rank: A global rank of the run.
            size: Number of ranks of the job; 0: of the run.

        Returns:
            Values by the names of parameters, as far as they are known.
        """
        given: Mapping[str, Value] = {}
        reader, program = sides.reader(rank, size), sides.program
        for caller, callee in zip(self.chain[: self.at], self.chain[1:], strict=False):
            function = program.at(callee.file, callee.line)
            scope = program.at(caller.file, caller.line)
            if function is None or scope is None:
                given = {}
                continue
            call = call_between(program, caller, function)
            given = (
                {} if call is None else reader.arguments(call, scope, given, function)
            )
            given = {name: value for name, value in given.items() if _is_of_use(value)}
        return given


def _is_of_use(value: Value) -> bool:
    return value.is_known or value.ranked


def _on(sides: Sides, chain: tuple[Place, ...], call: Call) -> BranchParting | None:
    """The innermost condition on a chain at which the sides part.

    Where there is none, that by which a round before ended a loop around the way; where
    there is none of these, that behind which a function on the chain is handed out.
    """
    for of_line in (conditions, of_rounds_before):
        for at, place in reversed(list(enumerate(chain))):
            function = sides.program.at(place.file, place.line)
            if function is None:
                continue
            given = GivenCalls(chain, at)
            for condition in reversed(of_line(function, place.line)):
                if sides.parts(condition, given):
                    return BranchParting(
                        condition,
                        chain,
                        at,
                        sides.singles_out(condition, given),
                        _has_counterpart(sides, function, place.line, call, given),
                    )
    for at, place in reversed(list(enumerate(chain))):
        function = sides.program.at(place.file, place.line)
        if function is not None:
            made = _handed_out(sides, chain, at, function)
            if made is not None:
                return made
    return None


def _handed_out(
    sides: Sides, chain: tuple[Place, ...], at: int, function: Function
) -> BranchParting | None:
    """The condition behind which alone a callback is handed out, or its object made.

    `if rank == 0: callbacks.append(Preview())`: who calls all of them asks for no rank.
    """
    if function.is_method:
        name = function.name.split(".")[-2]
    elif function.name != MODULE:
        name = function.simple_name
    else:
        return None
    within = function.name.rpartition(".")[0] if function.is_method else function.name
    uses = [
        use
        for use in sides.program.mentions.get(name, [])
        if not f"{use.function.name}.".startswith(f"{within}.")
    ]
    found: list[Condition] = []
    for use in uses:
        here = GivenCalls((Place(use.function.file, use.line, use.function.name),), 0)
        parted = [
            condition
            for condition in conditions(use.function, use.line)
            if sides.parts(condition, here)
        ]
        if not parted:
            return None  # it is handed to others, too
        found.append(parted[-1])
    if not found:
        return None
    singled = sides.singles_out(found[0], GivenCalls(chain[:1], 0))
    return BranchParting(found[0], chain, at, singled, has_counterpart=False)


def _has_counterpart(
    sides: Sides, function: Function, line: int, call: Call, given: GivenCalls
) -> bool:
    """Whether the same function makes those who are kept out do their part of it."""
    names = names_called(function, line)
    for node in calls_in(function):
        name = called(node)
        if not name or node.lineno == line:
            continue
        makes = name in names or _makes(sides.program, name, call.op)
        if not makes or (
            sides.program.is_library(node, function) and call.op not in name
        ):
            continue
        every = conditions(function, node.lineno)
        theirs = [
            sides.reader(r).all_hold(every, given.of(sides, r)) for r in sides.outside
        ]
        mine = [
            sides.reader(r).all_hold(every, given.of(sides, r)) for r in sides.inside
        ]
        if all(value.truth is not False for value in theirs) and all(
            value.truth is False for value in mine
        ):
            return True
    return False


def _makes(program: Program, name: str, op: str) -> bool:
    """Whether a function of this name is, or calls, an operation."""
    for ending in ("_tensor", "_into", "_coalesced"):
        op = op.removesuffix(ending)
    names = seen = {name}
    for _ in range(_DEEPEST):
        if any(op in one for one in names):
            return True
        inner = {
            called(call)
            for one in names
            for function in program.named(one)
            for call in calls_in(function)
        }
        names = inner - seen
        seen = seen | names
    return any(op in one for one in names)


# --- conditions that do not depend on the rank ---


def choices(
    run: Run, call: Call, other: Call
) -> tuple[tuple[Condition, ...], tuple[Condition, ...]]:
    """Branches and ways to leave that lead to the one call, and to the other.

    Those on the way to both are left out, and those that always hold.

    Args:
        run: The run that is judged.
        call: The one call.
        other: The other call.

    Returns:
        The conditions of the one, and those of the other, outermost first.
    """
    mine, theirs = undecided(run, call), undecided(run, other)
    return (
        tuple(condition for condition in mine if condition not in theirs),
        tuple(condition for condition in theirs if condition not in mine),
    )


def undecided(run: Run, call: Call) -> tuple[Condition, ...]:
    """Branches and ways to leave on the way to a call that its rank may fail.

    Outermost first, without those that hold for it at all times.

    Args:
        run: The run that is judged.
        call: A call of the run.

    Returns:
        The conditions, without loops.
    """
    known = chains(run, call)
    if len(known) != 1:
        known = [chain[-1:] for chain in known[:1]]  # its own function at least
    program = program_of(run)
    reader = RankReader(program, call.rank, run.world_size)
    found: list[Condition] = []
    for place in (place for chain in known for place in chain):
        function = program.at(place.file, place.line)
        if function is not None:
            found += conditions(function, place.line)
    return tuple(
        condition
        for condition in found
        if condition.kind is not ConditionKind.LOOP
        and reader.holds(condition).truth is None
        and not _is_common(condition)
    )


def _is_common(condition: Condition) -> bool:
    """Whether a test looks only at what all ranks count alike: `step % 10 == 0`."""
    loops = {
        part.id
        for node in own_nodes(condition.function.node)
        if isinstance(node, ast.For)
        and isinstance(node.iter, ast.Call)
        and called(node.iter) in {"range", "enumerate"}
        for target in _counters(node)
        for part in ast.walk(target)
        if isinstance(part, ast.Name)
    }
    return bool(condition.tests) and all(
        isinstance(part, _PLAIN) or (isinstance(part, ast.Name) and part.id in loops)
        for test, _ in condition.tests
        for part in ast.walk(test)
    )


_PLAIN = (
    ast.Constant
    | ast.operator
    | ast.cmpop
    | ast.boolop
    | ast.unaryop
    | (ast.expr_context | ast.Compare | ast.BinOp | ast.BoolOp | ast.UnaryOp)
)


def _counters(loop: ast.For) -> list[ast.expr]:
    """What a loop counts: the target of `range`, the first one of `enumerate`."""
    if isinstance(loop.target, ast.Tuple):
        return loop.target.elts[:1]
    return [loop.target]


def of_group(ranks: Iterable[int], those: Iterable[int]) -> tuple[int, ...]:
    """Ranks without those.

    Args:
        ranks: The ranks.
        those: Ranks to leave out.

    Returns:
        What is left, in its order.
    """
    without = set(those)
    return tuple(rank for rank in ranks if rank not in without)
