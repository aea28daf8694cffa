"""Ranks made the same calls in another order.

What it is
----------
Each rank makes all the calls, and one rank makes two of them the other way round.
Collectives on one group pair up by order alone.

Why it matters
--------------
If the sizes differ, the job aborts or hangs. If they agree, tensors that have nothing
to do with each other are combined, and no error ever tells.

Sick
----
Names of parameters come from a set, whose order differs per process:

    rank 0 | all_reduce(16)@train.py:7&...issued  all_reduce(64)@train.py:7&...issued
    rank 1 | all_reduce(64)@train.py:7&!
    rank 2 | all_reduce(16)@train.py:7&!

The sizes agree, and only the lines tell:

    rank 0 | all_reduce(4)@train.py:7  all_reduce(4)@train.py:8  exit=0
    rank 1 | all_reduce(4)@train.py:8  all_reduce(4)@train.py:7  exit=0
    rank 2 | all_reduce(4)@train.py:7  all_reduce(4)@train.py:8  exit=0

From one line the sizes agree as well, and only the names tell: each rank goes through
its metrics in the order in which it met them, and keeps each mean under its name. (What
is kept is read from the source, and no drawing tells it.)

From one line the sizes agree, and of each call it was recognised which parameter's
gradient it carried:

    rank 0 | holds(names=a.w+b.w,sizes=8+8)@t.py:5  all_reduce(8)@t.py:8  all_reduce(8)@t.py:8
           | gradients(step=1,prints=5+6,weights=7+8,passes=1,moved=16)@t.py:9
           | sent(step=1,positions=0+1,calls=1+2,own=1+2,sent=1+2,factors=1+1)@t.py:8  exit=0
    rank 1 | holds(names=a.w+b.w,sizes=8+8)@t.py:5  all_reduce(8)@t.py:8  all_reduce(8)@t.py:8
           | gradients(step=1,prints=3+4,weights=7+8,passes=1,moved=16)@t.py:9
           | sent(step=1,positions=0+1,calls=2+1,own=3+4,sent=3+4,factors=1+1)@t.py:8  exit=0

Each leaves out the parameters that its own batch did not use:

    rank 0 | holds(names=t.w+a.w+b.w,sizes=8+8+8)@t.py:5  all_reduce(8)@t.py:8  all_reduce(8)@t.py:8
           | gradients(step=1,prints=4+5+0,weights=7+8+9,passes=1,moved=24)@t.py:9
           | sent(step=1,positions=0+1,calls=1+2,own=1+2,sent=1+2,factors=1+1)@t.py:8  exit=0
    rank 1 | holds(names=t.w+a.w+b.w,sizes=8+8+8)@t.py:5  all_reduce(8)@t.py:8  all_reduce(8)@t.py:8
           | gradients(step=1,prints=4+0+6,weights=7+8+9,passes=1,moved=24)@t.py:9
           | sent(step=1,positions=0+2,calls=1+2,own=3+4,sent=3+4,factors=1+1)@t.py:8  exit=0

Well
----
Each two of three ranks share a layer, which their models have at other places:

    group ab | 0 1
    group bc | 1 2
    group ca | 0 2
    rank 0 | holds(names=0.w+1.w,sizes=8+8)@t.py:5  all_reduce(8)/ab@t.py:8  all_reduce(8)/ca@t.py:8
           | gradients(step=1,prints=4+5,weights=7+8,passes=1,moved=16)@t.py:9
           | sent(step=1,positions=0+1,calls=1+2,own=1+2,sent=1+2,factors=1+1)@t.py:8  exit=0
    rank 1 | holds(names=0.w+1.w,sizes=8+8)@t.py:5  all_reduce(8)/ab@t.py:8  all_reduce(8)/bc@t.py:8
           | gradients(step=1,prints=6+4,weights=7+8,passes=1,moved=16)@t.py:9
           | sent(step=1,positions=1+0,calls=1+2,own=1+2,sent=1+2,factors=1+1)@t.py:8  exit=0
    rank 2 | holds(names=0.w+1.w,sizes=8+8)@t.py:5  all_reduce(8)/bc@t.py:8  all_reduce(8)/ca@t.py:8
           | gradients(step=1,prints=5+6,weights=7+8,passes=1,moved=16)@t.py:9
           | sent(step=1,positions=1+0,calls=1+2,own=1+2,sent=1+2,factors=1+1)@t.py:8  exit=0

What is recognised of a bucket on one rank, and of it on another, is not the same:

    rank 0 | holds(names=t.w+a.w+b.w,sizes=8+8+8)@t.py:5  all_reduce(24)@t.py:8
           | gradients(step=1,prints=4+5+6,weights=7+8+9,passes=1,moved=24)@t.py:9
           | sent(step=1,positions=1,calls=1,own=1,sent=1,factors=1)@t.py:8  exit=0
    rank 1 | holds(names=t.w+a.w+b.w,sizes=8+8+8)@t.py:5  all_reduce(24)@t.py:8
           | gradients(step=1,prints=4+5+6,weights=7+8+9,passes=1,moved=24)@t.py:9
           | sent(step=1,positions=2,calls=1,own=3,sent=3,factors=1)@t.py:8  exit=0

Different lines, in no order that crosses:

    rank 0 | all_reduce(4)@train.py:3  all_reduce(4)@train.py:4  exit=0
    rank 1 | all_reduce(4)@train.py:6  all_reduce(4)@train.py:7  exit=0

Two groups are ordered apart:

    rank 0 | all_reduce(4)/dp&  all_reduce(8)/tp&  exit=0
    rank 1 | all_reduce(8)/tp&  all_reduce(4)/dp&  exit=0

A loop over names from one line, in one order:

    rank 0 | all_reduce(2)@t.py:9  turn(variables=name,names=easy,ordinal=1)@t.py:7  all_reduce(2)@t.py:9  turn(variables=name,names=hard,ordinal=2)@t.py:7  exit=0
    rank 1 | all_reduce(2)@t.py:9  turn(variables=name,names=easy,ordinal=1)@t.py:7  all_reduce(2)@t.py:9  turn(variables=name,names=hard,ordinal=2)@t.py:7  exit=0

Gradients in one order, of which a rank's first was not recognised; and two that ranks
send in orders of their own and use alike, as what sums all of them does:

    rank 0 | holds(names=a.w+b.w,sizes=8+8)@t.py:5  all_reduce(8)@t.py:8  all_reduce(8)@t.py:8
           | gradients(step=1,prints=5+6,weights=7+8,passes=1,moved=16)@t.py:9
           | sent(step=1,positions=0+1,calls=1+2,own=1+2,sent=1+2,factors=1+1)@t.py:8
           | all_reduce(8)@t.py:8  all_reduce(8)@t.py:8
           | gradients(step=2,prints=9+9,weights=4+3,passes=1,moved=16)@t.py:9
           | sent(step=2,positions=0+1,calls=3+4,own=1+2,sent=1+2,factors=1+1)@t.py:8  exit=0
    rank 1 | holds(names=a.w+b.w,sizes=8+8)@t.py:5  all_reduce(8)@t.py:8  all_reduce(8)@t.py:8
           | gradients(step=1,prints=5+6,weights=7+8,passes=1,moved=16)@t.py:9
           | sent(step=1,positions=0+1,calls=0+2,own=3+4,sent=3+4,factors=0+1)@t.py:8
           | all_reduce(8)@t.py:8  all_reduce(8)@t.py:8
           | gradients(step=2,prints=9+9,weights=4+3,passes=1,moved=16)@t.py:9
           | sent(step=2,positions=0+1,calls=4+3,own=3+4,sent=3+4,factors=1+1)@t.py:8  exit=0

Tasks in orders of their own, of which the source keeps nothing by name:

    rank 0 | all_reduce(2)@t.py:9  turn(variables=task,names=easy,ordinal=1)@t.py:7  all_reduce(2)@t.py:9  turn(variables=task,names=hard,ordinal=2)@t.py:7  exit=0
    rank 1 | all_reduce(2)@t.py:9  turn(variables=task,names=hard,ordinal=1)@t.py:7  all_reduce(2)@t.py:9  turn(variables=task,names=easy,ordinal=2)@t.py:7  exit=0

Unknown
-------
A rank without a journal may be the one that strayed:

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?

Remedy
------
Iterate in one order on all ranks: `sorted(...)` over names, never over a set, a
directory listing or anything a per-rank seed has shuffled. Of averages by hand, send
zeros for a parameter without a gradient: `if p.grad is None` is not so on all ranks.

Known problems
--------------
Where calls of one size come from one line, and neither the name of a loop nor the
gradient that they carry tells them apart, as in hooks that run within backward in
another order or records taken in the order of a rank's data, a swap is not seen: the
run is well, or DD404 tells what comes of it. What is kept under which name is read from
the source, and gradients are recognised by their memory or by their values, so that
such a finding is likely at most.

References
----------
- torch's note on how DDP works – https://docs.pytorch.org/docs/stable/notes/ddp.html
- Li et al. (2020), PyTorch Distributed – https://arxiv.org/abs/2006.15704
"""  # noqa: E501 - a drawing is as wide as what a rank did

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause, capital, s
from distdoctor.analysis.collectives.unlike_calls import SwappedCalls
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.divergence.gradient_orders import GradientOrders
from distdoctor.analysis.divergence.loop_orders import LoopOrders
from distdoctor.analysis.divergence.swapped_calls import CrossedCalls, UnseenSwap
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.sentences import sentence_of
from distdoctor.model.events import Call
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run, named

CODE = "DD107"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """The meetings at which ranks make the same calls in another order."""
    yield from findings(run, Cause.ORDER)
    require_whole(run)


@sentence_of(Cause.ORDER)
def _sentence(
    swap: SwappedCalls | CrossedCalls | UnseenSwap | LoopOrders | GradientOrders,
) -> str:
    if isinstance(swap, GradientOrders):
        brought = "; ".join(
            f"{named(ranks)}: {', '.join(names[:_MOST_NAMES])}"
            + ", …" * (len(names) > _MOST_NAMES)
            for ranks, names in swap.brought
        )
        how = "they send them in orders of their own"
        if swap.alone:
            how = "each leaves out parameters that others send, as those it did not use"
        return (
            f"At {swap.where} ranks bring the gradients of different parameters "
            f"({brought}), at step {swap.step}: {how}, and what belongs to different "
            "parameters was combined without an error."
        )
    if isinstance(swap, LoopOrders):
        return (
            f"{capital(named(swap.ranks))} go through the same names at {swap.loop}, "
            f"in different orders ({_orders(swap)}), and make a call for each "
            f"({swap.where} is the first for different names): what belongs to "
            "different names was combined without an error."
        )
    they_make = f"{capital(named(swap.few))} make{s(swap.few)}"
    if isinstance(swap, UnseenSwap) and swap.names:
        first, second = swap.ordinals
        return (
            f"{they_make} calls {first} and {second} on {swap.group} in the opposite "
            f"order: {named(swap.many)} give them {' and then '.join(swap.names)}, and "
            f"{named(swap.few)} the other way round. In eager TensorFlow Horovod does "
            "not go by these names, so what belongs to different names was combined "
            "without an error."
        )
    if isinstance(swap, UnseenSwap):
        what = "from the same two lines as" if swap.by_lines else "of the same text as"
        first, second = swap.ordinals
        return (
            f"{they_make} calls {first} and {second} on {swap.group} {what} "
            f"{named(swap.many)}, in the opposite order; they are of one size, so "
            "tensors that do not belong together were combined without an error."
        )
    (call, mine), (other, theirs) = swap.calls
    if isinstance(swap, CrossedCalls):
        return (
            f"{they_make} two calls in another order than {named(swap.many)}: at "
            f"{swap.where} it is {call} ({call.place}) on {named(mine)} and {other} "
            f"({other.place}) on {named(theirs)}, and the source has each of them "
            "follow there on the other's."
        )
    return (
        f"{they_make} the calls on {swap.group} in another order than "
        f"{named(swap.many)}: call {swap.ordinal} is {call} on {named(mine)} and "
        f"{other} on {named(theirs)}."
    )


_MOST_NAMES = 4  # names of an order


def _orders(unlike: LoopOrders) -> str:
    return "; ".join(
        f"{named(ranks)}: {', '.join('/'.join(names) for names in order[:_MOST_NAMES])}"
        + ", …" * (len(order) > _MOST_NAMES)
        for ranks, order in unlike.orders
    )
