"""What a probe cannot have written: by it, damaged notes are told from whole ones.

A note that is JSON and has the fields of its kind may still say what cannot be: more
fingerprints than names, a rank that no job has. An analysis may rely on that each
event of a run could have been written by a probe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar, get_type_hints

from distdoctor.journal.packed_texts import MOST_LINES
from distdoctor.model.events import MOST_RANKS, Place
from distdoctor.model.observations.comparison import Traced
from distdoctor.model.observations.data import Held
from distdoctor.model.observations.divergence import Turn
from distdoctor.model.observations.environment import (
    Arguments,
    Delayed,
    Hyperparameters,
    Software,
    Sources,
)
from distdoctor.model.observations.gradients import (
    Gradients,
    Holds,
    Sent,
    Weighed,
    Window,
)
from distdoctor.model.observations.horovod import VariablePrints
from distdoctor.model.observations.learning_rate import RateRise, Schedule
from distdoctor.model.observations.memory import Memory
from distdoctor.model.observations.metrics import Shown
from distdoctor.model.observations.optimizer_step import Cycle
from distdoctor.model.observations.replicas import Trail, Trained, Weights
from distdoctor.model.observations.rng import Drawn

Event = TypeVar("Event")

_LEAST, _MOST = -(1 << 63), (1 << 64) - 1
"""Of whole numbers in events: fingerprints and addresses have 64 bits."""

_MOST_COUNTED = 10**9
"""Of steps, passes and the like in one run."""

_COUNTS = frozenset(
    {"batch", "batches", "begun", "calls", "count", "every", "first", "losses", "more"}
    | {"passes", "round", "rounds", "steps", "step", "stride", "times", "until"}
    | {"window", "workers", "epoch", "replicas"}
)
"""Fields that count such."""

_PRINTS = frozenset(
    {"after", "bags", "before", "begins", "contents", "gradients", "prints", "rows"}
    | {"rules", "settled", "states", "weights"}
)
"""Fields with fingerprints: of 64 bits, and none is negative."""

_EQUAL: Mapping[type[Any], tuple[str, ...]] = {
    Arguments: ("names", "values"),
    Delayed: ("at_ms", "delay_ms"),
    Drawn: ("streams", "begins"),
    Gradients: ("probed", "own", "used"),
    Holds: ("names", "sizes"),
    Hyperparameters: ("names", "values"),
    Memory: ("steps", "own_kib", "graphs", "passes"),
    RateRise: ("steps", "rates"),
    Shown: ("numbers", "decimals", "labels"),
    Software: ("packages", "versions"),
    Sources: ("modules", "files", "texts", "lines"),
    Traced: ("names", "prints"),
    Trail: ("before", "gradients", "after"),
    Trained: ("names", "numels"),
    Turn: ("variables", "names"),
    VariablePrints: ("names", "sizes", "prints"),
    Weighed: ("factors", "counts"),
    Window: ("reads", "batches"),
}
"""Fields that tell one thing each of the same things: they are equally long."""

_EQUAL_OR_NONE: Mapping[type[Any], tuple[str, ...]] = {
    Gradients: ("prints", "norms", "weights"),
    Held: ("names", "bags"),
    Memory: ("steps", "device_kib"),
    Schedule: ("parts", "kinds"),
    Sent: ("positions", "own", "factors", "settled", "moved"),
    Weights: ("prints", "gradients", "states"),
}
"""The same of fields of which those behind the first may also be empty."""

_FILLED: Mapping[type[Any], tuple[str, ...]] = {
    Cycle: ("words",),
    Weighed: ("factors",),
}
"""Fields that are never empty."""

_POSITIONS: Mapping[type[Any], tuple[tuple[str, str], ...]] = {
    Gradients: (("probed", "prints"),),
    Holds: (("averaged", "names"), ("late", "names")),
    Sources: (("constants", "files"),),
}
"""Fields with positions in others."""

_EACH: Mapping[type[Any], tuple[tuple[str, str, int], ...]] = {
    Held: (("rows", "names", 0),),
    Weights: (("samples", "prints", 3),),
}
"""Fields with so many entries, or equally many, for each of another."""


_SHAPED = {*_EQUAL, *_EQUAL_OR_NONE, *_POSITIONS, *_EACH}


def possible(event: Event, world_size: int = MOST_RANKS) -> Event:
    """The event itself, if a probe can have written it.

    Args:
        event: Of a rank's life, or an observation.
        world_size: Of the job; no rank is larger.

    Returns:
        The same.

    Raises:
        ValueError: It cannot be, and the text says why.
    """
    kind: Any = type(event)
    single, several = _whole_numbers(kind)
    for name in single:
        value = getattr(event, name)
        if value is not None and not _LEAST <= value <= _MOST:
            raise ValueError(f"{name} has more than 64 bits")
        if name in _COUNTS and value is not None and not -1 <= value <= _MOST_COUNTED:
            raise ValueError(f"{name} is no count")
    for name in several:
        if not (values := getattr(event, name)):
            continue
        least, most = (0, _MOST) if name in _PRINTS else (_LEAST, -_LEAST - 1)
        if min(values) < least or max(values) > most:
            raise ValueError(f"{name} have more than 64 bits")
        if name == "ranks":
            _require_ranks(values, world_size)
    caught = getattr(event, "caught", None)
    if isinstance(caught, Place) and not 0 <= caught.line <= MOST_LINES:
        raise ValueError(f"no file has a line {caught.line}")
    if kind in _FILLED and not all(getattr(event, name) for name in _FILLED[kind]):
        raise ValueError(f"{', '.join(_FILLED[kind])} are missing")
    if kind in _SHAPED:
        _require_shape(event, kind)
    return event


def _require_ranks(ranks: tuple[int, ...], world_size: int) -> None:
    if min(ranks) < 0 or max(ranks) >= world_size or len(set(ranks)) < len(ranks):
        raise ValueError(f"there are no such ranks in a job of {world_size}")


def _require_shape(event: Any, kind: type[Any]) -> None:
    for names in (_EQUAL.get(kind, ()), _EQUAL_OR_NONE.get(kind, ())):
        lengths = [len(getattr(event, name)) for name in names]
        if names is _EQUAL_OR_NONE.get(kind):
            lengths = [*lengths[:1], *filter(None, lengths)]
        if len(set(lengths)) > 1:
            raise ValueError(f"{', '.join(names)} are not equally long")
    for name, other in _POSITIONS.get(kind, ()):
        positions, length = getattr(event, name), len(getattr(event, other))
        if positions and not 0 <= min(positions) <= max(positions) < length:
            raise ValueError(f"{name} are no positions in {other}")
    for name, other, each in _EACH.get(kind, ()):
        given, length = len(getattr(event, name)), len(getattr(event, other))
        if given and (
            not length or (given != each * length if each else given % length)
        ):
            raise ValueError(f"{name} do not belong to {other}")


@cache
def _whole_numbers(kind: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Fields of a kind of event that are one whole number, and several."""
    hints = get_type_hints(kind)
    named = {field.name: hints[field.name] for field in fields(kind)}
    single = (name for name, hint in named.items() if hint in (int, int | None))
    several = (name for name, hint in named.items() if hint == tuple[int, ...])
    return tuple(single), tuple(several)
