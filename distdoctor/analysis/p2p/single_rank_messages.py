"""Messages of which the source has something for one rank alone.

Of the two ends of a message neither is usual. What is written for one rank alone tells:
a condition that keeps just this rank from the send or receive which is waited for, a
tag that no other rank gives, a peer that is numbered in another way than all others
number theirs.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from distdoctor.analysis.causes import Cause, Divergence, pointers
from distdoctor.analysis.deadlock.wait_for_graph import standstill
from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.p2p.messages import SEND
from distdoctor.analysis.p2p.one_sided_messages import OddMessage
from distdoctor.analysis.source.conditions import Condition, ConditionKind, conditions
from distdoctor.analysis.source.program import Function, Program, called, calls_in
from distdoctor.analysis.source.rank_evaluation import RankReader
from distdoctor.model.events import Call, Place
from distdoctor.model.findings import Certainty
from distdoctor.model.operations import CODE_OF, OPERATIONS
from distdoctor.model.run import Run

_MANY = 8  # ranks of a larger job, to ask whom the source singles out there

_FEWEST = 3  # ranks of which one can be the odd one

_SENDS, _RECEIVES = frozenset({"send", "isend"}), frozenset({"recv", "irecv"})

_PEERS = frozenset({"dst", "src", "group_dst", "group_src"})

_PEER_AT, _TAG_AT = 1, 3  # positions of the arguments of torch's send and recv

_MOST_ENDS = 64  # whose lines are read, each by itself

_ABOUT_MESSAGES = {Cause.MISFIT, Cause.UNANSWERED, Cause.MESSAGES, Cause.CIRCLE}


def by_one_rank(run: Run, divergence: Divergence) -> Divergence:
    """The same divergence of messages, blamed on the rank that the source singles out.

    Where it singles out more than one, or none, nothing changes.

    Args:
        run: The run that is judged.
        divergence: The divergence as it is known so far.

    Returns:
        The same object if nothing changes.
    """
    if divergence.why not in _ABOUT_MESSAGES or not run.sources:
        return divergence
    open_ends = [*_open_ends(run, divergence)]
    if len(open_ends) > _MOST_ENDS:
        return divergence
    found = {
        one.rank: (call, one)
        for call, _ in open_ends
        if (one := _own_way(run, call, open_ends)) is not None
    } or {
        one.rank: (call, one)
        for call, peers in open_ends
        for peer in peers
        if (one := _kept_from(run, call, peer)) is not None
    }
    if len(found) != 1:
        return divergence
    ((call, one),) = found.values()
    ranks = {*divergence.calls, *divergence.culprits, *divergence.victims}
    is_misfit = divergence.why is Cause.MISFIT and not one.skipped
    why = Cause.MISFIT if is_misfit else Cause.UNANSWERED
    facts: object = OddMessage(call, one.rank, one.remark, one.place, kept=one.skipped)
    remarks = ""
    if not one.skipped and (is_misfit or divergence.culprits == (one.rank,)):
        is_same = divergence.why is why
        facts = divergence.facts if is_same else divergence
        remarks = divergence.remarks if is_same else ""
        remarks += f" Rank {one.rank} has {one.remark} at {one.place}."
    return replace(
        divergence,
        why=why,
        culprits=(one.rank,),
        victims=tuple(sorted(ranks - {one.rank})),
        certainty=Certainty.LIKELY,
        elsewhere=(
            *pointers([one.place], [one.rank], one.remark),
            *divergence.elsewhere,
        ),
        facts=facts,
        remarks=remarks,
    )


def _open_ends(run: Run, divergence: Divergence) -> Iterator[tuple[Call, list[int]]]:
    """Sends and receives that wait, or do not fit, with who may owe the other side."""
    if divergence.why is Cause.MISFIT:
        for rank, call in divergence.calls.items():
            yield call, [other for other in divergence.calls if other != rank]
        return
    for threads in standstill(run).waits.values():
        for wait in threads:
            if OPERATIONS[run.calls["op"][wait.row]].is_point_to_point:
                yield run.call(wait.row), sorted(wait.missing)


@dataclass(frozen=True, slots=True)
class _OneRank:
    """What the source has for one rank alone.

    Attributes:
        rank: The rank.
        place: The line.
        remark: What it is.
        skipped: It keeps the rank from its side of the message.
    """

    rank: int
    place: Place
    remark: str
    skipped: bool = False


def _kept_from(run: Run, call: Call, peer: int) -> _OneRank | None:
    """The condition that keeps a rank, and no other, from the other side of a message.

    Args:
        run: Holds the sources.
        call: A send or receive, whose other side is missing.
        peer: Who should have made it.
    """
    if peer >= _MANY or not run.sources:
        return None
    program = program_of(run)
    wanted = _RECEIVES if CODE_OF[call.op] == SEND else _SENDS
    readers = [RankReader(program, rank, _MANY) for rank in range(_MANY)]
    for function, node in _calls(program, wanted):
        for condition in reversed(conditions(function, node.lineno)):
            let = [reader.holds(condition) for reader in readers]
            if not all(one.ranked for one in let):
                continue
            out = [rank for rank, one in enumerate(let) if one.truth is False]
            if out != [peer] or not _may_be_for(run, node, function, call.rank, peer):
                continue
            if any(
                called(other) in wanted
                and readers[peer].all_hold(conditions(function, other.lineno)).truth
                is not False
                and _may_be_for(run, other, function, call.rank, peer)
                for other in calls_in(function)
            ):
                continue  # it has a branch of its own with that side
            return _OneRank(peer, condition.place, f"`{condition}`", skipped=True)
    return None


def _own_way(
    run: Run, call: Call, ends: Sequence[tuple[Call, list[int]]]
) -> _OneRank | None:
    """What a rank gives to a send or a receive, and no other does: a tag, or a peer.

    Args:
        run: Holds the sources.
        call: The send or receive.
        ends: All that wait, or do not fit. A tag is at fault where one of them, of the
            other side, has another; where it has the same, they have met, and fit.
    """
    sides = [one for one, _ in ends if (one.op == "send") != (call.op == "send")]
    tagged = any(one.tag != call.tag for one in sides)
    met = any(one.rank == call.peer and one.tag == call.tag for one in sides)
    place = call.place
    if call.rank >= _MANY or place is None or not run.sources:
        return None
    program = program_of(run)
    function = program.at(place.file, place.line)
    if function is None:
        return None
    kind = _SENDS if CODE_OF[call.op] == SEND else _RECEIVES
    for node in calls_in(function):
        last = node.end_lineno or node.lineno
        if node.lineno <= place.line <= last and called(node) in kind:
            if tagged and (own := _own_tag(program, function, node, call)):
                return own
            return None if met else _own_peer(run, function, node, call)
    return None


def _own_tag(
    program: Program, function: Function, node: ast.Call, call: Call
) -> _OneRank | None:
    tag = _argument(node, frozenset({"tag"}), _TAG_AT)
    tags = [] if tag is None else _values(program, function, tag, _MANY)
    if call.place is not None and _odd(tags) == call.rank:
        return _OneRank(call.rank, call.place, "a tag of its own")
    return _own_branch(program, function, node, call)


def _calls(
    program: Program, names: frozenset[str]
) -> Iterator[tuple[Function, ast.Call]]:
    for name in sorted(names):
        for use in program.calls.get(name, []):
            if isinstance(use.node, ast.Call):
                yield use.function, use.node


def _may_be_for(
    run: Run, node: ast.Call, function: Function, waiting: int, peer: int
) -> bool:
    """Whether this call of the peer's would be with the rank that waits.

    Whom it names may be seen at run time alone, as who has asked for work; then it is
    enough that the peer has communicated in this function.
    """
    named = _argument(node, _PEERS, _PEER_AT)
    if named is None:
        return True  # from any source
    reader = RankReader(program_of(run), peer, run.world_size)
    value = reader.value(named, function)
    if value.is_known:
        return bool(value.value == waiting)
    if not isinstance(named, ast.Name) or named.id in function.parameters:
        return False
    if not program_of(run).binds(function, named.id):
        return False
    rows = run.rows_of(peer)
    lines = {run.sites[n] for n in set(run.calls["site"][rows.start : rows.stop])}
    here = (function.file, function.name)
    return any(line and (line.file, line.function) == here for line in lines)


def _own_branch(
    program: Program, function: Function, node: ast.Call, call: Call
) -> _OneRank | None:
    """A branch for the rank alone, of which the other one gives another tag."""
    others = [
        other
        for other in calls_in(function)
        if called(other) == called(node) and _tag(other) != _tag(node)
    ]
    for condition in reversed(conditions(function, node.lineno)):
        if condition.kind is not ConditionKind.BRANCH or _let(program, condition) != [
            call.rank
        ]:
            continue
        if any(_excludes(program, condition, one, call.rank) for one in others):
            tag = f"tag {call.tag}, of its own by `{condition}`,"
            return _OneRank(call.rank, condition.place, tag)
    return None


def _let(program: Program, condition: Condition) -> list[int]:
    """Ranks of a larger job that a condition by rank lets through."""
    values = [
        RankReader(program, rank, _MANY).holds(condition) for rank in range(_MANY)
    ]
    if not all(one.ranked and one.truth is not None for one in values):
        return []
    return [rank for rank, one in enumerate(values) if one.truth]


def _excludes(
    program: Program, condition: Condition, other: ast.Call, rank: int
) -> bool:
    """Whether a call of the same function is for those whom the condition keeps out."""
    reader = RankReader(program, rank, _MANY)
    return any(
        one.place == condition.place and reader.holds(one).truth is False
        for one in conditions(condition.function, other.lineno)
    )


def _own_peer(
    run: Run, function: Function, node: ast.Call, call: Call
) -> _OneRank | None:
    """A peer that a rank numbers as no other does; of two ranks each has but one.

    The rank that all others name cannot name itself.
    """
    size = min(run.world_size, _MANY)
    named = _argument(node, _PEERS, _PEER_AT)
    if named is None or size < _FEWEST or call.place is None:
        return None
    peers = _values(program_of(run), function, named, size)
    odd = _odd(peers)
    if odd == _NONE:
        odd = _odd([(one - rank) % size for rank, one in enumerate(peers)])
    elif peers.count(odd) > 1:
        return None
    if odd != call.rank:
        return None
    return _OneRank(call.rank, call.place, "a peer of its own numbering")


_NONE, _UNIFORM = -1, -2


def _values(
    program: Program, function: Function, node: ast.expr, size: int
) -> list[int]:
    """What an expression is for each rank; empty if the source does not tell."""
    readers = (RankReader(program, rank, size) for rank in range(size))
    found = [reader.value(node, function) for reader in readers]
    known = [one.value for one in found if one.is_known and isinstance(one.value, int)]
    return known if len(known) == size else []


def _odd(values: Sequence[int]) -> int:
    """Which one is unlike all others, which are alike."""
    counts = Counter(values).most_common()
    if len(counts) == 1:
        return _UNIFORM
    if len(counts) != 2 or counts[1][1] != 1 or counts[0][1] < 2:
        return _NONE
    return values.index(counts[1][0])


def _argument(node: ast.Call, names: frozenset[str], position: int) -> ast.expr | None:
    for keyword in node.keywords:
        if keyword.arg in names:
            return keyword.value
    return node.args[position] if len(node.args) > position else None


def _tag(node: ast.Call) -> str:
    tag = _argument(node, frozenset({"tag"}), _TAG_AT)
    return "0" if tag is None else ast.unparse(tag)
