"""A root or peer is named that is not in the group.

What it is
----------
`src`, `dst` and `peer` are ranks of the whole job, `group_src`, `group_dst` and
`group_peer` are positions within the group. Here a rank names one that is not in the
group of the call: the position where the rank is asked for (`src=0` on a group of ranks
2 and 3), a neighbour beyond the last rank, or a world that is larger than the real one.

Why it matters
--------------
At best torch refuses the call, on the ranks that reach it, and the others wait for
them. A `send` to a rank that does not exist waits for it, for ever.

Sick
----
The last of the ring sends to a neighbour that it does not have:

    rank 0 | send(4,peer=1)@t.py:7  recv(4,peer=1)@t.py:8...
    rank 1 | send(4,peer=2)@t.py:7...

Both members of a group name a root that is in another:

    group pair | 2 3
    rank 0 | all_reduce(4)@t.py:5...
    rank 1 | all_reduce(4)@t.py:5...
    rank 2 | broadcast(4,root=2)/pair@t.py:7^  exit=1
    rank 3 | broadcast(4,root=2)/pair@t.py:7^  exit=1

Well
----
The ring is closed, and roots are named by their position in the group:

    group pair | 1 2
    rank 0 | send(4,peer=1)  recv(4,peer=2)  exit=0
    rank 1 | recv(4,peer=0)  send(4,peer=2)  broadcast(4,root=1)/pair  exit=0
    rank 2 | recv(4,peer=1)  send(4,peer=0)  broadcast(4,root=1)/pair  exit=0

Unknown
-------
A rank without a journal may be the one that strayed:

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?

Remedy
------
Pass `group_src=`/`group_dst=` with positions, or `src=`/`dst=` with ranks of the whole
job (`dist.get_global_rank(group, position)` turns one into the other), and take
neighbours modulo `dist.get_world_size(group)`.

Known problems
--------------
A position in the group that was meant and a rank of the job that is asked for, or the
reverse, go unseen where both numbers exist in the group; if they differ among ranks,
DD105 tells. What torch refuses is known by the text of its error, which another release
may put otherwise.

References
----------
- pytorch: src and dst are ranks of the whole job –
  https://github.com/pytorch/pytorch/pull/118593
- pytorch: group_src and group_dst – https://github.com/pytorch/pytorch/pull/140460
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause, capital, failed, s
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.groups.non_member_calls import OutsideRank, RefusedRank
from distdoctor.analysis.sentences import sentence_of
from distdoctor.model.events import Call
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run, named

CODE = "DD110"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """Calls that name a rank outside of their group."""
    yield from findings(run, Cause.STRANGER)
    require_whole(run)


@sentence_of(Cause.STRANGER)
def _sentence(stray: RefusedRank | OutsideRank) -> str:
    if isinstance(stray, RefusedRank):
        return f"{failed(stray.ranks, stray.failure)}."
    who = f"{capital(named(stray.ranks))} name{s(stray.ranks)}"
    call, members = stray.call, stray.members
    if call.peer is not None and members[call.peer : call.peer + 1] == (call.rank,):
        return f"{who} itself in {call.op}; nobody can be both sides of a message."
    whom = call.peer if call.root is None else call.root
    return (
        f"{who} rank {whom} of {call.group} in {call.op}, which has {len(members)} "
        f"members (0 to {len(members) - 1})."
    )
