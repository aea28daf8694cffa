"""A job went on from a checkpoint without a part of the state it had.

What it is
----------
To go on as if nothing had happened, a job needs more than weights: the optimizer's
moments, the scheduler's position, the scale of the GradScaler, the number of the epoch,
by which samplers shuffle, and, if it is to repeat itself exactly, random states. Here
part of it was not saved, or was saved and is not restored.

Why it matters
--------------
The loss has a small bump, or none. The learning rate jumps back to where it began and
anneals anew, samples come in orders that were seen before, moments are collected from
nothing. Jobs that are restarted every few hours do so many times.

Sick
----
Model and optimizer are restored, and the scheduler, which is in the file, is not:

    rank 0 | continued
           | stored(file=c,parts=optimizer+scheduler,position=4,schedule=7)
           | barrier
           | opened(file=c,parts=optimizer+scheduler,position=4,schedule=7)@t.py:33
           | given(what=model,matched=4)  given(what=optimizer)@t.py:35
           | scheduled(kind=StepLR,number=1)@t.py:44
           | continued(filled,position=0,schedule=7,scheduler=1)
    rank 1 | continued  barrier
           | opened(file=c,parts=optimizer+scheduler,position=4,schedule=7)@t.py:33
           | given(what=model,matched=4)  given(what=optimizer)@t.py:35
           | scheduled(kind=StepLR,number=1)@t.py:44
           | continued(filled,position=0,schedule=7,scheduler=1)

The optimizer was never saved; that training goes on shows in the epochs:

    rank 0 | shuffled(length=9)  continued(rules=5)
           | stored(file=c,parts=model,numbers=0,running_filled=1,rules=5)@t.py:22
           | barrier  opened(file=c,parts=model,numbers=0)@t.py:33
           | given(what=model,matched=4)@t.py:34  shuffled(epoch=1,length=9)
           | continued(number=1,rules=5)@t.py:50
    rank 1 | shuffled(length=9)  continued(rules=5)  barrier
           | opened(file=c,parts=model,numbers=0)@t.py:33
           | given(what=model,matched=4)@t.py:34  shuffled(epoch=1,length=9)
           | continued(number=1,rules=5)@t.py:50

All is restored but the epoch, so the sampler shuffles as at the beginning:

    rank 0 | shuffled(length=9)  shuffled(epoch=1,length=9)  continued
           | stored(file=c,parts=model+optimizer,filled=1)  barrier
           | opened(file=c,parts=model+optimizer,filled=1)@t.py:33
           | given(what=model,matched=4)  given(what=optimizer)@t.py:35
           | shuffled(length=9)@t.py:43  continued(filled)
    rank 1 | shuffled(length=9)  shuffled(epoch=1,length=9)  continued  barrier
           | opened(file=c,parts=model+optimizer,filled=1)@t.py:33
           | given(what=model,matched=4)  given(what=optimizer)@t.py:35
           | shuffled(length=9)@t.py:43  continued(filled)

The GradScaler begins at its default again:

    rank 0 | opened(file=c,parts=model+optimizer+scaler,filled=1,scale=1024.0)@t.py:33
           | given(what=model,matched=4)  given(what=optimizer)@t.py:35
           | continued(filled,scale=65536.0)

Random state was saved and starts where the run did:

    rank 0 | continued(rng=3)  reached(rng=4)
           | stored(file=c,parts=model+optimizer+rng,filled=1)  barrier
           | opened(file=c,parts=model+optimizer+rng,filled=1)@t.py:33
           | given(what=model,matched=4)  given(what=optimizer)@t.py:35
           | continued(filled,rng=3)

`distdoctor check --resume` compared the resumed job with the uninterrupted one:

    rank 0 | compared(how=resume,steps=40,begun=20)
           | unrestored(step=20,what=rate,here=0.1,there=0.3)@t.py:35
    rank 1 | unrestored(step=20,what=rate,here=0.1,there=0.3)@t.py:35

Well
----
All of it is restored:

    rank 0 | shuffled(length=9)  continued
           | stored(file=c,parts=optimizer+scheduler,position=4,schedule=7,numbers=0)
           | barrier
           | opened(file=c,parts=optimizer+scheduler,position=4,schedule=7,numbers=0)
           | given(what=model,matched=4)  given(what=optimizer)  given(what=scheduler)
           | shuffled(epoch=1,length=9)
           | continued(filled,position=4,schedule=7,scheduler=1)

The scheduler is brought to its position by `last_epoch`, or by stepping it:

    rank 0 | opened(file=c,parts=optimizer+scheduler,position=4,schedule=7)
           | given(what=model,matched=4)  given(what=optimizer)
           | continued(filled,position=4,schedule=7,scheduler=1)

Another schedule begins on purpose:

    rank 0 | opened(file=c,parts=optimizer+scheduler,position=4,schedule=7)
           | given(what=model,matched=4)  given(what=optimizer)
           | continued(filled,position=0,schedule=8,scheduler=1)

Weights are taken from a whole checkpoint, and a new optimizer fits them to new data:

    rank 0 | opened(file=c,parts=optimizer+scheduler,position=4,schedule=7,numbers=3)
           | given(what=model,matched=4)  shuffled(length=9)
           | continued(position=0,schedule=7,scheduler=0)

The best weights are read back, and the same optimizer goes on:

    rank 0 | shuffled(length=9)  continued  stored(file=c,parts=model)
           | shuffled(epoch=1,length=9)  opened(file=c,parts=model)
           | given(what=model,matched=4)  shuffled(epoch=2,length=9)
           | continued(filled,position=3,schedule=7)

The best weights are read back, and the same optimizer begins anew, as its state is
emptied on purpose:

    rank 0 | shuffled(length=9)  continued  stored(file=c,parts=model,running_filled=1)
           | shuffled(epoch=1,length=9)  opened(file=c,parts=model)
           | given(what=model,matched=4)  shuffled(epoch=2,length=9)
           | continued

The job went back to an older checkpoint, and goes through the epochs behind it again:

    rank 0 | shuffled(length=9)  continued
           | stored(file=c,parts=model+optimizer,filled=1)  shuffled(epoch=1,length=9)
           | shuffled(epoch=2,length=9)  opened(file=c,parts=model+optimizer,filled=1)
           | given(what=model,matched=4)  given(what=optimizer)
           | shuffled(epoch=1,length=9)  continued(filled)

`--resume` found no difference to the end:

    rank 0 | compared(how=resume,steps=40,begun=20)  continued
    rank 1 | opened(file=c,parts=model)  continued

Unknown
-------
A rank without a journal may be the one that restores less:

    rank 0 | opened(file=c,parts=model)  given(what=model,matched=4)  continued
    rank 1 | ?

Remedy
------
Save the `state_dict()` of model, optimizer, scheduler and scaler together with the
number of the epoch (and of the step), build all of them, and only then load all of
them; begin the loop, and `sampler.set_epoch`, at the next epoch.

Known problems
--------------
What belongs to a state is known by its form; a position that a job keeps under names
and in numbers of its own is not recognised. Without the run that wrote the file, what
was not saved at all cannot be compared. A new schedule from old weights on purpose
looks alike where the optimizer goes on; `--resume` compares bit by bit instead.

References
----------
- Lightning: the scheduler is off by one after a resume –
  https://github.com/Lightning-AI/pytorch-lightning/issues/1772
- vision: a resume that began at epoch 0 again –
  https://github.com/pytorch/vision/pull/1628
- torch.optim, in torch's documentation –
  https://docs.pytorch.org/docs/stable/optim.html
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.checkpoints.incomplete_resume import incomplete
from distdoctor.analysis.comparison.resumed_runs import unequal
from distdoctor.analysis.evidence import require_whole
from distdoctor.model.findings import Finding, Severity
from distdoctor.model.observations.checkpoints import Continued, Opened
from distdoctor.model.run import Run

CODE = "DD411"
SEVERITY = Severity.ERROR
NEEDS = (Opened, Continued)


def examine(run: Run) -> Iterator[Finding]:
    """Parts of the state that start anew in a job that goes on."""
    yield from unequal(run)
    yield from incomplete(run)
    require_whole(run)
