"""Whether what a model was given reached it, and reached it on all ranks."""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.legs import Leg, legs
from distdoctor.analysis.reasons import capital, has
from distdoctor.analysis.replicas import replicas
from distdoctor.model.events import Place
from distdoctor.model.findings import Finding, Location, Role
from distdoctor.model.layers import layer_of
from distdoctor.model.observed.checkpoints import Continued, Given
from distdoctor.model.operations import CODE_OF
from distdoctor.model.run import Run, named

_FEW = 0.1  # of the names that would fit: so many may have fitted by chance
_MOST = 0.9  # of the names that did not fit: so many must be explained

_SHARING = [
    CODE_OF[name]
    for name in (
        *("broadcast", "all_gather", "all_gather_into_tensor", "scatter"),
        *("all_reduce", "all_reduce_coalesced", "all_to_all_single", "recv"),
    )
]
_SHARE = 4  # a quarter of a model's elements may be its weights in another form


def in_vain(run: Run) -> Iterator[Finding]:
    """Models that were given a state of which next to nothing reached them."""
    found: dict[Place | None, list[Given]] = {}
    for rank in run.seen:
        for leg in legs(run, rank):
            for given in _lost(leg):
                found.setdefault(given.place, []).append(given)
    for place, several in found.items():
        ranks = sorted({given.rank for given in several})
        everyone = len(ranks) == run.world_size
        role = Role.PARTY if everyone else Role.CULPRIT
        yield Finding(
            message=f"{_story(several[0])}.",
            exhibits=(several[0],),
            culprits=() if everyone else tuple(ranks),
            locations=(Location(place, tuple(ranks), role, "loads nothing"),)
            if place is not None
            else (),
            details={"prefix": several[0].prefix, "lacking": several[0].lacking},
        )


def _lost(leg: Leg) -> Iterator[Given]:
    models = [given for given in leg.given if given.what == "model"]
    reached = [number for number, given in enumerate(models) if _reached(given)]
    for number, given in enumerate(models):
        if _reached(given) or not given.unexpected:
            continue
        if any(other > number for other in reached):
            continue  # tried again, under other names
        if reached and not _is_explained(given):
            continue  # a state for several models, of which this one has no part
        if (given.own or given.empty) and (reached or not given.explained):
            continue  # the names are those of the file read last: of another model
        yield given


def _reached(given: Given) -> bool:
    """Whether more of a state reached its model than could by chance."""
    if given.own or not given.matched:
        return False
    return not (_is_explained(given) and given.matched <= _FEW * given.explained)


def _is_explained(given: Given) -> bool:
    """Whether nearly all names would fit without what stands before them."""
    return 0 < given.explained >= _MOST * given.unexpected


def _story(given: Given) -> str:
    kind = given.kind
    names = given.unexpected
    if given.own or given.empty:
        what = (
            f"load_state_dict gave {kind} nothing of the checkpoint: none of its "
            f"{names} names fits"
        )
    else:
        what = (
            f"load_state_dict(strict=False) loaded {given.matched or 'none'} of "
            f"{given.matched + names} tensors into {kind}, and {given.missing} of its "
            "own stay as they were"
        )
    why = ""
    if given.prefix and given.lacking:
        why = f"the state's begin with {given.prefix!r}, the model's {given.lacking!r}"
    elif given.prefix:
        why = f"the state's begin with {given.prefix!r}, which the model's do not"
    elif given.lacking:
        why = f"the model's begin with {given.lacking!r}, which the state's do not"
    told = f": the names differ, {why}" if why else ": no name is the same"
    return f"{what}{told}"


# --- on some ranks only ---


def one_sided(run: Run) -> Iterator[Finding]:
    """Models that some replicas loaded after they were made equal, and others not."""
    told: set[Place | None] = set()
    for ranks in replicas(run):
        changes = {rank: _changes(run, rank) for rank in ranks if rank in run.seen}
        for first in [given for found in changes.values() for given in found]:
            loaded = [r for r in changes if any(_alike(g, first) for g in changes[r])]
            # Others may load on another line of theirs.
            most = min(len(changes[rank]) for rank in loaded)
            others = [r for r in changes if r not in loaded and len(changes[r]) < most]
            if not others or len(others) + len(loaded) < len(changes):
                continue
            if first.place not in told and not _was_shared(run, first):
                told.add(first.place)
                yield _told(loaded, others, first)


def _alike(one: Given, other: Given) -> bool:
    return one.place == other.place and one.elements == other.elements


def _changes(run: Run, rank: int) -> list[Given]:
    """Loads that changed weights DDP had made equal, with training behind."""
    return [
        given
        for leg in legs(run, rank)
        for given in leg.given
        if given.what == "model" and given.wrapped and given.changed and leg.continued
    ]


def _was_shared(run: Run, given: Given) -> bool:
    """Whether as much as the weights went between ranks before the next step."""
    rank, begun, end = given.rank, -1, -1
    for count, event in run.life.get(rank, ()):
        if event is given:
            begun = count
        elif begun >= 0 and isinstance(event, Continued):
            end = count
            break
    mine = run.rows_of(rank)
    elements = 0
    for row in range(mine.start + begun, mine.start + end):
        record = run.calls[row]
        layer = layer_of(int(record["flags"]))
        if record["op"] in _SHARING and layer != "backward":
            spec = run.specs[int(record["spec"])]
            elements += sum(tensor.numel for tensor in spec.tensors)
    return elements * _SHARE >= given.elements


def _told(loaded: list[int], others: list[int], first: Given) -> Finding:
    minority = min((loaded, others), key=len)
    culprits = minority if len(loaded) != len(others) else []
    place = first.place
    role = Role.CULPRIT if loaded == culprits else Role.PARTY
    return Finding(
        message=(
            f"{capital(named(loaded))} alone loaded a checkpoint into {first.kind} "
            "after it was wrapped (other bits than before in "
            f"{first.changed} of the tensors looked at), {named(others)} "
            f"{has(others)} the weights from before, and training goes on with both."
        ),
        exhibits=(first,),
        culprits=tuple(sorted(culprits)),
        victims=() if culprits else tuple(others),
        locations=()
        if place is None
        else (Location(place, tuple(loaded), role, "loads on these ranks only"),),
        details={"loaded": loaded, "others": others},
    )
