"""Ranks went through a different number of rounds.

What it is
----------
One rank's loader ran out of batches, or it left its loop for a reason of its own
(early stopping decided locally), while the others began another round. Each round
communicates, so the others wait for a partner that is already behind the loop.

Why it matters
--------------
With DistributedDataParallel the job hangs in the last step of an epoch, only for data
sets whose size does not divide by the ranks, and only when the sampler does not pad.

Sick
----
Rank 1's loader ends one batch early, and it finishes:

    rank 0 | all_reduce(4)@t.py:7  batches=2@t.py:5...  all_reduce(4)@t.py:7...
    rank 1 | all_reduce(4)@t.py:7  batches=1@t.py:5     leave@t.py:9

It goes on to the barrier after the loop:

    rank 0 | all_reduce(4)@t.py:7  batches=2@t.py:5...  all_reduce(4)@t.py:7...
    rank 1 | all_reduce(4)@t.py:7  batches=1@t.py:5     barrier@t.py:8!

In the first epoch its loader ended one batch early, and since then its calls meet those
of the batch before; they part at the end of the second:

    rank 0 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7  batches=2@t.py:5  all_reduce(4)@t.py:7  batches=1@t.py:5...  all_reduce(4)@t.py:7...
    rank 1 | all_reduce(4)@t.py:7  batches=1@t.py:5  all_reduce(4)@t.py:7  all_reduce(4)@t.py:7  batches=2@t.py:5  barrier@t.py:8!

Well
----
As many batches on all ranks:

    rank 0 | all_reduce(4)@t.py:7  batches=1@t.py:5  barrier@t.py:8  exit=0
    rank 1 | all_reduce(4)@t.py:7  batches=1@t.py:5  barrier@t.py:8  exit=0

Fewer batches under `Join`, whose rank keeps calling along:

    rank 0 | all_reduce(4)@t.py:7  batches=2@t.py:5  all_reduce(4)@t.py:7  exit=0
    rank 1 | all_reduce(4)@t.py:7  batches=1@t.py:5  all_reduce(4)@t.py:4  exit=0

Unknown
-------
A rank without a journal may be the one that ran out of batches:

    rank 0 | start=2  batches=2@t.py:5...  all_reduce(4)...
    rank 1 | ?

Remedy
------
Give all ranks the same number of rounds: DistributedSampler (it pads),
`drop_last=True`, or wrap the loop in `torch.distributed.algorithms.join.Join`. A
decision to stop must be common: `all_reduce` the flag before the `break`.

Known problems
--------------
Rounds are counted by loaders, forward passes and stacks: a loop that has none of them
(batches made by hand, and no model) is told as a skipped call or a rank that finished.
Where epochs were shortened for the budget, a loader is still shorter by as much, but a
loop that would be left on a condition later in the epoch is not.

References
----------
- pytorch: support uneven DDP inputs – https://github.com/pytorch/pytorch/issues/33148
- pytorch: Join, for uneven inputs – https://github.com/pytorch/pytorch/issues/38174
- `torch/distributed/algorithms/join.py` (pytorch/pytorch), `Join`
"""  # noqa: E501 - a rank is drawn on one line

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause, capital, has, waits
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.divergence.unequal_rounds import (
    FewerBatches,
    FewerRounds,
    OneMoreRound,
    PartedAtLoop,
)
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.sentences import sentence_of
from distdoctor.model.events import Call
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run, named

CODE = "DD208"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """Ranks that left a loop which others are still in."""
    yield from findings(run, Cause.UNEVEN)
    require_whole(run)


@sentence_of(Cause.UNEVEN)
def _sentence(
    uneven: FewerBatches | FewerRounds | OneMoreRound | PartedAtLoop,
) -> str:
    match uneven:
        case FewerBatches():
            return _fewer_batches(uneven)
        case FewerRounds(ranks, loop, next_call, others, op):
            return (
                f"{capital(named(ranks))} left the loop at {loop} and {_are(ranks)} at "
                f"{next_call.op} ({next_call.place}); {named(others)} {_are(others)} "
                f"still in it and {waits(others)} in {op}."
            )
        case OneMoreRound(ranks, others, loop, op, where, next_call):
            return (
                f"{capital(named(ranks))} {waits(ranks)} in {op} ({where}) in one more "
                f"round of the loop at {loop}, which {named(others)} {has(others)} "
                f"left for {next_call.op} ({next_call.place})."
            )
        case PartedAtLoop(inside, outside, loop, where):  # the remarks end it
            go = "goes" if len(inside) == 1 else "go"
            return (
                f"{capital(named(inside))} {go} through the loop at {loop} once more "
                f"({where}), which {named(outside)} {has(outside)} left"
            )


def _fewer_batches(uneven: FewerBatches) -> str:
    others, ended = uneven.others, uneven.ended
    gone, why = " and finished", f" ({uneven.where})"
    if uneven.next_op:
        gone, why = "", f" for a partner that is at {uneven.next_op}"
    return (
        f"{capital(named(uneven.ranks))} had {ended.count} batches from the loader at "
        f"{ended.place}{gone}; {named(others)} {has(others)} begun batch "
        f"{uneven.begun} and {waits(others)} in {uneven.op}{why}."
    )


def _are(ranks: tuple[int, ...]) -> str:
    return "are" if len(ranks) > 1 else "is"
