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

The line that puts them into the model is known, and told first:

    rank 0 | registered(names=age+city)@t.py:9  wrap=ddp:age.w+city.w@t.py:44  all_reduce(4)  exit=0
    rank 1 | registered(names=city+age)@t.py:9  wrap=ddp:city.w+age.w@t.py:44  all_reduce(4)  exit=0

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

Known problems
--------------
Names are compared, and only those of models that DDP wraps: where the sets of names
differ nothing is told here, and neither where names agree and their use in `forward` is
swapped. Averages by hand over `model.parameters()` in another order are DD102 or DD107.

References
----------
- DistributedDataParallel, in torch's documentation –
  https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
- `torch/nn/parallel/distributed.py` (pytorch/pytorch), `DistributedDataParallel`,
  warning on the order of parameters
"""  # noqa: E501 - a drawing is as wide as what a rank did

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.analysis.evidence import require_whole
from distdoctor.model.events import Place, Wrapped
from distdoctor.model.findings import Finding, Location, Role, Severity
from distdoctor.model.observations.replicas import Registered
from distdoctor.model.run import Run, named

CODE = "DD115"
SEVERITY = Severity.ERROR
NEEDS = (Wrapped,)


@dataclass(frozen=True, slots=True)
class _Model:
    """A model that a rank wrapped, and the lines by which its parts came into it."""

    wrapped: Wrapped
    lines: Mapping[str, Place]  # by the qualified name of a part


def examine(run: Run) -> Iterator[Finding]:
    """Compare the names of the n-th wrapped model of all ranks, for each n."""
    models = {rank: list(_models(run, rank)) for rank in run.seen}
    for n in range(min(map(len, models.values()), default=0)):
        orders = Counter(models[rank][n].wrapped.parameters for rank in models)
        (usual, _), *others = orders.most_common()
        if others and all(sorted(usual) == sorted(order) for order, _ in others):
            yield _finding({rank: models[rank][n] for rank in models}, orders)
    require_whole(run)


def _models(run: Run, rank: int) -> Iterator[_Model]:
    lines: dict[str, Place] = {}
    for _, event in run.told(Registered, Wrapped, rank=rank):
        if isinstance(event, Registered) and event.place is not None:
            lines.update(dict.fromkeys(event.names, event.place))
        elif isinstance(event, Wrapped) and event.how == "ddp":
            yield _Model(event, lines)
            lines = {}


def _finding(models: Mapping[int, _Model], orders: Counter[tuple[str, ...]]) -> Finding:
    (usual, most), *others = orders.most_common()
    tie = most == others[0][1]
    wraps = {rank: model.wrapped for rank, model in models.items()}
    odd = [rank for rank, wrap in wraps.items() if wrap.parameters != usual]
    other = wraps[odd[0]].parameters
    at = next(i for i, name in enumerate(usual) if name != other[i])
    rest = [rank for rank in models if rank not in odd]
    registers = {rank: _registering(models[rank], at, models) for rank in models}
    return Finding(
        message=f"Parameter {at + 1} of the model is {usual[at]} on {named(rest)} and "
        f"{other[at]} on {named(odd)}: gradients of different layers are averaged.",
        exhibits=tuple(wraps[rank] for rank in sorted(models)),
        culprits=() if tie else tuple(odd),
        victims=tuple(sorted(models)) if tie else tuple(rest),
        locations=(
            *_located(registers, "registers what has another place on other ranks"),
            *_located({r: wrap.place for r, wrap in wraps.items()}, "wraps the model"),
        ),
        details={"position": at},
    )


def _registering(model: _Model, at: int, models: Mapping[int, _Model]) -> Place | None:
    """The line that gave the part its place in which the names at a position differ.

    Of `heads.cart.weight` and `heads.buy.weight` it is the one of `heads.cart`.
    """
    parts = model.wrapped.parameters[at].split(".")
    theirs = [one.wrapped.parameters[at].split(".") for one in models.values()]
    path = (".".join(parts[: n + 1]) for n in range(len(parts)))
    # Down to where the first of the others goes another way.
    for n, here in enumerate(path):
        if any(one[n : n + 1] != parts[n : n + 1] for one in theirs):
            return model.lines.get(here)
    return None


def _located(places: Mapping[int, Place | None], remark: str) -> Iterator[Location]:
    ranks: dict[Place, list[int]] = {}
    for rank, place in places.items():
        if place is not None:
            ranks.setdefault(place, []).append(rank)
    for place, who in ranks.items():
        yield Location(place, tuple(who), Role.PARTY, remark)
