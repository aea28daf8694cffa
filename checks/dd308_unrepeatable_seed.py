"""A random generator is seeded from the clock, or not at all: no run can be repeated.

What it is
----------
The seed of a stream is the time of day, the number of the process, or what the
operating system gives, so each run has another. Or one stream is seeded with a fixed
value, and another that training draws from was forgotten.

Why it matters
--------------
A result cannot be had again, nor a fault. Where each rank takes its own clock, ranks
differ as well: what they are to do alike (split and order data, make weights) they do
differently. With `distdoctor check --twice` the job is run twice, and what differs
first is named here; that is an error, unless only random numbers differ that nothing
computed depends on.

Sick
----
Each rank seeds from its own clock:

    rank 0 | seeded(seed=81,source=clock)@t.py:3
    rank 1 | seeded(seed=92,source=clock)@t.py:3

Torch has a fixed seed, and samples are varied by numpy's stream, which has none:

    rank 0 | seeded(seed=7)@t.py:3  drawn(trained,streams=torch+numpy,begins=1+2,loading=numpy)@t.py:9
    rank 1 | seeded(seed=7)@t.py:3  drawn(trained,streams=torch+numpy,begins=1+3,loading=numpy)@t.py:9

Another run of the job differed:

    rank 0 | seeded(seed=7)@t.py:3  compared(steps=9)
           | unrepeated(step=4,what=gradient,name=fc.weight)
    rank 1 | seeded(seed=7)@t.py:3

Well
----
All that is drawn from is seeded:

    rank 0 | seeded(seed=7)@t.py:3  seeded(stream=numpy,seed=7)@t.py:4  drawn(trained,streams=torch+numpy,begins=1+2,loading=numpy)
    rank 1 | seeded(seed=8)@t.py:3  seeded(stream=numpy,seed=8)@t.py:4  drawn(trained,streams=torch+numpy,begins=1+3,loading=numpy)

Nothing has a fixed seed: nobody asked for runs that can be repeated:

    rank 0 | seeded(source=entropy)  drawn(trained,streams=torch,begins=1,between=torch)
    rank 1 | seeded(source=entropy)  drawn(trained,streams=torch,begins=2,between=torch)

Another run of the job did the same:

    rank 0 | seeded(seed=7)@t.py:3  compared(steps=9)
    rank 1 | seeded(seed=7)@t.py:3

A fixed seed takes the place of one from the clock:

    rank 0 | seeded(seed=81,source=clock)@t.py:3  seeded(seed=7)@t.py:5
    rank 1 | seeded(seed=92,source=clock)@t.py:3  seeded(seed=8)@t.py:5

A resumed job gets the state of its streams back:

    rank 0 | seeded(seed=7)  seeded(stream=numpy,source=state)  drawn(trained,streams=numpy,begins=1,loading=numpy)
    rank 1 | seeded(seed=7)  seeded(stream=numpy,source=state)  drawn(trained,streams=numpy,begins=2,loading=numpy)

Unknown
-------
A rank without a journal may have another seed:

    rank 0 | seeded(seed=7)@t.py:3
    rank 1 | ?

Remedy
------
Take the seed as an argument with a fixed default, print it, and seed all three streams
with it at the start: `random.seed(s)`, `np.random.seed(s)`, `torch.manual_seed(s)`.
Where each run is to have another seed, let rank 0 choose and broadcast it.

Known problems
--------------
A seed from the clock is known by its value, so one that was hashed or cut is missed,
and a constant that happens to lie near the time would be told (as likely). Seeds of
streams other than Python's, numpy's and torch's are not seen; `--twice` finds their
effect, if there is one on this machine: kernels of a GPU that differ from run to run do
not.

References
----------
- torch's note on reproducibility –
  https://docs.pytorch.org/docs/stable/notes/randomness.html
- `torch/random.py` (pytorch/pytorch), `seed` and `manual_seed`
"""  # noqa: E501 - a rank is drawn on one line

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distdoctor.analysis.causes import capital, s
from distdoctor.analysis.comparison.repeated_runs import has_effect
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.rng.shared_streams import (
    never_seeded,
    unrepeatable_seeds,
    wish_of,
)
from distdoctor.model.events import Event, Place
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.comparison import WHATS, Unrepeated
from distdoctor.model.observations.rng import Drawn, Seeded
from distdoctor.model.run import Run, named

CODE = "DD308"
SEVERITY = Severity.WARNING
NEEDS = (Seeded,)

_SOURCES = {
    "clock": "the clock",
    "process": "the number of the process",
    "entropy": "the operating system's randomness",
}


def examine(run: Run) -> Iterator[Finding]:
    """Seeds that another run will not have, and runs that differed."""
    differences = [one for rank in run.seen for one in run.of(Unrepeated, rank)]
    if differences:
        yield _differed(differences)
    for (place, source), seeds in unrepeatable_seeds(run).items():
        yield _seeded_from(place, source, seeds)
    yield from _forgotten(run)
    require_whole(run)


def _differed(differences: Sequence[Unrepeated]) -> Finding:
    """What is told first comes first in what the job does, and explains the rest."""
    sentences = []
    for one in differences:
        name = f" ({one.name})" if one.name else ""
        figures = f": {one.here}, then {one.there}" if one.here else ""
        what = WHATS.get(one.what, one.what)
        sentences.append(
            f"{what}{name} in step {one.step + 1} on rank {one.rank}{figures}"
        )
    mild = not any(map(has_effect, differences))
    rest = "; nothing that was computed differs" if mild else ""
    return Finding(
        message="A second run of the job differed, first in "
        f"{'; then in '.join(sentences)}{rest}",
        exhibits=tuple(differences),
        locations=tuple(
            location
            for one in differences
            for location in _at(
                one.place, (one.rank,), f"{WHATS.get(one.what, one.what)} differed"
            )
        ),
        details={
            "differences": [
                [one.rank, one.step, one.what, one.name] for one in differences
            ]
        },
        severity=Severity.NOTE if mild else Severity.ERROR,
    )


def _seeded_from(place: Place | None, source: str, seeds: Sequence[Seeded]) -> Finding:
    ranks = sorted({one.rank for one in seeds})
    differ = len({one.seed for one in seeds}) > 1
    streams = ", ".join(sorted({one.stream for one in seeds}))
    apart = ", each rank with another seed" if differ else ""
    mild = source == "entropy" or not differ
    who = capital(named(ranks))
    return Finding(
        message=f"{who} seed{s(ranks)} {streams} from {_SOURCES[source]}{apart}: no "
        "run can be repeated",
        exhibits=tuple(seeds[:_MOST_SHOWN]),
        locations=_at(place, ranks, f"seeds from {_SOURCES[source]}"),
        certainty=Certainty.PROVED if source == "entropy" else Certainty.LIKELY,
        details={"source": source, "seeds": [one.seed for one in seeds[:_MOST_SHOWN]]},
        severity=Severity.NOTE if mild else None,
    )


def _forgotten(run: Run) -> Iterator[Finding]:
    """Streams without a seed, beside a fixed seed of another."""
    streams: dict[str, list[tuple[Seeded, Drawn]]] = {}
    for rank in run.seen:
        wish = wish_of(run, rank)
        if wish is not None:
            for stream, drawn in never_seeded(run, rank).items():
                streams.setdefault(stream, []).append((wish, drawn))
    for stream, pairs in streams.items():
        wish, drawn = pairs[0]
        exhibits: tuple[Event, ...] = (wish, drawn)
        ranks = sorted({wish.rank for wish, _ in pairs})
        who = capital(named(ranks))
        yield Finding(
            message=f"{who} draw{s(ranks)} from {stream}'s random stream in training "
            f"and never seeded it, though {wish.stream}'s has a fixed seed: no run can "
            "be repeated",
            exhibits=exhibits,
            locations=(
                *_at(wish.place, ranks, f"seeds {wish.stream} alone"),
                *_at(drawn.place, ranks, "goes through the loader"),
            ),
            details={"stream": stream},
            severity=Severity.NOTE,
        )


def _at(place: Place | None, ranks: Sequence[int], remark: str) -> tuple[Location, ...]:
    if place is None:
        return ()
    return (Location(place, tuple(ranks), Role.CULPRIT, remark),)


_MOST_SHOWN = 8
