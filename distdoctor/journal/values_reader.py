"""Reads the tensors that ranks had before their first steps; see `value_files`."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from distdoctor.errors import JournalUnreadable
from distdoctor.journal.layout import REFERENCE_FOLDER
from distdoctor.journal.regular_files import opened
from distdoctor.journal.value_files import (
    BEHIND_BACKWARD,
    GIVEN,
    GRADIENT,
    NAME,
    OUTPUT,
    TOLD,
    WEIGHT,
)
from distdoctor.model.events import Place
from distdoctor.model.step_values import ModuleOutput, StepValues, Values


class ToldOutput(msgspec.Struct, kw_only=True):
    """What a file of values says of what a module gave; see `ModuleOutput`."""

    name: str
    line: str = ""
    lines: list[str] = []
    rounding: float = 0.0


class ToldValues(msgspec.Struct, kw_only=True):
    """What a file of values says beside tensors; see `StepValues`."""

    held: list[str] = []
    partial: dict[str, tuple[str, tuple[int, ...]]] = {}
    precision: dict[str, float] = {}
    lines: dict[str, str] = {}
    line: str = ""
    called: str = ""
    random: list[str] = []
    of_batch: list[str] = []
    lossy: list[str] = []
    too_large: bool = False
    outputs: list[ToldOutput] = []
    losses: list[float | None] = []  # JSON has none that are not finite
    loss_line: str = ""
    by_hand: list[str] = []
    loss_lines: list[str] = []
    gradient_lines: list[str] = []


def read_values(
    folder: Path, place: Callable[[str], Place | None]
) -> dict[int, list[StepValues]]:
    """The first steps of each rank, as far as they were written.

    Args:
        folder: The record folder.
        place: Makes a line of its text in the journal.

    Returns:
        By rank, steps in order from the first; without those behind one that is absent.

    Raises:
        JournalUnreadable: A file is damaged.
    """
    found: dict[int, dict[int, StepValues]] = {}
    where = folder / REFERENCE_FOLDER
    for path in sorted(where.iterdir()) if where.is_dir() else ():
        if (name := NAME.fullmatch(path.name)) is not None:
            rank, step = map(int, name.groups())
            try:
                found.setdefault(rank, {})[step] = _read(path, step, place)
            except _DAMAGED as error:
                raise JournalUnreadable(
                    f"{path}: no file of values: {error}"
                ) from error
    return {
        rank: [steps[n] for n in range(1, len(steps) + 1) if n in steps]
        for rank, steps in found.items()
    }


_DAMAGED = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)


def _read(path: Path, step: int, place: Callable[[str], Place | None]) -> StepValues:
    sorts: dict[str, dict[str, Values]]
    sorts = {WEIGHT: {}, GRADIENT: {}, GIVEN: {}, OUTPUT: {}, BEHIND_BACKWARD: {}}
    with opened(path) as file, np.load(file, allow_pickle=False) as arrays:
        told = msgspec.json.decode(arrays[TOLD].tobytes(), type=ToldValues)
        for name in arrays.files:
            sort, _, of = name.partition("/")
            if sort in sorts:
                sorts[sort][of] = arrays[name]
    lines = {name: place(text) for name, text in told.lines.items()}
    return StepValues(
        step=step,
        weights=sorts[WEIGHT],
        gradients=sorts[GRADIENT],
        held=frozenset(told.held),
        behind_backward=sorts[BEHIND_BACKWARD],
        given=tuple(sorts[GIVEN].values()),
        partial=told.partial,
        precision=told.precision,
        lines={name: line for name, line in lines.items() if line is not None},
        line=place(told.line),
        called=place(told.called),
        random=tuple(told.random),
        of_batch=tuple(told.of_batch),
        lossy=tuple(told.lossy),
        too_large=told.too_large,
        outputs=tuple(_outputs(told.outputs, sorts[OUTPUT], place)),
        losses=tuple(math.nan if one is None else one for one in told.losses),
        loss_line=place(told.loss_line),
        by_hand=_places(told.by_hand, place),
        loss_lines=_places(told.loss_lines, place),
        gradient_lines=_places(told.gradient_lines, place),
    )


def _outputs(
    told: list[ToldOutput],
    arrays: dict[str, Values],
    place: Callable[[str], Place | None],
) -> Iterator[ModuleOutput]:
    by_module: dict[str, list[Values]] = {}
    for name, array in arrays.items():  # in the order in which they were written
        by_module.setdefault(name.partition("/")[0], []).append(array)
    for at, one in enumerate(told):
        yield ModuleOutput(
            name=one.name,
            arrays=tuple(by_module.get(str(at), ())),
            rounding=one.rounding,
            line=place(one.line),
            lines=_places(one.lines, place),
        )


def _places(
    texts: list[str], place: Callable[[str], Place | None]
) -> tuple[Place, ...]:
    return tuple(one for one in map(place, texts) if one is not None)
