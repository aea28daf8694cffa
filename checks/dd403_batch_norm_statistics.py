"""BatchNorm's statistics, or those of layers like it, belong to one rank alone.

What it is
----------
BatchNorm normalises a batch by its own mean and variance, and keeps running ones for
evaluation. Each rank sees its own batches: the running statistics of replicas drift
apart unless somebody sends them, as DistributedDataParallel does from rank 0 (not with
`broadcast_buffers=False`, and not where gradients are averaged by hand). Here ranks
evaluated with different ones, and joined the results.

Layers that are written by hand keep such statistics as well: the mean and variance of
observations, a codebook with a moving average. Theirs are buffers that are saved with
the model, that the layer's own forward pass changes in training, and that an evaluation
computes with, as the source shows. Where it does not show that, or something else
changes them, it is a warning.

As advice the same code tells of layers that take their statistics from very few samples
on each rank.

Why it matters
--------------
The score is one of several models at once, none of which is what will be saved. With a
few samples per rank the statistics are noise: the job trains much worse than one rank
would with the whole batch, and nothing says so.

Sick
----
Gradients are averaged by hand, running statistics by nobody, and each rank evaluates its
part of the data:

    rank 0 | trained(names=w,numels=6)@t.py:4  all_reduce(6)  weights(step=1,prints=1,gradients=5)  evaluated(steps=1,names=mean,prints=2,samples=0.5)@t.py:20  all_reduce(2)@t.py:24  evaluated(steps=1,over)
    rank 1 | trained(names=w,numels=6)@t.py:4  all_reduce(6)  weights(step=1,prints=1,gradients=5)  evaluated(steps=1,names=mean,prints=3,samples=0.7)@t.py:20  all_reduce(2)@t.py:24  evaluated(steps=1,over)

A layer of a library keeps statistics of its own (a warning: how it uses them is not in
the source that was read):

    rank 0 | wrap=ddp:w  evaluated(steps=1,names=norm.var,running=norm.var,prints=2,samples=0.5)@t.py:20  all_reduce(2)@t.py:24
    rank 1 | wrap=ddp:w  evaluated(steps=1,names=norm.var,running=norm.var,prints=3,samples=0.7)@t.py:20  all_reduce(2)@t.py:24

Two samples per rank (advice, a warning):

    rank 0 | wrap=ddp:w@t.py:5  normalised(layer=body.1,kind=BatchNorm2d,samples=2,values=128)@t.py:3
    rank 1 | wrap=ddp:w@t.py:5  normalised(layer=body.1,kind=BatchNorm2d,samples=2,values=128)@t.py:3

The results are joined once the model is back in training mode:

    rank 0 | trained(names=w,numels=6)@t.py:4  all_reduce(6)@t.py:8  weights(step=1,prints=1,gradients=5)  evaluated(steps=1,names=mean,prints=2,samples=0.5)@t.py:20  evaluated(steps=1,over)@t.py:23  all_reduce(2)@t.py:24
    rank 1 | trained(names=w,numels=6)@t.py:4  all_reduce(6)@t.py:8  weights(step=1,prints=1,gradients=5)  evaluated(steps=1,names=mean,prints=3,samples=0.7)@t.py:20  evaluated(steps=1,over)@t.py:23  all_reduce(2)@t.py:24

Well
----
Each rank evaluates for itself, and training goes on:

    rank 0 | trained(names=w,numels=6)@t.py:4  all_reduce(6)@t.py:8  weights(step=1,prints=1,gradients=5)  evaluated(steps=1,names=mean,prints=2,samples=0.5)@t.py:20  evaluated(steps=1,over)@t.py:23  all_reduce(6)@t.py:8
    rank 1 | trained(names=w,numels=6)@t.py:4  all_reduce(6)@t.py:8  weights(step=1,prints=1,gradients=5)  evaluated(steps=1,names=mean,prints=3,samples=0.7)@t.py:20  evaluated(steps=1,over)@t.py:23  all_reduce(6)@t.py:8

The buffers were averaged before the evaluation:

    rank 0 | trained(names=w,numels=6)  all_reduce(6)  weights(step=1,prints=1,gradients=5)  all_reduce(1)  evaluated(steps=1,names=mean,prints=2)  all_reduce(2)
    rank 1 | trained(names=w,numels=6)  all_reduce(6)  weights(step=1,prints=1,gradients=5)  all_reduce(1)  evaluated(steps=1,names=mean,prints=2)  all_reduce(2)

They are averaged once the model is in evaluation mode:

    rank 0 | trained(names=w,numels=6)  all_reduce(6)  weights(step=1,prints=1,gradients=5)  evaluated(steps=1,names=mean,prints=2)  all_reduce(1)  all_reduce(2)  evaluated(steps=1,names=mean,prints=4,over)
    rank 1 | trained(names=w,numels=6)  all_reduce(6)  weights(step=1,prints=1,gradients=5)  evaluated(steps=1,names=mean,prints=3)  all_reduce(1)  all_reduce(2)  evaluated(steps=1,names=mean,prints=4,over)

A buffer was changed by training, and nothing tells that it is a layer's statistics:

    rank 0 | wrap=ddp:w  evaluated(steps=1,names=seen,changed=seen,prints=2)  all_reduce(2)
    rank 1 | wrap=ddp:w  evaluated(steps=1,names=seen,changed=seen,prints=3)  all_reduce(2)

DDP sends rank 0's before each forward pass of the wrapped model:

    rank 0 | wrap=ddp:w  evaluated(steps=1,names=mean,prints=2,shared)  all_reduce(2)
    rank 1 | wrap=ddp:w  evaluated(steps=1,names=mean,prints=3,shared)  all_reduce(2)

Rank 0 alone evaluates:

    rank 0 | wrap=ddp:w  evaluated(steps=1,names=mean,prints=2)  evaluated(steps=1,over)  barrier
    rank 1 | wrap=ddp:w  barrier

There are samples enough:

    rank 0 | wrap=ddp:w  normalised(kind=BatchNorm2d,samples=32,values=128)  evaluated(steps=1,names=mean,prints=2)
    rank 1 | wrap=ddp:w  normalised(kind=BatchNorm2d,samples=32,values=128)  evaluated(steps=1,names=mean,prints=2)

Unknown
-------
A rank without a journal may have other statistics:

    rank 0 | wrap=ddp:w  evaluated(steps=1,names=mean,prints=2)
    rank 1 | ?

Remedy
------
Make statistics of all ranks' samples with SyncBatchNorm
(`nn.SyncBatchNorm.convert_sync_batchnorm`, before wrapping), or normalise within each
sample (GroupNorm, LayerNorm), or give each rank a larger batch. Before an evaluation,
average the running statistics over ranks, or broadcast rank 0's. A layer that is
written by hand can average its batch's statistics over ranks in each forward pass.

Known problems
--------------
It takes an evaluation whose results are joined; statistics that differ and are saved by
one rank are no finding. Of layers written by hand the source decides whether their
buffers are used, by names, so two buffers of one name are not told apart. That up to
four samples are few is a figure from image classification.

References
----------
- pytorch: running means differ between GPUs in eval() –
  https://github.com/pytorch/pytorch/issues/13711
- pytorch: a way to broadcast buffers once, before evaluation –
  https://github.com/pytorch/pytorch/issues/30718
- Wu and He (2018), Group Normalization, figure 1 – https://arxiv.org/abs/1803.08494
"""  # noqa: E501 - a drawing is as wide as what a rank did

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital
from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.replicas.buffer_divergence import (
    Evaluation,
    few_samples,
    unlike_evaluations,
)
from distdoctor.analysis.replicas.exchanged_parameters import exchanging_parameters
from distdoctor.analysis.source.call_chains import chains_to, next_callers
from distdoctor.model.events import Place, Wrapped
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.horovod import OptimizerWrapped
from distdoctor.model.observations.replicas import Evaluated, Normalised, Trained
from distdoctor.model.run import Run, named

CODE = "DD403"
SEVERITY = Severity.ERROR
NEEDS = (Evaluated,)

_MOST_EXHIBITS = 8


def examine(run: Run) -> Iterator[Finding]:
    """Evaluations with unlike buffers, and layers with few samples."""
    for evaluation in unlike_evaluations(run):
        yield _unlike(run, evaluation)
    few = few_samples(run)
    if few:
        yield _few(run, few)
    require_whole(run)


def _unlike(run: Run, evaluation: Evaluation) -> Finding:
    ranks = tuple(evaluation.begun)
    names = evaluation.names
    first = next(iter(evaluation.begun.values()))
    call = next(iter(evaluation.combined.values()))
    models = [event for rank in ranks for event in run.of(Trained, rank)]
    wraps = [event for rank in ranks for event in run.of(Wrapped, rank)]
    sent = exchanging_parameters(run, ranks)
    gap = f", by up to {evaluation.gap:.3g} in the elements looked at"
    return Finding(
        message=(
            f"{capital(named(ranks))} evaluated models that are not the same, and "
            f"joined the results in {call.op}: {len(names)} of {len(first.names)} "
            f"buffers differ after step {first.steps} ({', '.join(names[:2])})"
            f"{gap if evaluation.gap else ''}; {_why(evaluation)}."
        ),
        exhibits=tuple(list(evaluation.begun.values())[:_MOST_EXHIBITS]),
        locations=(
            *_at([(e.rank, e.place) for e in wraps], "wraps it, and sends no buffers"),
            *_at(
                [(rank, place) for place in sent for rank in ranks],
                "exchanges parameters, and not buffers",
            ),
            *_at(
                [(c.rank, c.place) for c in evaluation.before.values()],
                "exchanges tensors before that, and not these",
            ),
            *_at([(e.rank, e.place) for e in evaluation.begun.values()], "evaluates"),
            *_at(_callers(run, evaluation), "has it evaluated"),
            *_at([(c.rank, c.place) for c in evaluation.combined.values()], "joins"),
            *_at([(e.rank, e.place) for e in models], "makes the model"),
        ),
        details={"buffers": list(names[:_MOST_EXHIBITS]), "steps": first.steps},
        severity=_severity(run, evaluation),
        # How a buffer of a layer that is written by hand is used, the source tells.
        certainty=Certainty.LIKELY if evaluation.kept else Certainty.PROVED,
    )


def _severity(run: Run, evaluation: Evaluation) -> Severity:
    """With Horovod's optimizer nobody is promised anything about buffers.

    Its own examples average metrics of ranks with statistics of their own.
    """
    if not evaluation.sure or run.has(OptimizerWrapped):
        return Severity.WARNING
    return SEVERITY


def _why(evaluation: Evaluation) -> str:
    if not evaluation.kept:
        return "nobody broadcasts running statistics, nor are they of SyncBatchNorm"
    if not evaluation.sure:
        return "training changed them, and nobody broadcasts them"
    return "training changes them on each rank by its own batches, nobody sends them"


def _callers(run: Run, evaluation: Evaluation) -> list[tuple[int, Place | None]]:
    """The line that calls for the evaluation, where the source has one alone."""
    found: list[tuple[int, Place | None]] = []
    for rank, event in evaluation.begun.items():
        ways = [] if event.place is None else chains_to(program_of(run), event.place)
        callers = next_callers(ways)
        if len(callers) == 1:
            found.append((rank, callers[0]))
    return found


def _few(run: Run, few: dict[int, list[Normalised]]) -> Finding:
    ranks = tuple(few)
    layers = [layer for one in few.values() for layer in one]
    fewest = min(layers, key=lambda layer: layer.samples)
    wraps = [event for rank in ranks for event in run.of(Wrapped, rank)]
    n = fewest.samples
    return Finding(
        message=(
            f"{fewest.kind} ({fewest.layer}) takes its statistics from {n} "
            f"sample{'s' * (n > 1)} on each of {named(ranks)}, a very small batch: "
            "SyncBatchNorm would take those of all ranks together."
        ),
        exhibits=tuple(layers[:_MOST_EXHIBITS]),
        locations=(
            *_at([(e.rank, e.place) for e in layers], "makes the layer"),
            *_at([(e.rank, e.place) for e in wraps], "wraps the model"),
        ),
        details={"samples": n, "values": fewest.values, "layer": fewest.layer},
        severity=Severity.WARNING,
    )


def _at(places: list[tuple[int, Place | None]], remark: str) -> list[Location]:
    ranks: dict[Place, set[int]] = {}
    for rank, place in places:
        if place is not None:
            ranks.setdefault(place, set()).add(rank)
    return [
        Location(place, tuple(sorted(who)), Role.PARTY, remark)
        for place, who in ranks.items()
    ]
