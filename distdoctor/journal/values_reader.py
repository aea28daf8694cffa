"""Reads the tensors that ranks had before their first steps; see `value_files`."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from distdoctor.errors import JournalUnreadable
from distdoctor.journal.layout import REFERENCE_FOLDER
from distdoctor.journal.regular_files import opened
from distdoctor.journal.value_files import GIVEN, GRADIENT, NAME, TOLD, WEIGHT
from distdoctor.model.events import Place
from distdoctor.model.step_values import StepValues, Values


class ToldValues(msgspec.Struct, kw_only=True):
    """What a file of values says beside tensors; see `StepValues`."""

    partial: dict[str, tuple[str, tuple[int, ...]]] = {}
    precision: dict[str, float] = {}
    lines: dict[str, str] = {}
    line: str = ""
    called: str = ""
    random: list[str] = []
    of_batch: list[str] = []
    too_large: bool = False


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
    sorts: dict[str, dict[str, Values]] = {WEIGHT: {}, GRADIENT: {}, GIVEN: {}}
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
        given=tuple(sorts[GIVEN].values()),
        partial=told.partial,
        precision=told.precision,
        lines={name: line for name, line in lines.items() if line is not None},
        line=place(told.line),
        called=place(told.called),
        random=tuple(told.random),
        of_batch=tuple(told.of_batch),
        too_large=told.too_large,
    )
