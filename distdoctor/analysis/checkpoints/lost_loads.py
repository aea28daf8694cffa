"""Whether what a model was given reached it."""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.checkpoints.restarts import TrainingLeg, training_legs
from distdoctor.model.events import Place
from distdoctor.model.findings import Finding, Location, Role
from distdoctor.model.observations.checkpoints import Given
from distdoctor.model.run import Run

_FEW = 0.1  # of the names that would fit: so many may have fitted by chance
_MOST = 0.9  # of the names that did not fit: so many must be explained


def in_vain(run: Run) -> Iterator[Finding]:
    """Models that were given a state of which next to nothing reached them.

    Args:
        run: The run that is judged.

    Yields:
        A finding for each line that gives a model its state.
    """
    found: dict[Place | None, list[Given]] = {}
    for rank in run.seen:
        for leg in training_legs(run, rank):
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


def _lost(leg: TrainingLeg) -> Iterator[Given]:
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
    reason = f": the names differ, {why}" if why else ": no name is the same"
    return f"{what}{reason}"
