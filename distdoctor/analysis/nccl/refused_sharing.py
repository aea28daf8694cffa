"""Ranks that NCCL, or what stands in for it, refused for the GPU that they share."""

from __future__ import annotations

import re
from dataclasses import dataclass

from distdoctor.model.events import Failure, Place
from distdoctor.model.findings import Location, Role
from distdoctor.model.observations.nccl import SharedGpu
from distdoctor.model.run import Run

_REFUSAL = re.compile(
    r"Duplicate GPU detected(?: : rank \d+ and rank \d+ both on CUDA device [\w:]+)?"
)
"""Source: NCCL 2.30, `src/init.cc`; torch appends it to the text of its exception."""


@dataclass(frozen=True, slots=True)
class RefusedSharing:
    """Ranks on one GPU.

    Attributes:
        ranks: All that are known to share, ascending.
        refused: The failures of those that were refused, by rank, ascending.
        text: In which NCCL says so.
        used: Of those, where they first put something on a GPU, as far as known.
    """

    ranks: tuple[int, ...]
    refused: dict[int, Failure]
    text: str
    used: tuple[SharedGpu, ...]

    @property
    def locations(self) -> tuple[Location, ...]:
        """The refused calls, and the lines that chose the GPU."""
        calls = {
            failure.place: tuple(
                r for r, one in self.refused.items() if one.place == failure.place
            )
            for failure in self.refused.values()
        }
        uses = {
            one.place: tuple(o.rank for o in self.used if o.place == one.place)
            for one in self.used
        }
        return (
            *_lines(calls, "NCCL refuses this call"),
            *_lines(uses, "first put something on a GPU here"),
        )


def refused_sharing(run: Run) -> RefusedSharing | None:
    """Who ended because another rank is on the same GPU; None if nobody did.

    Args:
        run: The run that is judged.
    """
    refused = {
        rank: failure
        for rank in run.seen
        for failure in run.of(Failure, rank)
        if failure.fatal and _REFUSAL.search(failure.message)
    }
    if not refused:
        return None
    # Numbers in the text are those of the communicator: they name no rank of the job.
    told = [one for rank in refused for one in run.of(SharedGpu, rank)]
    ranks = tuple(sorted({*refused, *(one.other for one in told)}))
    texts = (_REFUSAL.search(one.message) for one in refused.values())
    text = next(match[0] for match in texts if match)
    return RefusedSharing(ranks, refused, text, tuple(told))


def _lines(
    ranks_at: dict[Place | None, tuple[int, ...]], remark: str
) -> list[Location]:
    return [
        Location(place, ranks, Role.CULPRIT, remark)
        for place, ranks in ranks_at.items()
        if place is not None
    ]
