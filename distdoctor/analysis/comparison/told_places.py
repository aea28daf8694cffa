"""Where tensors of ranks lie in the reference, where the user says so.

Values tell that by themselves for what begins with random numbers. For the rest there
is a table in the project's settings:

    [[tool.distdoctor.reference]]
    tensor = "experts.*.bias"       # of the job; * stands for anything
    is = "moe.experts.*.bias"       # its name in the reference; else the same
    axis = 0                        # cut into equal parts along it; else it is whole
    parts = [0, 1, 0, 1]            # by rank, which part it has; else that of its rank
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distdoctor.analysis.comparison.shard_places import Cut, Indices
from distdoctor.model.step_values import Values


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldPlace:
    """A row of the table.

    Attributes:
        tensor: Pattern of names in the job.
        reference: Pattern of the name there; "": the same. Its stars stand for what
            those of the other do.
        axis: Along which it is cut into equal parts; None: each rank has all of it.
        parts: By rank, the number of its part; empty: the rank's own number.
    """

    tensor: str
    reference: str = ""
    axis: int | None = None
    parts: tuple[int, ...] = ()

    def place(
        self, rank: int, name: str, part: Values, wholes: Mapping[str, Values]
    ) -> Cut | None:
        """Where a rank's tensor lies; None: this row says nothing of it, or nonsense.

        Args:
            rank: The rank.
            name: Of its tensor.
            part: The tensor.
            wholes: Those of the reference, by name.
        """
        found = re.fullmatch(_expression(self.tensor), name)
        if found is None:
            return None
        there = self.reference or self.tensor
        for words in found.groups():
            there = there.replace("*", words, 1)
        whole = wholes.get(there)
        if whole is None or whole.ndim != part.ndim:
            return None
        axes: list[Indices] = [np.arange(size) for size in whole.shape]
        if self.axis is not None and -part.ndim <= self.axis < part.ndim:
            number = self.parts[rank] if rank < len(self.parts) else rank
            size = part.shape[self.axis]
            axes[self.axis] = np.arange(number * size, (number + 1) * size)
            if (number + 1) * size > whole.shape[self.axis]:
                return None
        here = Cut(there, tuple(axes), whole.shape)
        return here if here.of(whole).shape == part.shape else None


def _expression(pattern: str) -> str:
    return "(.*?)".join(map(re.escape, pattern.split("*")))


def told_place(
    rows: Sequence[ToldPlace],
    rank: int,
    name: str,
    part: Values,
    wholes: Mapping[str, Values],
) -> Cut | None:
    """What the first row says that fits; see `ToldPlace.place`."""
    for row in rows:
        if (here := row.place(rank, name, part, wholes)) is not None:
            return here
    return None
