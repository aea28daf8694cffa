"""Ranks create process groups of their own, or in different orders.

What it is
----------
`new_group` is a call of the whole job: every rank must create every group, also those
it is not a member of, and all in one order. Here some ranks leave a group out, because
the call stands in a branch for its members, or create the same groups the other way
round.

Why it matters
--------------
The ranks meet in `new_group` by counting: the second group of one rank is the second of
all others, whatever its members. So they wait for each other for ever, or connect two
different groups to each other.

Sick
----
Rank 2 is no member of the first group and goes on to the second:

    rank 0 | new_group(names=0+1)@t.py:7  .
    rank 1 | new_group(names=0+1)@t.py:7  .
    rank 2 | new_group(names=0+1+2)@t.py:9!

The members alone create their group, and the rest waits for them in the next call:

    rank 0 | new_group(names=0+1)@t.py:7...inside
    rank 1 | new_group(names=0+1)@t.py:7...inside
    rank 2 | barrier@t.py:9...

One rank has ended without it:

    rank 0 | new_group(names=0+1)@t.py:7...inside  .
    rank 1 | new_group(names=0+1)@t.py:7...inside  .
    rank 2 | leave                                 exit=0

Well
----
All create both groups, and the members alone use theirs:

    group pair | 0 1
    rank 0 | new_group(names=0+1)  new_group(names=2)  all_reduce(4)/pair  exit=0
    rank 1 | new_group(names=0+1)  new_group(names=2)  all_reduce(4)/pair  exit=0
    rank 2 | new_group(names=0+1)  new_group(names=2)  exit=0

Each creates a group of its own alone, in which nobody is waited for:

    rank 0 | new_group(names=0)  all_reduce(4)  exit=0
    rank 1 | new_group(names=1)  all_reduce(4)  exit=0
    rank 2 | new_group(names=2)  all_reduce(4)  exit=0

Unknown
-------
A rank without a journal may be the one that strayed:

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?

Remedy
------
Call `new_group` for every group on every rank, outside of any branch on the rank, in
one order (loop over a sorted list), and keep the groups this rank is a member of. Or
use `init_device_mesh`, which does it for you, or `use_local_synchronization=True`,
with which only the members must call.

Known problems
--------------
Groups are compared by their members: one that is made with another backend, timeout or
name on a rank counts as equal. A communicator that a library makes by itself, past
`torch.distributed`, is not seen.

References
----------
- pytorch: new_group with other ranks on each process –
  https://github.com/pytorch/pytorch/issues/25390
- `torch/distributed/distributed_c10d.py` (pytorch/pytorch), `new_group`
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause, capital, s, waits
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.rendezvous.group_creation import GroupNotMade, UnlikeGroups
from distdoctor.analysis.sentences import sentence_of
from distdoctor.model.events import Call
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run, named

CODE = "DD109"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """Groups that not all ranks created, or not in the same order."""
    yield from findings(run, Cause.GROUPS)
    require_whole(run)


@sentence_of(Cause.GROUPS)
def _sentence(fault: GroupNotMade | UnlikeGroups) -> str:
    match fault:
        case UnlikeGroups(made):
            each = "; ".join(
                f"{named(ranks)} create{s(ranks)} the group of {members}"
                for ranks, members in made
            )
            return (
                f"The ranks create different groups in the same step: {each}. Every "
                "rank of the job must create every group, member or not, in one order."
            )
        case GroupNotMade(makers, members, absent, ""):
            return (
                f"{capital(named(makers))} {waits(makers)} in new_group for the group "
                f"of {members}, which {named(absent)} never create{s(absent)}: every "
                "rank of the job must, member or not."
            )
        case GroupNotMade(makers, members, absent, instead):
            alone = len(absent) == 1
            return (
                f"{capital(named(makers))} {waits(makers)} in new_group for the group "
                f"of {members}, which {named(absent)} {'does' if alone else 'do'} not "
                f"create: {'it waits' if alone else 'they wait'} in {instead}. Every "
                "rank of the job must create every group, member or not."
            )
