"""Some ranks skipped a collective, or made one of their own.

What it is
----------
A collective stands in a branch that only some ranks take: `if rank == 0:`, a `continue`
when the loss is not finite, a cache that only some ranks have. The others go on to the
next call, and from there on all are out of step.

Why it matters
--------------
The ranks wait in different calls for each other, for ever. With calls of one kind they
pair up one step apart instead: rank 2's gradients of step 8 with everybody's of step 7.

Sick
----
Rank 2 skips a batch and is already at the end of the epoch:

    rank 0 | all_reduce(4)@t.py:7  barrier@t.py:9  all_reduce(4)@t.py:7!
    rank 1 | all_reduce(4)@t.py:7  barrier@t.py:9  all_reduce(4)@t.py:7!
    rank 2 | all_reduce(4)@t.py:7  barrier@t.py:9  barrier@t.py:9...

Rank 0 alone makes sure that its checkpoint is on disk:

    rank 0 | all_reduce(4)@t.py:7  barrier@save.py:3...
    rank 1 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7!

Rank 0 alone waits at the end for ranks that never do:

    rank 0 | all_reduce(4)@t.py:7  barrier@t.py:12...  .
    rank 1 | all_reduce(4)@t.py:7  leave               exit=0
    rank 2 | all_reduce(4)@t.py:7  leave               exit=0

Rank 0 alone reports to Ray Train, which is a barrier of all workers:

    group ray_train | 0 1
    rank 0 | all_reduce(4)@t.py:7  ray_report/ray_train@t.py:12...  .
    rank 1 | all_reduce(4)@t.py:7  leave                            exit=0

Well
----
Every rank calls the barrier, each from its own branch:

    rank 0 | all_reduce(4)@t.py:7  barrier@t.py:9   all_reduce(4)@t.py:7  exit=0
    rank 1 | all_reduce(4)@t.py:7  barrier@t.py:11  all_reduce(4)@t.py:7  exit=0

A subgroup is used by its members only:

    rank 0 | all_reduce(4)  all_reduce(1)/log  all_reduce(4)  exit=0
    rank 1 | all_reduce(4)  all_reduce(1)/log  all_reduce(4)  exit=0
    rank 2 | all_reduce(4)  all_reduce(4)      exit=0

Unknown
-------
A rank without a journal may be the one that strayed:

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?

Remedy
------
Take the collective out of the branch, or let all ranks decide together: `all_reduce`
the flag (MAX) and branch on the result. A rank that skips its work still makes the
call, with zeros. `ray.train.report` is for all workers, and a checkpoint may come from
one.

Known problems
--------------
Calls of one kind pair up one step apart, and it shows only at a call of another kind or
at the end: a run that is ended before that (`--budget`) shows nothing. Of two ranks
neither is the majority; where neither the source nor the loops tell which side left the
call out, both are shown, and a condition on a rank's own data is told as likely.

References
----------
- Lightning: one rank skips a batch, and the ranks are out of step –
  https://github.com/Lightning-AI/pytorch-lightning/issues/6430
- `torch/distributed/distributed_c10d.py` (pytorch/pytorch), `monitored_barrier`
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import (
    Cause,
    Divergence,
    PartingTest,
    capital,
    has,
    on_group,
    s,
    waits,
)
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.divergence.excluded_ranks import KeptFromMessage
from distdoctor.analysis.divergence.rank_guards import RankGuard
from distdoctor.analysis.divergence.recorded_slips import (
    CallsAhead,
    CallsBehind,
    CallsShifted,
    NeverCame,
    PastCollective,
)
from distdoctor.analysis.divergence.skipped_calls import (
    AddedCall,
    LeftOutCall,
    OvertakenCall,
    PartedAtCall,
    SkippedCall,
)
from distdoctor.analysis.divergence.source_forks import DataFork
from distdoctor.analysis.divergence.unequal_rounds import (
    LeftLoop,
    OneMoreRound,
    PartedAtLoop,
)
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.sentences import sentence_of
from distdoctor.model.events import WORLD, Call, Place
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run, named

CODE = "DD108"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """Calls that only some ranks made."""
    yield from findings(run, Cause.SKIPPED, cure=_cure)
    require_whole(run)


def _cure(divergence: Divergence) -> str:
    """What would mend just this; empty: nothing more is known than the manual says."""
    skipped: object = divergence
    while isinstance(skipped, Divergence):
        skipped = skipped.facts
    group = divergence.group
    everybody = "all ranks"
    if group is not None and group.name != WORLD:
        everybody = f"all members of {group.name}"
    match skipped:
        case RankGuard() if divergence.test is not None:
            return _cure_by_rank(skipped, divergence.test, everybody)
        case DataFork() if divergence.test is not None:
            return _cure_by_data(skipped.op, divergence.test, _else_of_fork(skipped))
        case AddedCall(ranks, _, op, where):
            return (
                f"Let {everybody} call {op}, or none: {named(ranks)} alone "
                f"call{s(ranks)} it ({where}){_parting(divergence)}."
            )
        case PartedAtCall(inside, _, line, op, few=True):
            return (
                f"Let {everybody} come from {line} to {op}, or none: {named(inside)} "
                f"alone do{'es' * (len(inside) == 1)}."
            )
        case CallsAhead(ranks, _, call, where):
            return (
                f"Let {everybody} make the call at {where} ({call}), or none: "
                f"{named(ranks)} alone make{s(ranks)} it."
            )
        case LeftLoop(loop=loop, after_all=False) | PartedAtLoop(loop=loop):
            return _cure_of_loop(loop)
        case OneMoreRound(loop=loop, exit=way):
            by = "" if way is None else f" by `{way.text}` ({way.place})"
            return _cure_of_loop(loop, by)
        case SkippedCall(ranks, _, call) | LeftOutCall(ranks, call) if divergence.test:
            too = (
                f"let {named(ranks)} call {call.op} ({call.place}) all the same"
                f"{_zeros(call.op, ranks)}"
            )
            return _cure_by_data(call.op, divergence.test, too)
    return ""


def _parting(divergence: Divergence) -> str:
    return "" if divergence.test is None else f"; the ways part at {divergence.test}"


def _zeros(op: str, ranks: tuple[int, ...]) -> str:
    """What ranks may give to a reduction that have nothing to give."""
    has = "has" if len(ranks) == 1 else "have"
    they = "it" if len(ranks) == 1 else "they"
    return f", with zeros if {they} {has} nothing to give" * ("reduce" in op)


def _cure_of_loop(loop: Place, by: str = "") -> str:
    return (
        f"Let all ranks leave the loop at {loop} behind the same round: give them as "
        f"many rounds, or decide together to leave{by}, by an `all_reduce` of the flag "
        "(MAX)."
    )


def _cure_by_rank(guard: RankGuard, test: PartingTest, everybody: str) -> str:
    """Out of a test of the rank, or above it where some leave there."""
    call, outside = guard.call, guard.outside
    target = f"{call.op} ({call.place})"
    it = "what leads to it" if guard.through else "it"
    if guard.few:
        first = f"Let {everybody} come to {target}, or none"
        if test.leaves:
            return f"{first}: move {it} above {test}, by which the others leave."
        return f"{first}: move {it} out of {test}."
    first = f"Let {named(outside)} come to {target}, too"
    if test.leaves:
        they = "it leaves" if len(outside) == 1 else "they leave"
        return f"{first}, before {they} by {test}{_zeros(call.op, outside)}."
    return f"{first}: move {it} out of {test}, or let all ranks call it there."


def _cure_by_data(op: str, test: PartingTest, otherwise: str) -> str:
    """By a decision that all ranks make together, since their own data part them."""
    if test.handles:
        return (
            "Let the ranks decide together whether one of them has failed: "
            "`all_reduce` a flag (MAX) behind the `try` of the `except` at "
            f"{test.place}, and let all come to {op}, or none."
        )
    return (
        f"Let the ranks decide together at {test}: `all_reduce` the flag (MAX) before "
        f"it, and branch on the result; or {otherwise}."
    )


def _else_of_fork(fork: DataFork) -> str:
    if not fork.left:
        return f"move {fork.op} out of it"
    they = "it leaves" if len(fork.others) == 1 else "they leave"
    return (
        f"let {named(fork.others)} call {fork.op} before {they}"
        f"{_zeros(fork.op, fork.others)}"
    )


@sentence_of(Cause.SKIPPED)
def _sentence(skipped: _ByCalls | _ByLoop | _ByBranch | _ByRecords) -> str:
    match skipped:
        case CallsBehind() | CallsAhead() | CallsShifted():
            return _by_records(skipped)
        case NeverCame() | PastCollective():
            return _by_records(skipped)
        case SkippedCall() | AddedCall() | LeftOutCall():
            return _by_calls(skipped)
        case LeftLoop() | OneMoreRound() | PartedAtLoop() | PartedAtCall():
            return _by_loop(skipped)
    return _by_branch(skipped)


_ByCalls = SkippedCall | AddedCall | LeftOutCall
_ByLoop = LeftLoop | OneMoreRound | PartedAtLoop | PartedAtCall
_ByBranch = RankGuard | DataFork | KeptFromMessage


_ByRecords = CallsBehind | CallsAhead | CallsShifted | NeverCame | PastCollective


def _by_records(skipped: _ByRecords) -> str:
    """Where recorders' rings tell how the calls go on from there."""
    who = capital(named(skipped.ranks))
    match skipped:
        case CallsBehind(ranks, count, call, where):
            are = "it is" if len(ranks) == 1 else "they are"
            return (
                f"{who} left out {_calls(count)} at {where} ({call} of the others); "
                f"from there on {are} {_calls(count)} behind."
            )
        case CallsAhead(ranks, count, call, where):
            return (
                f"{who} alone make{s(ranks)} {_calls(count)} more at {where} ({call}); "
                f"from there on the calls of the others are {_calls(count)} behind."
            )
        case CallsShifted(ranks, others, count, call, where):
            return (
                f"{who} make{s(ranks)} each call {_calls(count)} later than "
                f"{named(others)} from {where} on ({call}), the first that is recorded "
                f"of all: what {named(ranks)} made alone, or {named(others)} left out, "
                "lies before the records."
            )
        case NeverCame(ranks, absent, call, why):
            return (
                f"{who} alone call{s(ranks)} {on_group(call)}, and {named(absent)} "
                f"never came to it: {why}."
            )
        case PastCollective(ranks, others, missed, instead):
            return (
                f"{who} went past {missed.op} (call {missed.ordinal} on "
                f"{missed.group}), in which {named(others)} stand{s(others)}, and "
                f"{'is' if len(ranks) == 1 else 'are'} at {instead}, with messages "
                "that the others have not come to."
            )


def _calls(count: int) -> str:
    return "a call" if count == 1 else f"{count} calls"


def _by_calls(skipped: _ByCalls) -> str:
    who = capital(named(skipped.ranks))
    match skipped:
        case OvertakenCall(ranks, others, call, where, next_call):
            return (
                f"{who} skipped {call} ({where}) and went on to {next_call}; "
                f"{named(others)} {waits(others)} in it."
            )
        case SkippedCall(ranks, others, call, where, next_call):
            went = f"went on to {next_call.op}"
            if next_call.op == call.op:  # which of them it is, the calls do not tell
                went = f"is at {next_call.place} instead, unless it made that call once"
                went += " more"
            return (
                f"{who} skipped {call.op} ({where}) and {went}; {named(others)} "
                f"{waits(others)} in it."
            )
        case AddedCall(ranks, others, op, where, next_op):
            went = "finished without it"
            if next_op:
                went = f"went on to {next_op}, as before"
            return f"{who} alone call{s(ranks)} {op} ({where}); {named(others)} {went}."
        case LeftOutCall(ranks, call, where):
            return f"{who} left out {call.op} ({call.place}, {where})."


def _by_loop(skipped: _ByLoop) -> str:
    """Where one side is in a loop, or came by a way, that the other one is not on.

    Of those that parted before it showed, the remarks end the sentence.
    """
    match skipped:
        case LeftLoop(ranks, others, loop, next_call, op, where, after_all):
            came = "come through that round of" if after_all else "left"
            return (
                f"{capital(named(ranks))} {has(ranks)} {came} the loop at {loop} and "
                f"{waits(ranks)} in {next_call.op} ({next_call.place}), while "
                f"{named(others)} {waits(others)} in {op} ({where}), in that loop."
            )
        case OneMoreRound(ranks, others, loop, op, where, next_call, way):
            by = "" if way is None else f" by `{way.text}` ({way.place})"
            return (
                f"{capital(named(ranks))} {waits(ranks)} in {op} ({where}) in one more "
                f"round of the loop at {loop}, which {named(others)} {has(others)} "
                f"left{by} for {next_call.op} ({next_call.place})."
            )
        case PartedAtLoop(inside, outside, loop, where):
            go = "goes" if len(inside) == 1 else "go"
            return (
                f"{capital(named(outside))} {has(outside)} left the loop at {loop} at "
                f"{where}, while {named(inside)} {go} on in it"
            )
        case PartedAtCall(inside, outside, line, op, where, few=True):
            return (
                f"{capital(named(inside))} alone come{s(inside)} from {line} to {op} "
                f"({where}), which {named(outside)} did not make"
            )
        case PartedAtCall(inside, outside, line, op, where):
            return (
                f"{capital(named(outside))} left out {op} ({where}), to which "
                f"{named(inside)} came from {line}"
            )


def _by_branch(skipped: _ByBranch) -> str:
    """Where the source has a condition around the call; its remarks end a guard's."""
    at = f"`{skipped.condition}` at {skipped.place}"
    match skipped:
        case RankGuard(inside, outside, call, where, few=True):
            return (
                f"{capital(named(inside))} alone call{s(inside)} {call.op} ({where}), "
                f"behind {at}, which keeps {named(outside)} out"
            )
        case RankGuard(inside, outside, call, where):
            return (
                f"{capital(named(outside))} skipped {call.op} ({where}), because of "
                f"{at}; {named(inside)} {waits(inside)} in it"
            )
        case DataFork(behind, others, op, other_op, where, left=True):
            return (
                f"{capital(named(others))} skipped {op} ({where}) and went on to "
                f"{other_op}, most likely by {at}; {named(behind)} {waits(behind)} in "
                "it."
            )
        case DataFork(behind, others, op, other_op, where):
            return (
                f"{capital(named(behind))} alone call{s(behind)} {op} ({where}), "
                f"behind {at}; {named(others)} went on to {other_op}."
            )
        case KeptFromMessage(stands=stands, waits=call):
            return (
                f"Rank {stands.rank} is kept by {at} from what all others do behind "
                f"it: it is at {stands.op} ({stands.place}), and rank {call.rank} "
                f"waits in {call.op}."
            )
