"""A rank takes one dimension of the mesh for another.

What it is
----------
In a device mesh each rank is in one group per dimension. At one line of the source all
ranks mean the same dimension, so the groups they use there divide the ranks among
them. Here a rank uses the group of another dimension.

Why it matters
--------------
Its call waits for ranks that never come, or pairs with what they do at another line: a
sum of activations with a sum of gradients. With equal sizes nothing fails, and the
model learns from nonsense.

Sick
----
Rank 1 sums its activations over its replicas, where the others sum over their shards:

    group shard_a | 0 1
    group shard_b | 2 3
    group copy_a | 0 2
    group copy_b | 1 3
    rank 0 | all_reduce(8)/shard_a@t.py:7...
    rank 1 | all_reduce(8)/copy_b@t.py:7...
    rank 2 | all_reduce(8)/shard_b@t.py:7  all_reduce(6)/copy_a@t.py:9...
    rank 3 | all_reduce(8)/shard_b@t.py:7  all_reduce(6)/copy_b@t.py:9!

All sizes are equal, and every call finds a partner:

    group shard_a | 0 1
    group shard_b | 2 3
    group copy_a | 0 2
    group copy_b | 1 3
    rank 0 | all_reduce(8)/shard_a@t.py:7  all_reduce(8)/copy_a@t.py:9   exit=0
    rank 1 | all_reduce(8)/copy_b@t.py:7   all_reduce(8)/shard_a@t.py:9  exit=0
    rank 2 | all_reduce(8)/shard_b@t.py:7  all_reduce(8)/copy_a@t.py:9   exit=0
    rank 3 | all_reduce(8)/shard_b@t.py:7  all_reduce(8)/copy_b@t.py:9   exit=0

Well
----
Each rank uses its own group of the same dimension:

    group shard_a | 0 1
    group shard_b | 2 3
    group copy_a | 0 2
    group copy_b | 1 3
    rank 0 | all_reduce(8)/shard_a@t.py:7  all_reduce(8)/copy_a@t.py:9  exit=0
    rank 1 | all_reduce(8)/shard_a@t.py:7  all_reduce(8)/copy_b@t.py:9  exit=0
    rank 2 | all_reduce(8)/shard_b@t.py:7  all_reduce(8)/copy_a@t.py:9  exit=0
    rank 3 | all_reduce(8)/shard_b@t.py:7  all_reduce(8)/copy_b@t.py:9  exit=0

Leaders talk among themselves at the line where the rest waits for them:

    group heads | 0 2
    group left | 0 1
    group right | 2 3
    rank 0 | broadcast(8)/heads@t.py:7  broadcast(8)/left@t.py:9  exit=0
    rank 1 | broadcast(8)/left@t.py:7   .                         exit=0
    rank 2 | broadcast(8)/heads@t.py:7  broadcast(8)/right@t.py:9  exit=0
    rank 3 | broadcast(8)/right@t.py:7  .                         exit=0

Unknown
-------
A rank without a journal may be the one that is confused:

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?

Remedy
------
Build the mesh from one description on all ranks (send rank 0's with
`broadcast_object_list`), and take groups by the name of the dimension, not by position.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.communication.divergence import findings
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.reasons import Why
from distdoctor.model.events import Call
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Run

CODE = "DD117"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """Ranks that use the group of another dimension than their peers."""
    yield from findings(run, Why.MESH)
    require_whole(run)
