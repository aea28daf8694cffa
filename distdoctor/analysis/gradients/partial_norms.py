"""Ranks that share a model, and clip gradients each by the norm of its own part."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distdoctor.analysis.data.fed_batches import fed_alike
from distdoctor.analysis.replicas.data_parallel import at_work
from distdoctor.analysis.replicas.replica_sets import replicas
from distdoctor.model.observations.gradients import NormClip
from distdoctor.model.run import Run

_ALIKE = 1e-3
"""Norms that differ by less, relatively, may be of the same gradients."""


@dataclass(frozen=True, slots=True)
class PartialNorms:
    """Clips of ranks that divide by other norms each.

    Attributes:
        clips: Of the first time, one of each rank.
        times: How often that was seen.
        of: How many times all ranks clipped.
        sharded: FSDP has a part of each parameter on each rank.
    """

    clips: tuple[NormClip, ...]
    times: int
    of: int
    sharded: bool


def partial_norms(run: Run) -> Iterator[PartialNorms]:
    """Sets of ranks with one model among them that clip by partial norms.

    Args:
        run: The run that is judged.

    Yields:
        One for each set, where a norm is beyond the bound.
    """
    clips = {rank: run.of(NormClip, rank) for rank in run.seen}
    clipping = [rank for rank, told in clips.items() if told]
    cut = [rank for rank in clipping if any(one.sharded for one in clips[rank])]
    if cut:
        yield from _of(run, cut, sharded=True)
    whole = [set(ranks) for ranks in replicas(run)]
    for ranks in sorted(at_work(run, clipping, together=True)):
        # Who averages its gradients has the whole of them; and to whom other samples
        # are given may have a model of its own.
        if not any(len(one & set(ranks)) > 1 for one in whole) and fed_alike(
            run, ranks
        ):
            yield from _of(run, ranks, sharded=False)


def _of(run: Run, ranks: Sequence[int], *, sharded: bool) -> Iterator[PartialNorms]:
    by_rank = [
        [one for one in run.of(NormClip, rank) if one.sharded is sharded]
        for rank in ranks
    ]
    together = [
        several
        for several in zip(*by_rank, strict=False)
        if len({(one.clip, one.bound, one.place) for one in several}) == 1
    ]
    apart = [several for several in together if _part(several, sharded)]
    if len(ranks) > 1 and apart:
        yield PartialNorms(apart[0], len(apart), len(together), sharded)


def _part(several: Sequence[NormClip], sharded: bool) -> bool:
    """Whether these norms are of other parts, and one process would have clipped."""
    norms: list[float] = []
    for one in several:
        # Replicas of a part, in hybrid sharding, have the same norm.
        if not any(math.isclose(one.norm, other, rel_tol=_ALIKE) for other in norms):
            norms.append(one.norm)
    longest = math.hypot(*norms) if sharded else max(norms)
    return len(norms) > 1 and longest > several[0].bound
