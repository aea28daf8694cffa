"""Tells files of another job from those of the one that is looked at.

What knows the job best decides: recorders' dumps name all ranks of it and the script
that made the calls. What says something else of these is of another job, and mixing the
two would accuse ranks that did nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

from distdoctor.model.events import Place
from distdoctor.postmortem.job_evidence import Evidence
from distdoctor.postmortem.leavings import Leaving

_SLURM = re.compile(r"slurm-(\d{1,12})(?:_\d+)?\.")


def copied(evidence: Evidence) -> Evidence:
    """Evidence to go back to, should what is read next be of another job.

    Args:
        evidence: As it is now.

    Returns:
        A copy that later additions do not change.
    """
    changes: dict[str, Any] = {}
    for field in fields(evidence):
        value = getattr(evidence, field.name)
        if isinstance(value, list):
            changes[field.name] = list(value)
        elif isinstance(value, dict):
            changes[field.name] = {
                key: list(one) if isinstance(one, list) else one
                for key, one in value.items()
            }
    return replace(evidence, **changes)


def contradiction(before: Evidence, after: Evidence) -> str:
    """What shows that the files read last are of another job; empty: nothing.

    Args:
        before: What was known when their reading began.
        after: What is known with them.

    Returns:
        A sentence for the report.
    """
    size = before.stated_size
    if size and after.world_size > size:
        return (
            f"the dumps are of a job of {size:,} ranks, and these tell of "
            f"{after.world_size:,}: they are of another job"
        )
    if after.stacks and not before.stacks:
        calls = _scripts([*before.columns.callers, *_alone(before.columns.sites)])
        stacks = _scripts(
            [frame.place for frame in stack] for stack in after.stacks.values()
        )
        if calls and stacks and calls.isdisjoint(stacks):
            return (
                f"the dumps are of {', '.join(sorted(calls))}, and these of "
                f"{', '.join(sorted(stacks))}: they are of another job"
            )
    return ""


def _alone(places: Iterable[Place | None]) -> list[list[Place]]:
    return [[place] for place in places if place is not None]


def _scripts(chains: Iterable[Sequence[Place]]) -> set[str]:
    """The names of the files whose top level is the outermost line of stacks."""
    return {
        chain[-1].file.rpartition("/")[2]
        for chain in chains
        if chain and chain[-1].function == "<module>"
    }


def set_apart(
    kept: Evidence, rejected: Evidence, kind: str, paths: Sequence[str], why: str
) -> None:
    """Note in the evidence what is of another job.

    Args:
        kept: Evidence without it.
        rejected: Evidence with it.
        kind: What the files are, in words.
        paths: Of the files.
        why: What shows it.
    """
    kept.set_aside.append((f"{len(paths):,} × {kind}", why))
    kept.left_out += [(path, "it is of another job") for path in paths]
    known = {path for path, _ in kept.unreadable}
    kept.unreadable += [one for one in rejected.unreadable if one[0] not in known]


def of_earlier_jobs(leavings: Sequence[Leaving]) -> dict[str, str]:
    """Output that Slurm wrote for earlier jobs than the last one.

    Args:
        leavings: All files.

    Returns:
        By path, why it is left out.
    """
    numbers = {}
    for leaving in leavings:
        if match := _SLURM.match(leaving.name):
            numbers[leaving.path] = int(match[1])
    last = max(numbers.values(), default=0)
    return {
        path: f"it is of Slurm's job {number}, and job {last} is later"
        for path, number in numbers.items()
        if number < last
    }
