"""The learning rate is that of a smaller batch than all ranks train with together.

What it is
----------
The job says itself which batch its learning rate was found for: by the names of its
arguments and constants, or beside the rate in words. Now several ranks read a batch
each, gradients may be accumulated besides, and a step is made for many times as many
samples; the rate is still the one that was found for the smaller batch.

Why it matters
--------------
With N times as many samples to a step, there are N times fewer steps in an epoch, each
with a better gradient. With the old rate, the model comes about as far as in an N-th of
the training, and the additional ranks buy little. Nothing is wrong with the gradients,
and a rate may have been found anew: this is a piece of advice.

Sick
----
The base rate belongs to 16 samples, and four ranks read 16 each:

    rank 0 | wrap=ddp:w  arguments(names=base_batch+base_lr,values=16+0.02)@t.py:3
           | hyperparameters(shared,kind=SGD,names=0.lr,values=0.02)@t.py:9
           | read(batch=16,steps=15)@t.py:7
           | rate_course(steps=15,rates=.02,highest=.02,last=.02)  exit=0
    rank 1 | wrap=ddp:w  read(batch=16,steps=15)@t.py:7  exit=0
    rank 2 | wrap=ddp:w  read(batch=16,steps=15)@t.py:7  exit=0
    rank 3 | wrap=ddp:w  read(batch=16,steps=15)@t.py:7  exit=0

Four batches are accumulated by each of two ranks:

    rank 0 | wrap=ddp:w  arguments(names=ref_batch_size+ref_lr,values=32+0.1)@t.py:3
           | hyperparameters(shared,kind=SGD,names=0.lr,values=0.1)@t.py:9
           | window(reads=0,batches=4,factor=0.25,more=9)@t.py:9
           | read(batch=32,steps=10)@t.py:7
           | rate_course(steps=10,rates=.1,highest=.1,last=.1)  exit=0
    rank 1 | wrap=ddp:w  window(reads=0,batches=4,factor=0.25,more=9)@t.py:9
           | read(batch=32,steps=10)@t.py:7  exit=0

Well
----
The rate was scaled:

    rank 0 | wrap=ddp:w  arguments(names=base_batch+base_lr,values=16+0.02)@t.py:3
           | hyperparameters(shared,kind=SGD,names=0.lr,values=0.04)@t.py:9
           | read(batch=16,steps=15)@t.py:7
           | rate_course(steps=15,rates=.04,highest=.04,last=.04)  exit=0
    rank 1 | wrap=ddp:w  read(batch=16,steps=15)@t.py:7  exit=0

A warm-up leads to the scaled rate:

    rank 0 | wrap=ddp:w  arguments(names=base_batch+base_lr,values=16+0.02)@t.py:3
           | hyperparameters(shared,kind=SGD,names=0.lr,values=0.02)@t.py:9
           | read(batch=16,steps=3)@t.py:7
           | rate_course(steps=3,rates=.02+.04+.04,highest=.04,last=.04)
           | exit=0
    rank 1 | wrap=ddp:w  read(batch=16,steps=3)@t.py:7  exit=0

The ranks share the batch of the recipe:

    rank 0 | wrap=ddp:w  arguments(names=base_batch+base_lr,values=16+0.02)@t.py:3
           | hyperparameters(shared,kind=SGD,names=0.lr,values=0.02)@t.py:9
           | read(batch=8,steps=15)@t.py:7
           | rate_course(steps=15,rates=.02,highest=.02,last=.02)  exit=0
    rank 1 | wrap=ddp:w  read(batch=8,steps=15)@t.py:7  exit=0

Nothing says which batch the rate belongs to:

    rank 0 | wrap=ddp:w  arguments(names=batch_size+lr,values=16+0.02)@t.py:3
           | hyperparameters(shared,kind=SGD,names=0.lr,values=0.02)@t.py:9
           | read(batch=16,steps=15)@t.py:7
           | rate_course(steps=15,rates=.02,highest=.02,last=.02)  exit=0
    rank 1 | wrap=ddp:w  read(batch=16,steps=15)@t.py:7  exit=0

Unknown
-------
Without the journal of a rank, nobody knows how large the global batch is:

    rank 0 | wrap=ddp:w  arguments(names=base_batch+base_lr,values=16+0.02)@t.py:3
           | rate_course(steps=15,rates=.02,highest=.02,last=.02)
           | read(batch=16,steps=15)@t.py:7  exit=0
    rank 1 | ?

Remedy
------
Scale the learning rate with the global batch: with N times the batch, N times the rate
for SGD (Goyal et al. 2017, arXiv:1706.02677), and up to the square root of N times for
Adam and its like (Krizhevsky 2014, arXiv:1404.5997; You et al. 2019, arXiv:1904.00962).
Lead to it with a warm-up of a few epochs, from the old rate up:
`lr = base_lr * batch_per_rank * world_size * window / base_batch`. If the rate was
found anew for this global batch, say so by the base batch that stands beside it.

Known problems
--------------
Nothing is said of a rate whose recipe the job does not state by a name or in words, in
English. A rate that is to be multiplied by a factor whose default leaves it as it is
goes unseen, and so does a rate that was found for this batch and stands beside an old
remark. The two rules are rules of thumb.

References
----------
- Goyal et al. (2017), Accurate, Large Minibatch SGD – https://arxiv.org/abs/1706.02677
- Krizhevsky (2014), One weird trick – https://arxiv.org/abs/1404.5997
- You et al. (2019), Large Batch Optimization for Deep Learning –
  https://arxiv.org/abs/1904.00962
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.gradients.used_gradients import places
from distdoctor.analysis.learning_rate.rate_scaling import Unscaled, unscaled
from distdoctor.analysis.learning_rate.schedules import rate_details
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.learning_rate import RateCourse
from distdoctor.model.run import Run, named

CODE = "DD531"
SEVERITY = Severity.NOTE
NEEDS = (RateCourse,)


def examine(run: Run) -> Iterator[Finding]:
    """Learning rates that their recipe gives for a smaller batch."""
    for one in unscaled(run):
        yield _finding(run, one)
    require_whole(run)


def _finding(run: Run, one: Unscaled) -> Finding:
    ranks, batch = one.ranks, one.batch
    rule = (
        "the square-root rule for adaptive optimizers"
        if one.adaptive
        else "the linear scaling rule"
    )
    stated = [
        Location(place, ranks, Role.CULPRIT, "says what the rate is for")
        for place in one.recipe.places
    ]
    return Finding(
        message=f"{capital(named(ranks))} train with a global batch of "
        f"{batch.samples:,} samples, {_parts(one)}, {one.times:.3g} times the "
        f"{one.base:,} that the recipe's learning rate is for ({one.recipe.evidence}), "
        f"and {one.kind} steps with that rate, {one.rate:.4g}: it was not scaled with "
        f"the global batch; by {rule} it is {one.by_rule:.4g}, behind a warm-up, "
        f"unless {one.rate:.4g} was found for this batch",
        exhibits=one.exhibits,
        locations=(
            *places(one.makers, ranks, "makes the optimizer"),
            *stated,
            *places(one.exhibits, ranks, "makes the step"),
        ),
        certainty=Certainty.LIKELY,
        details={
            "global_batch": batch.samples,
            "base_batch": one.base,
            "window": batch.window,
            "rate": one.rate,
            "rate_by_rule": one.by_rule,
            "rule": "square root" if one.adaptive else "linear",
            **rate_details(run, ranks[0], one.optimizer),
        },
    )


def _parts(one: Unscaled) -> str:
    batch = one.batch
    sizes = sorted(set(batch.of_ranks.values()))
    each = "/".join(map(str, sizes))
    parts = f"{each} on each of {len(batch.of_ranks)} ranks"
    return parts if batch.window == 1 else f"{batch.window} times {parts}"
