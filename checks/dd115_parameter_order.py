"""Ranks registered the parameters of one model in a different order.

What it is
----------
DistributedDataParallel averages gradients by position: the n-th parameter of one rank
with the n-th of every other. Here the names at these positions differ between ranks.

Why it matters
--------------
Where the shapes agree nothing fails: at the start, rank 0's weights are copied by
position into other layers, and from then on gradients of different layers are
averaged together. The loss may even fall.

Sick
----
Towers are registered in the order of a shuffled list:

    rank 0 | wrap=ddp:age.weight+city.weight@t.py:44  all_reduce(4)  exit=0
    rank 1 | wrap=ddp:city.weight+age.weight@t.py:44  all_reduce(4)  exit=0

Well
----
Two models, each in the same order on all ranks:

    rank 0 | wrap=ddp:g.weight  wrap=ddp:d.weight+d.bias  all_reduce(4)  exit=0
    rank 1 | wrap=ddp:g.weight  wrap=ddp:d.weight+d.bias  all_reduce(4)  exit=0

Unknown
-------
A rank without a journal may be the one with another order:

    rank 0 | wrap=ddp:a+b@t.py:44
    rank 1 | ?

Remedy
------
Build the model in one order on all ranks: sort the names, and do not seed per rank
before the model is built. Wrap first, and seed per rank afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from distdoctor.analysis.evidence import require_whole
from distdoctor.model.events import Place, Wrapped
from distdoctor.model.findings import Finding, Location, Role, Severity
from distdoctor.model.run import Run, named

CODE = "DD115"
SEVERITY = Severity.ERROR
NEEDS = (Wrapped,)


def examine(run: Run) -> Iterator[Finding]:
    """Compare the names of the n-th wrapped model of all ranks, for each n."""
    models = {rank: _models(run, rank) for rank in run.seen}
    for n in range(min(map(len, models.values()), default=0)):
        orders = Counter(models[rank][n].parameters for rank in models)
        (usual, _), *others = orders.most_common()
        if others and all(sorted(usual) == sorted(order) for order, _ in others):
            yield _finding({rank: models[rank][n] for rank in models}, orders)
    require_whole(run)


def _models(run: Run, rank: int) -> list[Wrapped]:
    return [event for event in run.of(Wrapped, rank) if event.how == "ddp"]


def _finding(models: dict[int, Wrapped], orders: Counter[tuple[str, ...]]) -> Finding:
    (usual, most), *others = orders.most_common()
    tie = most == others[0][1]
    odd = [rank for rank, model in models.items() if model.parameters != usual]
    other = models[odd[0]].parameters
    at = next(i for i, name in enumerate(usual) if name != other[i])
    rest = [rank for rank in models if rank not in odd]
    places: dict[Place, list[int]] = {}
    for rank, model in models.items():
        if model.place is not None:
            places.setdefault(model.place, []).append(rank)
    return Finding(
        message=f"Parameter {at + 1} of the model is {usual[at]} on {named(rest)} and "
        f"{other[at]} on {named(odd)}: gradients of different layers are averaged.",
        exhibits=tuple(models[rank] for rank in sorted(models)),
        culprits=() if tie else tuple(odd),
        victims=tuple(sorted(models)) if tie else tuple(rest),
        locations=tuple(
            Location(place, tuple(ranks), Role.PARTY, "wraps the model")
            for place, ranks in places.items()
        ),
        details={"position": at},
    )
