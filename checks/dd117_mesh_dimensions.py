"""A rank takes one dimension of the mesh for another.

What it is
----------
In a device mesh each rank is in one group per dimension. At one line of the source all
ranks mean the same dimension, so the groups they use there divide the ranks among
them. Here a rank uses the group of another dimension.

Or all of them do: gradients are averaged among the ranks that hold the shards of one
model, and not among those that hold the same shard.

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

The dimension is chosen by the parity of the rank; the even ones make a whole group:

    group shard_a | 0 1
    group shard_b | 2 3
    group copy_a | 0 2
    group copy_b | 1 3
    rank 0 | all_reduce(8)/copy_a@t.py:7   barrier@t.py:9...
    rank 1 | all_reduce(8)/shard_a@t.py:7...
    rank 2 | all_reduce(8)/copy_a@t.py:7   barrier@t.py:9...
    rank 3 | all_reduce(8)/shard_b@t.py:7...

So it is too where all ranks use the other dimension at another line:

    group shard_a | 0 1
    group shard_b | 2 3
    group copy_a | 0 2
    rank 0 | all_reduce(8)/shard_a@t.py:5  all_reduce(6)/copy_a@t.py:7   all_reduce(8)/shard_a@t.py:5!
    rank 1 | all_reduce(8)/shard_a@t.py:5  all_reduce(6)/shard_a@t.py:7...
    rank 2 | all_reduce(8)/shard_b@t.py:5  all_reduce(6)/copy_a@t.py:7   all_reduce(8)/shard_b@t.py:5!
    rank 3 | all_reduce(8)/shard_b@t.py:5  all_reduce(6)/shard_b@t.py:7...

Gradients of two shards, which began differently, are averaged with each other, and
those of their copies are not:

    group shards_a | 0 1
    group shards_b | 2 3
    rank 0 | trained(names=w,numels=40)@t.py:4  all_reduce(16)/shards_a@t.py:6  within@t.py:6  all_reduce(40)/shards_a@t.py:9  sent@t.py:9  weights(step=1,prints=1,gradients=5)@t.py:10
    rank 1 | trained(names=w,numels=40)@t.py:4  all_reduce(16)/shards_a@t.py:6  within@t.py:6  all_reduce(40)/shards_a@t.py:9  sent@t.py:9  weights(step=1,prints=2,gradients=5)@t.py:10
    rank 2 | trained(names=w,numels=40)@t.py:4  all_reduce(16)/shards_b@t.py:6  within@t.py:6  all_reduce(40)/shards_b@t.py:9  sent@t.py:9  weights(step=1,prints=1,gradients=6)@t.py:10
    rank 3 | trained(names=w,numels=40)@t.py:4  all_reduce(16)/shards_b@t.py:6  within@t.py:6  all_reduce(40)/shards_b@t.py:9  sent@t.py:9  weights(step=1,prints=2,gradients=6)@t.py:10

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

Gradients are averaged among the ranks that hold the same shard:

    group shards_a | 0 1
    group shards_b | 2 3
    group copies_a | 0 2
    group copies_b | 1 3
    rank 0 | trained(names=w,numels=40)  all_reduce(16)/shards_a  within  all_reduce(40)/copies_a  weights(step=1,prints=1,gradients=5)
    rank 1 | trained(names=w,numels=40)  all_reduce(16)/shards_a  within  all_reduce(40)/copies_b  weights(step=1,prints=2,gradients=6)
    rank 2 | trained(names=w,numels=40)  all_reduce(16)/shards_b  within  all_reduce(40)/copies_a  weights(step=1,prints=1,gradients=5)
    rank 3 | trained(names=w,numels=40)  all_reduce(16)/shards_b  within  all_reduce(40)/copies_b  weights(step=1,prints=2,gradients=6)

Two pairs train a model each, and the pairs began alike (an ensemble, say):

    rank 0 | trained(names=w,numels=40)  all_reduce(16)/a  within  all_reduce(40)/a  weights(step=1,prints=1,gradients=5)
    rank 1 | trained(names=w,numels=40)  all_reduce(16)/a  within  all_reduce(40)/a  weights(step=1,prints=1,gradients=5)
    rank 2 | trained(names=w,numels=40)  all_reduce(16)/b  within  all_reduce(40)/b  weights(step=1,prints=1,gradients=6)
    rank 3 | trained(names=w,numels=40)  all_reduce(16)/b  within  all_reduce(40)/b  weights(step=1,prints=1,gradients=6)

Unknown
-------
A rank without a journal may be the one that is confused:

    rank 0 | start=2  all_reduce(4)  exit=0
    rank 1 | ?

Remedy
------
Build the mesh from one description on all ranks (send rank 0's with
`broadcast_object_list`), and take groups by the name of the dimension, not by position.

Known problems
--------------
It takes four ranks, all of them seen, and groups that divide the ranks among them; with
fewer, a wrong dimension is told as a mismatch. Ranks that use one dimension for another
everywhere are found only where shards that began differently are averaged.

References
----------
- `torch/distributed/device_mesh.py` (pytorch/pytorch), `init_device_mesh`
- `torch/distributed/distributed_c10d.py` (pytorch/pytorch), `new_group`, on the order
  of groups
"""  # noqa: E501 - a drawing is as wide as what a rank did

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import Cause, s
from distdoctor.analysis.divergence.cascade import findings
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.groups.mesh_dimensions import OtherDimension
from distdoctor.analysis.replicas import averaged_shards
from distdoctor.analysis.sentences import sentence_of
from distdoctor.model.events import Call
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.run import Group, Run, named

CODE = "DD117"
SEVERITY = Severity.ERROR
NEEDS = (Call,)


def examine(run: Run) -> Iterator[Finding]:
    """Ranks that use the group of another dimension: some of them, or all."""
    yield from findings(run, Cause.MESH)
    yield from averaged_shards.findings(run)
    require_whole(run)


@sentence_of(Cause.MESH)
def _sentence(used: OtherDimension) -> str:
    others = "where the others count it in"
    if used.by_halves:
        others = "whose other members never do, and are there in"
    what = ", and tensors that do not belong together were combined"
    return (
        f"At {used.place} {named(used.ranks)} use{s(used.ranks)} {_group(used.group)}, "
        f"{others} {_group(used.right)}: it takes one dimension of the mesh for another"
        f"{what if used.unnoticed else ''}."
    )


def _group(group: Group) -> str:
    return f"{group.name} (ranks {', '.join(map(str, group.ranks))})"
