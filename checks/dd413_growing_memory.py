"""Memory grows with every step, because old graphs are kept.

What it is
----------
A loss, or an output of the model, is put into a list or added to a sum as it is. With
it, autograd's graph of its step stays alive, and what that graph holds.

Why it matters
--------------
Each step takes memory that is never given back, until the rank is ended for want of
it, hours later, at a line that has nothing to do with it. Freeing a long chain of
graphs at the end of an epoch takes long, or overflows the stack.

Sick
----
The graphs of all steps are alive, also those of the last epoch:

    rank 0 | retained(steps=40,graphs=40,oldest=1,passes=2,outlived,name=losses)@t.py:9
    rank 1 | retained(steps=40,graphs=40,oldest=1,passes=2,outlived,name=losses)@t.py:9

There are no epochs:

    rank 0 | retained(steps=24,graphs=24,oldest=1,name=total)@t.py:9
    rank 1 | exit=0

Memory grows steadily, for another reason:

    rank 0 | memory(steps=1-40,own_kib=20000+23000+26000+29000+32000+35000+38000+41000+44000+47000+50000+53000+56000+59000+62000+65000+68000+71000+74000+77000+80000+83000+86000+89000+92000+95000+98000+101000+104000+107000+110000+113000+116000+119000+122000+125000+128000+131000+134000+137000)
    rank 1 | exit=0

An evaluation adds up its losses with their graphs:

    rank 0 | summed(batches=8,graphs=8,name=total)@t.py:9
    rank 1 | summed(batches=8,graphs=8,name=total)@t.py:9

Well
----
Only the graphs of the last steps are alive, and memory has levelled off:

    rank 0 | memory(steps=4+8+12+16,own_kib=20000+90000+90000+90000,graphs=1+1+2+1)
    rank 1 | memory(steps=4+8+12+16,own_kib=20000+90000+90000+90000,graphs=1+1+2+1)

Each part of a job loads what it needs, in a few jumps:

    rank 0 | memory(steps=1-40,own_kib=20000+20000+20000+20000+20000+20000+20000+20000+20000+20000+20000+20000+20000+20000+20000+20000+20000+20000+20000+20000+20100+20100+20100+20100+20100+38000+38000+38000+38000+38000+56000+56000+56000+56000+56000+74000+74000+74000+74000+74000)
    rank 1 | exit=0

Unknown
-------
A rank without a journal may keep more and more:

    rank 0 | memory(steps=4+8,own_kib=2+2,graphs=1+1)
    rank 1 | ?

Remedy
------
Keep numbers, not tensors with a graph: `losses.append(loss.item())`, or
`loss.detach()` where a wait for the GPU would cost too much. Evaluate under
`torch.no_grad()`.

Known problems
--------------
It takes some steps: at least eight graphs that are not recent, or sixteen samples of
memory that grows by 32 MiB. A leak in native code, or of what has no graph, is a
warning without a line; caches that fill slowly look like it. Growth that starts after
the run was ended is not seen.

References
----------
- torch's frequently asked questions –
  https://docs.pytorch.org/docs/stable/notes/faq.html
- torch.autograd, in torch's documentation –
  https://docs.pytorch.org/docs/stable/autograd.html
"""  # noqa: E501 - a rank is drawn on one line

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital, s
from distdoctor.analysis.evidence import require_whole
from distdoctor.analysis.memory.growing_memory import Growth, growths, retained
from distdoctor.model.events import Place
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.memory import Memory, Retained, Summed
from distdoctor.model.run import Run, named

CODE = "DD413"
SEVERITY = Severity.ERROR
NEEDS = (Memory,)


def examine(run: Run) -> Iterator[Finding]:
    """Graphs that are kept, and else memory that grows steadily."""
    kept = retained(run)
    by_line: dict[tuple[Place | None, str], list[Retained]] = {}
    for one in kept.values():
        by_line.setdefault((one.place, one.name), []).append(one)
    for several in by_line.values():
        yield _of_graphs(run, several)
    sums: dict[Place | None, list[Summed]] = {}
    for rank in run.seen:
        for summed in run.of(Summed, rank)[:1]:
            sums.setdefault(summed.place, []).append(summed)
    for added in sums.values():
        yield _of_evaluation(run, added)
    grown = {rank: one for rank, one in growths(run).items() if rank not in kept}
    if grown:
        yield _of_memory(run, grown)
    require_whole(run)


def _of_graphs(run: Run, several: list[Retained]) -> Finding:
    ranks = tuple(one.rank for one in several)
    first = several[0]
    holder = f", held by {first.name}" if first.name else ""
    # Whether they are freed when the epoch ends was not seen in a single one.
    lasting = first.outlived or not first.passes
    until = ""
    if first.outlived:
        until = ", also those of earlier epochs"
    elif not lasting:
        until = ", if not freed when the epoch ends"
    who = capital(named(ranks))
    return Finding(
        message=f"{who} keep{s(ranks)} the autograd graphs of old steps: "
        f"{first.graphs} are alive after {first.steps} steps, the oldest made in step "
        f"{first.oldest}{holder}{until}",
        exhibits=tuple(several[:_MOST_SHOWN]),
        culprits=() if len(ranks) == len(run.seen) else ranks,
        locations=_at(first.place, ranks, f"keeps {first.name or 'the graph'}"),
        certainty=Certainty.PROVED if lasting else Certainty.LIKELY,
        details={"graphs": first.graphs, "steps": first.steps, "name": first.name},
        severity=None if lasting else Severity.WARNING,
    )


def _of_evaluation(run: Run, added: list[Summed]) -> Finding:
    ranks, first = tuple(one.rank for one in added), added[0]
    return Finding(
        message=f"{capital(named(ranks))} keep{s(ranks)} the autograd graphs of all "
        f"batches of an evaluation: {first.name} held {first.graphs}, of "
        f"{first.batches} batches, and no backward made use of them. Memory grows with "
        "the length of the evaluation",
        exhibits=tuple(added[:_MOST_SHOWN]),
        culprits=() if len(ranks) == len(run.seen) else ranks,
        locations=_at(first.place, ranks, f"keeps the graphs in {first.name}"),
        certainty=Certainty.PROVED,
        details={"graphs": first.graphs, "batches": first.batches, "name": first.name},
        severity=Severity.WARNING,
    )


def _of_memory(run: Run, grown: dict[int, Growth]) -> Finding:
    ranks = tuple(grown)
    first = next(iter(grown.values()))
    what = "GPU memory" if first.device else "memory"
    return Finding(
        message=f"The {what} of {named(ranks)} grew steadily, by {first.kib >> 10} MiB "
        f"from step {first.first} to step {first.last} on rank {ranks[0]}; no graphs "
        "of autograd are kept, so it may be meant, as in a buffer that fills",
        exhibits=tuple(one.memory for one in list(grown.values())[:_MOST_SHOWN]),
        culprits=() if len(ranks) == len(run.seen) else ranks,
        locations=_at(first.memory.place, ranks, "steps"),
        certainty=Certainty.LIKELY,
        details={"kib": first.kib},
        severity=Severity.WARNING,
    )


_MOST_SHOWN = 8


def _at(
    place: Place | None, ranks: tuple[int, ...], remark: str
) -> tuple[Location, ...]:
    if place is None:
        return ()
    return (Location(place, ranks, Role.CULPRIT, remark),)
