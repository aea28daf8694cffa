"""Each epoch goes through the samples in the same order.

What it is
----------
DistributedSampler shuffles by its seed and the number of the epoch, which it learns
from `set_epoch` alone. Where nobody calls it, where the seed is set anew in each epoch,
or where a resumed job counts its epochs from 0 again, orders come back.

Why it matters
--------------
Each batch is made of the same samples every time, in the same place. Nothing fails; the
model learns that order, and less of the rest.

Sick
----
Nobody calls `set_epoch`:

    rank 0 | read(samples=7+0-6,steps=4,shuffled)@t.py:9
           | read(number=1,samples=7+0-6,steps=4,shuffled)@t.py:9
    rank 1 | read(samples=15+8-14,steps=4,shuffled)@t.py:9
           | read(number=1,samples=15+8-14,steps=4,shuffled)@t.py:9

It counts from 0 again after it was resumed, with another optimizer:

    rank 0 | read(samples=7+0-6,steps=4,shuffled,optimizer=1)@t.py:9
           | read(number=1,samples=0-5+7+6,steps=4,shuffled,optimizer=1)@t.py:9
           | read(number=2,samples=7+0-6,steps=4,shuffled,optimizer=2,resumed=1)@t.py:9

The dataset and its loader are made anew for each epoch, and hold the same:

    rank 0 | held(number=1,names=x,rows=7)
           | read(loader=1,dataset=1,samples=7+0-6,steps=4,shuffled)@t.py:9
           | held(number=2,names=x,rows=7)
           | read(number=1,loader=2,dataset=2,samples=7+0-6,steps=4,shuffled)@t.py:9

Six samples of twelve, in the same order; by chance that is one case in 665,280:

    rank 0 | read(samples=7+0+9+3+11+4,steps=4,shuffled,replicas=2)@t.py:9
           | read(number=1,samples=7+0+9+3+11+4,steps=4,shuffled,replicas=2)@t.py:9

Each epoch is read twice, as somebody may have meant it; that is a warning:

    rank 0 | made(number=1,role=epoch)@t.py:8
           | read(made=1,samples=7+0-6,steps=4,shuffled)@t.py:9
           | read(made=1,number=1,samples=7+0-6,steps=4,shuffled)@t.py:9
           | read(made=1,number=2,samples=0-5+7+6,steps=4,shuffled)@t.py:9

A subset with the same order is made anew for each epoch:

    rank 0 | made(number=1,role=subset)@t.py:8
           | read(made=1,view=1,samples=7+0-6,steps=4,rising)@t.py:9
           | read(number=1,made=1,view=2,samples=7+0-6,steps=4,rising)@t.py:9

Well
----
Each epoch has its own order:

    rank 0 | read(samples=7+0-6,steps=4,shuffled)@t.py:9
           | read(number=1,samples=0-5+7+6,steps=4,shuffled)@t.py:9

Nothing is to shuffle: a curriculum, from the easy to the hard:

    rank 0 | read(samples=7+0-6,steps=4)@t.py:9
           | read(number=1,samples=7+0-6,steps=4)@t.py:9

Several trainings, each from the same seed:

    rank 0 | read(samples=7+0-6,steps=4,shuffled,optimizer=1)@t.py:9
           | read(number=1,samples=7+0-6,steps=4,shuffled,optimizer=2)@t.py:9

Two datasets of equal length are read by one line, each with a loader of its own:

    rank 0 | read(loader=1,dataset=1,samples=7+0-6,steps=4,shuffled)@t.py:9
           | read(number=1,loader=2,dataset=2,samples=7+0-6,steps=4,shuffled)@t.py:9

Two loaders go through one dataset side by side:

    rank 0 | read(loader=1,samples=7+0-6,steps=4,shuffled)@t.py:9
           | read(number=1,loader=2,samples=7+0-6,steps=4,shuffled)@t.py:9
           | read(number=2,loader=1,samples=0-5+7+6,steps=4,shuffled)@t.py:9
           | read(number=3,loader=2,samples=0-5+7+6,steps=4,shuffled)@t.py:9

Two networks learn from the same epochs in turn, each with its optimizer:

    rank 0 | read(samples=7+0-6,steps=4,shuffled,optimizer=1)@t.py:9
           | read(number=1,samples=7+0-6,steps=4,shuffled,optimizer=2)@t.py:9
           | read(number=2,samples=0-5+7+6,steps=4,shuffled,optimizer=1)@t.py:9
           | read(number=3,samples=0-5+7+6,steps=4,shuffled,optimizer=2)@t.py:9

Nothing is trained:

    rank 0 | read(samples=7+0-6,shuffled)@t.py:9
           | read(number=1,samples=7+0-6,shuffled)@t.py:9

Unknown
-------
A rank without a journal may be the one whose order comes back:

    rank 0 | read(samples=7+0-6,steps=4,shuffled)@t.py:9
    rank 1 | ?

Remedy
------
Call `sampler.set_epoch(epoch)` before each epoch, with a number that is never used
twice: a resumed job goes on from the epoch it had come to. Set seeds once, before the
first epoch.

Known problems
--------------
It takes two epochs over the same loop, and an order that chance does not explain: a
data set of few samples, or a run of one epoch, shows nothing. An order that comes back
on purpose (a curriculum that is shuffled once) is told where a sampler is asked to
shuffle.

References
----------
- pytorch: DistributedSampler without set_epoch does not shuffle –
  https://github.com/pytorch/pytorch/issues/31771
- `torch/utils/data/distributed.py` (pytorch/pytorch), `DistributedSampler`, `set_epoch`
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital
from distdoctor.analysis.data.reading_findings import (
    LOOP,
    class_of,
    drawn_by,
    locations,
    may_shuffle,
    unheard,
)
from distdoctor.analysis.data.repeated_orders import Repeat, repeats
from distdoctor.analysis.evidence import require_whole
from distdoctor.model.findings import Certainty, Finding, Severity
from distdoctor.model.observations.data import LOADER, SAMPLER, SET_EPOCH, SUBSET, Read
from distdoctor.model.run import Run, named

CODE = "DD302"
SEVERITY = Severity.ERROR
NEEDS = (Read,)


def examine(run: Run) -> Iterator[Finding]:
    """Loops whose order comes back."""
    for repeat in repeats(run):
        some = repeat.passes
        ways = [SET_EPOCH, LOOP, SAMPLER, LOADER]
        if repeat.rebuilt:
            ways = [SUBSET, LOADER, LOOP, "ordering", "seeding"]
            if not may_shuffle(run, some):
                continue  # from the easy to the hard, perhaps
        everyone = len(repeat.ranks) == len(run.seen)
        then, before = repeat.pairs[0]
        yield Finding(
            message=_message(repeat),
            exhibits=(some[before].read, some[then].read),
            culprits=() if everyone else repeat.ranks,
            locations=(
                *unheard(run, some, repeat.ranks),
                *drawn_by(run, some, repeat.ranks),
                *locations(run, some, ways, repeat.ranks),
            ),
            certainty=(
                Certainty.LIKELY
                if repeat.rebuilt or repeat.deliberate
                else Certainty.PROVED
            ),
            severity=Severity.WARNING if repeat.deliberate else None,
            details={
                "explanation": "resumed" if repeat.resumed else "repeated",
                "epochs": len(some),
                "repeats": [list(pair) for pair in repeat.pairs],
            },
        )
    require_whole(run)


def _message(repeat: Repeat) -> str:
    some = repeat.passes
    then, before = repeat.pairs[0]
    epochs = f"epoch {then + 1} has the order of epoch {before + 1}"
    if len(repeat.pairs) + 1 == len(some) > 2 and not repeat.resumed:
        epochs = f"all {len(some)} epochs have one order"
    elif len(repeat.pairs) > 1:
        epochs += f", and so for {len(repeat.pairs)} of {len(some)} epochs"
    if repeat.resumed:
        epochs += "; the training was resumed in between"
    read = f"{capital(named(repeat.ranks))} read {len(some[then].samples):,} samples"
    return f"{read} of {class_of(some[0])} in an order they had before: {epochs}"
