"""Workers of a loader draw the same random numbers.

What it is
----------
Each worker of a DataLoader is a process with random streams of its own. Torch seeds the
global ones differently in each worker and each epoch; a `worker_init_fn` that seeds
with a constant undoes that. A generator that the dataset made for itself is copied into
each worker with its state, anew in each epoch.

Why it matters
--------------
What is drawn to vary samples is repeated: the samples of all workers get the same
noise, crops and flips, or each epoch gets those of the last. Nothing fails; the model
sees fewer different samples than was meant, and fits them.

Sick
----
Both workers begin with the same state of numpy's stream, and vary samples with it:

    rank 0 | drawn(trained)@t.py:9  drawn(worker=0,streams=numpy,begins=7,loading=numpy)@t.py:4  drawn(worker=1,streams=numpy,begins=7,loading=numpy)@t.py:4
    rank 1 | drawn(trained)@t.py:9  drawn(worker=0,streams=numpy,begins=7,loading=numpy)@t.py:4  drawn(worker=1,streams=numpy,begins=7,loading=numpy)@t.py:4

The dataset's own generator is copied into the worker, anew in each epoch:

    rank 0 | drawn(trained)  drawn(epoch=1,trained)  drawn(worker=0,streams=dataset.rng,begins=5,loading=dataset.rng)  drawn(epoch=1,worker=0,streams=dataset.rng,begins=5,loading=dataset.rng)
    rank 1 | exit=0

Well
----
Each worker has its own, in each epoch another:

    rank 0 | drawn(trained)  drawn(worker=0,streams=numpy,begins=7,loading=numpy)  drawn(worker=1,streams=numpy,begins=8,loading=numpy)
    rank 1 | drawn(trained)  drawn(worker=0,streams=numpy,begins=9,loading=numpy)  drawn(worker=1,streams=numpy,begins=3,loading=numpy)

Both begin alike, and never draw from it:

    rank 0 | drawn(trained)  drawn(worker=0,streams=numpy,begins=7)  drawn(worker=1,streams=numpy,begins=7)
    rank 1 | exit=0

It is a loader that nothing is trained on; there the same noise each time is meant:

    rank 0 | drawn  drawn(worker=0,streams=numpy,begins=7,loading=numpy)  drawn(worker=1,streams=numpy,begins=7,loading=numpy)
    rank 1 | exit=0

Torch was seeded anew before each pass, by trials that are to begin alike:

    rank 0 | drawn(trained)  drawn(epoch=1,trained)  drawn(worker=0,streams=numpy,begins=7,loading=numpy)  drawn(epoch=1,worker=0,streams=numpy,begins=7,loading=numpy)
    rank 1 | exit=0

Unknown
-------
A rank without a journal may have such workers:

    rank 0 | drawn(trained)  drawn(worker=0,streams=numpy,begins=7,loading=numpy)
    rank 1 | ?

Remedy
------
In `worker_init_fn`, seed from `torch.initial_seed()`, which is another in each worker
and epoch: `np.random.seed(torch.initial_seed() % 2**32)`; or leave it out, since torch
seeds Python's, numpy's and its own stream by itself. A dataset makes its generator in
the worker, from that seed, when it is first used. Let ranks differ as well:
`torch.manual_seed(seed + rank)` before the loaders are gone through.

Known problems
--------------
Looked at are Python's, numpy's and torch's global streams and generators that the
dataset holds as attributes, not deep; one in a closure, in C, or of another library is
not seen. Whether what is drawn is augmentation or an order that workers are to share is
not known of an iterable dataset, and is a warning there.

References
----------
- pytorch: numpy draws the same numbers in each worker –
  https://github.com/pytorch/pytorch/issues/5059
- pytorch: numpy's seed in workers of an IterableDataset –
  https://github.com/pytorch/pytorch/issues/41329
- `torch/utils/data/_utils/worker.py` (pytorch/pytorch), `_worker_loop`
"""  # noqa: E501 - a rank is drawn on one line

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.rng.shared_streams import GLOBAL, Shared, shared_by_workers
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.rng import Drawn
from distdoctor.model.run import Run, named

CODE = "DD306"
SEVERITY = Severity.ERROR
NEEDS = (Drawn,)


def examine(run: Run) -> Iterator[Finding]:
    """Streams that workers share, or that begin anew alike in each epoch."""
    for shared in shared_by_workers(run):
        yield _finding(run, shared)
    require_whole(run)


def _finding(run: Run, shared: Shared) -> Finding:
    everyone = len(shared.ranks) == len(run.seen)
    culprits = () if everyone else shared.ranks
    mild = shared.iterable
    return Finding(
        message=_story(shared),
        exhibits=shared.drawn[:_MOST_SHOWN],
        culprits=culprits,
        locations=tuple(_locations(run, shared)),
        certainty=Certainty.LIKELY if mild else Certainty.PROVED,
        details={
            "stream": shared.stream,
            "workers": list(shared.workers),
            "epochs": list(shared.passes),
        },
        severity=Severity.WARNING if mild else None,
    )


_MOST_SHOWN = 8


def _story(shared: Shared) -> str:
    whose = f"{shared.stream}'s random stream"
    if shared.stream not in GLOBAL:
        whose = f"the generator {shared.stream}"
    sentences = []
    if shared.workers:
        sentences.append(
            f"{len(shared.workers)} workers of the loader begin with the same state of "
            f"{whose}"
        )
    if shared.passes:
        subject = "begin" if sentences else f"workers of the loader begin {whose}"
        sentences.append(
            f"{subject} with the same state again in epoch {shared.passes[1] + 1} "
            f"as in epoch {shared.passes[0] + 1}"
        )
    use = "and draw from it for their samples"
    if shared.iterable:
        use += ", if that is not an order that they are to share"
    where = named(shared.ranks)
    return f"On {where}, {', and '.join(sentences)}, {use}"


def _locations(run: Run, shared: Shared) -> Iterator[Location]:
    if shared.place is not None:
        yield Location(
            shared.place, shared.ranks, Role.CULPRIT, "gives them that state"
        )
    loaders = {(one.rank, one.loader) for one in shared.drawn}
    for rank in shared.ranks:
        for one in run.of(Drawn, rank):
            own = one.worker < 0 and (rank, one.loader) in loaders
            if own and one.place is not None:
                yield Location(
                    one.place, shared.ranks, Role.CULPRIT, "goes through the loader"
                )
                return
