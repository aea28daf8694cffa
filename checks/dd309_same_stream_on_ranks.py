"""All ranks draw the same random numbers where each should draw its own.

What it is
----------
Ranks that train one model together seed their streams alike, and then draw dropout
masks, noise or augmentation from them: rank 1 varies its samples exactly as rank 0
does.

Why it matters
--------------
A batch over all ranks is meant to hold as many random variations as samples. Here the
same ones return on each rank, which weakens what they are for, the more ranks, the
more. Results are not wrong.

Sick
----
Both ranks begin with the same state of torch's stream, and draw from it in training:

    rank 0 | wrap=ddp:w  seeded(seed=7)@t.py:3  drawn(trained,streams=torch,begins=5,between=torch)@t.py:9
    rank 1 | wrap=ddp:w  seeded(seed=7)@t.py:3  drawn(trained,streams=torch,begins=5,between=torch)@t.py:9

A generator for the noise was made from one seed on both:

    rank 0 | wrap=ddp:w  drawn(trained,streams=noise.gen,begins=5,between=noise.gen,explicit=noise.gen)@t.py:9
    rank 1 | wrap=ddp:w  drawn(trained,streams=noise.gen,begins=5,between=noise.gen,explicit=noise.gen)@t.py:9

Well
----
Each rank has a state of its own:

    rank 0 | wrap=ddp:w  seeded(seed=7)@t.py:3  drawn(trained,streams=torch,begins=5,between=torch)
    rank 1 | wrap=ddp:w  seeded(seed=8)@t.py:3  drawn(trained,streams=torch,begins=6,between=torch)

Weights were made alike, and nothing else is random:

    rank 0 | wrap=ddp:w  seeded(seed=7)@t.py:3  drawn(trained,streams=torch,begins=5)
    rank 1 | wrap=ddp:w  seeded(seed=7)@t.py:3  drawn(trained,streams=torch,begins=5)

Ranks decide alike, by Python's stream, how large the next pictures are:

    rank 0 | wrap=ddp:w  drawn(trained,streams=python,begins=5,between=python)
    rank 1 | wrap=ddp:w  drawn(trained,streams=python,begins=5,between=python)

A generator of the dataset's moves between batches, and nobody knows what for:

    rank 0 | wrap=ddp:w  drawn(trained,streams=dataset.rng,begins=5,between=dataset.rng)
    rank 1 | wrap=ddp:w  drawn(trained,streams=dataset.rng,begins=5,between=dataset.rng)

They share a model by another kind of parallelism than that of data:

    rank 0 | drawn(trained,streams=torch,begins=5,between=torch)
    rank 1 | drawn(trained,streams=torch,begins=5,between=torch)

Unknown
-------
A rank without a journal may draw the same:

    rank 0 | wrap=ddp:w  drawn(trained,streams=torch,begins=5,between=torch)
    rank 1 | ?

Remedy
------
Seed each rank differently once the model is made, `torch.manual_seed(seed + rank)`, and
Python's and numpy's streams likewise. Samplers keep a seed of their own
(`DistributedSampler(seed=…)`), which is to be the same on all ranks.

Known problems
--------------
Equal states at the start of a pass are equal numbers only if ranks draw alike from
there; who draws another number of times parts soon, and is told still. A generator of
torch's that the loop holds may be there to let ranks draw alike on purpose: it is told
as likely. Draws of a GPU's
own stream are not those that are compared on the CPU.

References
----------
- transformers: dropout is the same on all devices –
  https://github.com/huggingface/transformers/issues/31412
- detr: why the seed is args.seed + rank –
  https://github.com/facebookresearch/detr/issues/297
"""  # noqa: E501 - a rank is drawn on one line

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.rng.generator_lines import making_lines
from distdoctor.analysis.rng.shared_streams import SameNumbers, same_on_ranks, seed_of
from distdoctor.model.events import Event, Place
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.rng import Drawn
from distdoctor.model.run import Run, named

CODE = "DD309"
SEVERITY = Severity.NOTE
NEEDS = (Drawn,)

_USES = {
    "loading": "while samples are made",
    "between": "between batches (dropout, noise)",
}


def examine(run: Run) -> Iterator[Finding]:
    """Ranks whose random numbers are the same."""
    for same in same_on_ranks(run):
        yield _finding(run, same)
    require_whole(run)


def _finding(run: Run, same: SameNumbers) -> Finding:
    uses = "; ".join(f"{stream} {_USES[use]}" for stream, use in same.streams)
    exhibits: list[Event] = list(same.drawn[:_MOST_SHOWN])
    places: dict[Place, str] = {}
    for stream, _ in same.streams:
        name = "torch" if any(one.worker >= 0 for one in same.drawn) else stream
        for rank in same.ranks:
            seed = seed_of(run, rank, name)
            if seed is not None and seed.place is not None:
                places.setdefault(seed.place, f"seeds {name}'s stream")
                exhibits.append(seed)
                break
    explicit = {name for one in same.drawn for name in one.explicit}
    for stream, _ in same.streams:
        if stream in explicit:
            for place in making_lines(run, stream):
                places.setdefault(place, f"makes {stream}")
    meant = explicit.issuperset(stream for stream, _ in same.streams)
    for one in same.drawn:
        if one.place is not None and one.worker < 0:
            places.setdefault(one.place, "goes through the loader")
    return Finding(
        message=f"{capital(named(same.ranks))} draw the same random numbers in "
        f"training: {uses}" + ", unless they are to draw alike" * meant,
        exhibits=tuple(exhibits),
        culprits=() if same.everyone else same.ranks,
        locations=tuple(
            Location(place, same.ranks, Role.PARTY, remark)
            for place, remark in places.items()
        ),
        certainty=Certainty.LIKELY if meant else Certainty.PROVED,
        details={"streams": [list(pair) for pair in same.streams]},
    )


_MOST_SHOWN = 8
