"""Evidence → run: what was left of a job, in the form that checks judge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

import distdoctor
from distdoctor.journal.folder import Manifest
from distdoctor.model.outside_view import LeftFile
from distdoctor.model.run import Run
from distdoctor.postmortem.job_evidence import DUMP, Evidence

_MOST_NAMED = 8


def run_of(evidence: Evidence) -> Run:
    """The run that the evidence tells of.

    Args:
        evidence: From all readers.

    Returns:
        A run; ranks that nothing is known of are unseen.
    """
    columns = evidence.columns
    seen = evidence.seen
    world_size = max(evidence.world_size, *(rank + 1 for rank in {*seen, -1}))
    ranks, counts = np.unique(columns.calls["rank"], return_counts=True)
    calls = dict(zip(ranks.tolist(), counts.tolist(), strict=True))
    unseen = {
        rank: evidence.unseen.get(rank, "nothing that it left was found")
        for rank in range(world_size)
        if rank not in seen
    }
    return Run(
        world_size=world_size,
        unrecorded=_unrecorded(evidence, world_size, unseen),
        groups=columns.groups,
        calls=columns.calls,
        sites=columns.sites,
        callers=columns.callers,
        specs=columns.specs,
        reached=columns.reached,
        on_devices=columns.on_devices,
        pauses=evidence.pauses,
        calls_from=columns.source,
        life=evidence.rows_before(calls),
        unseen=unseen,
        partial=evidence.partial,
        set_aside=tuple(evidence.set_aside),
        stacks=evidence.stacks,
        stopped=evidence.stopped,
        closed=evidence.closed,
        quiet=evidence.quiet,
        stack_tree=evidence.stack_tree,
        processes=evidence.processes,
        files=tuple(_files(evidence)),
        outside=evidence.outside,
        last_words=evidence.last_words,
        starved=evidence.starved,
        cancelled=evidence.cancelled,
        evidence=evidence.kinds,
    )


def _unrecorded(
    evidence: Evidence, world_size: int, unseen: Mapping[int, str]
) -> dict[int, str]:
    """Ranks whose calls no dump tells, though dumps tell those of others."""
    if evidence.columns.source != DUMP:
        return {}
    reported = {
        rank
        for source in evidence.sources
        if source.evidence == DUMP
        for rank in source.ranks
    }
    return {
        rank: evidence.unseen.get(rank, "none of the dumps has them")
        for rank in range(world_size)
        if rank not in reported and rank not in unseen
    }


def _files(evidence: Evidence) -> Iterator[LeftFile]:
    """All that was found: what was read, what could not be, what was left out."""
    for one in evidence.sources:
        yield LeftFile(one.path, one.kind, one.evidence, one.ranks, one.remark)
    for path, why in evidence.unreadable:
        yield LeftFile(path, why=why, is_broken=True)
    for path, why in evidence.left_out:
        yield LeftFile(path, why=why)


def manifest_of(
    evidence: Evidence, paths: list[str], directory: str, command: str = "autopsy"
) -> Manifest:
    """What the report says of where the run comes from.

    Args:
        evidence: From all readers.
        paths: What the user named.
        directory: Lines of source are given relative to it.
        command: Of ours, by which they did.
    """
    return Manifest(
        distdoctor=distdoctor.__version__,
        launch=[command, *paths],
        script=" ".join(paths),
        directory=directory,
        stopped=evidence.stopped,
        remarks=[*_read(evidence), *evidence.remarks],
    )


def _read(evidence: Evidence) -> list[str]:
    """What was read, what was not, and why: a sentence for each kind of each."""
    by_kind: dict[str, int] = {}
    for source in evidence.sources:
        by_kind[source.kind] = by_kind.get(source.kind, 0) + 1
    sentences = []
    if by_kind:
        counted = ", ".join(f"{n:,} × {kind}" for kind, n in by_kind.items())
        sentences.append(f"read: {counted}")
    for what, files in (
        ("could not be read", evidence.unreadable),
        ("left out", evidence.left_out),
    ):
        shown = [f"{path} ({why})" for path, why in files[:_MOST_NAMED]]
        more = len(files) - len(shown)
        if shown:
            rest = f" and {more:,} more" if more else ""
            sentences.append(f"{what}: {'; '.join(shown)}{rest}")
    return sentences
