"""Whether ranks part ways because a tensor lay on a device that cannot communicate."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from distdoctor.analysis.causes import Cause, Divergence, at, where_of
from distdoctor.model.events import Failure, Misplaced
from distdoctor.model.run import Run

_REFUSAL = re.compile(
    r"No backend type associated with device type (?P<a>\w+)"
    r"|Tensors must be (?P<b>CUDA) and dense"
    r"|ProcessGroup\w+::\w+: unsupported device type (?P<c>\w+)"
    r"|[Nn]o backend for the parent process group or its backend does not support"
    r"|invalid tensor type or device"
)
"""Texts with which torch refuses a tensor's device.

Source: torch 2.13, ProcessGroup.hpp, ProcessGroupNCCL.cpp and ProcessGroupGloo.cpp.
"""


@dataclass(frozen=True, slots=True)
class RefusedTensor:
    """A tensor whose device the backend refused, and on which ranks."""

    ranks: tuple[int, ...]
    failure: Failure


@dataclass(frozen=True, slots=True)
class UnmovedTensor:
    """A tensor on a device with which a call moves nothing and raises nothing.

    Attributes:
        ranks: Who called with it.
        first: The first such call.
        others: Who made the call in earnest.
        where: Its place in the group's sequence.
    """

    ranks: tuple[int, ...]
    first: Misplaced
    others: tuple[int, ...]
    where: str


def wrong_device(run: Run, found: list[Divergence]) -> list[Divergence]:
    """The divergences, with those that a tensor's device explains told so.

    Args:
        run: The run that is judged.
        found: The divergences as they are known so far.

    Returns:
        The divergences in their order, or one for the tensor's device in place of all.
    """
    refused = {
        rank: failure
        for rank in run.seen
        for failure in run.of(Failure, rank)
        if failure.fatal and _REFUSAL.search(failure.message)
    }
    if refused:
        return _refused(run, found, refused)
    misplaced = {
        rank: events[0] for rank in run.seen if (events := run.of(Misplaced, rank))
    }
    if not misplaced or len(misplaced) == len(run.seen):
        return found  # all alike: they try out what fits
    return [_nothing_moved(run, divergence, misplaced) for divergence in found]


def _refused(
    run: Run, found: list[Divergence], refused: dict[int, Failure]
) -> list[Divergence]:
    ranks = tuple(sorted(refused))
    base = next(
        (d for d in found if d.why is Cause.DIED and set(d.culprits) & refused.keys()),
        Divergence(Cause.DEVICE, None, 0, {}, ranks, ()),
    )
    everyone = len(ranks) == len(run.seen)
    others = tuple(rank for rank in run.seen if rank not in refused)
    first = refused[ranks[0]]
    refusal = Divergence(
        why=Cause.DEVICE,
        group=base.group,
        ordinal=base.ordinal,
        calls=base.calls,
        culprits=() if everyone else ranks,
        victims=ranks if everyone else others,
        cause=first,
        elsewhere=at(first, ranks, "its backend has no way to move this tensor"),
        facts=RefusedTensor(ranks, first),
    )
    rest = [d for d in found if d is not base and not set(d.culprits) & set(ranks)]
    return [refusal, *rest]


def _nothing_moved(
    run: Run, divergence: Divergence, misplaced: dict[int, Misplaced]
) -> Divergence:
    ranks = tuple(sorted(misplaced))
    if divergence.group is None or not set(ranks) <= set(divergence.group.ranks):
        return divergence
    first: Misplaced = misplaced[ranks[0]]
    others = tuple(rank for rank in divergence.group.ranks if rank not in ranks)
    if not others or not _left_out(run, first, others):
        return divergence
    return Divergence(
        why=Cause.DEVICE,
        group=divergence.group,
        ordinal=divergence.ordinal,
        calls=divergence.calls,
        culprits=ranks,
        victims=others,
        cause=first,
        elsewhere=at(first, ranks, f"this tensor is on {first.device}"),
        facts=UnmovedTensor(ranks, first, others, where_of(divergence)),
    )


def _left_out(run: Run, misplaced: Misplaced, others: tuple[int, ...]) -> bool:
    """Whether the others made calls from that line which this rank did not make."""

    def made(rank: int) -> int:
        rows = run.rows_of(rank)
        part = run.calls[rows.start : rows.stop]
        sites = {n for n, place in enumerate(run.sites) if place == misplaced.place}
        return int(np.isin(part["site"], list(sites)).sum())

    return max(map(made, others)) > made(misplaced.rank)
