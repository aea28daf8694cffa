"""What NCCL's log shows to be wrong: one cause, its victims apart, and advice."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

from distdoctor.analysis.memoize import memoize
from distdoctor.analysis.nccl.absent_members import (
    absent_members,
    slow_initialisation,
    unseen_members,
)
from distdoctor.analysis.nccl.identity_errors import (
    foreign_connections,
    identity_errors,
)
from distdoctor.analysis.nccl.leftover_switches import leftover_switches
from distdoctor.analysis.nccl.local_errors import local_errors
from distdoctor.analysis.nccl.logged_job import LoggedJob, Told, Words, job_of
from distdoctor.analysis.nccl.logged_mismatches import (
    complained_mismatches,
    lagging,
    logged_mismatches,
    unlike_messages,
)
from distdoctor.analysis.nccl.network_errors import network_errors
from distdoctor.analysis.nccl.other_errors import other_errors
from distdoctor.analysis.nccl.setting_differences import (
    setting_differences,
    version_differences,
)
from distdoctor.analysis.nccl.transports import fall_backs, mixed_networks
from distdoctor.model.findings import Finding
from distdoctor.model.run import Run

_NONE: Words = MappingProxyType({})


def findings_of(run: Run, code: str, words: Words = _NONE) -> Iterator[Finding]:
    """The findings of one check.

    Args:
        run: The run that is judged.
        code: Of the disease.
        words: How the check words facts that it alone tells.
    """
    for reported in diagnoses(run):
        if reported.code == code:
            yield reported.finding(run, words)


@memoize
def diagnoses(run: Run) -> tuple[Told, ...]:
    """All that is to be told, the cause first.

    Args:
        run: The run that is judged.
    """
    job = job_of(run)
    if not job.parties:
        return ()
    root = _root(job)
    reported = list(root)
    known = {(one.code, one.message) for one in reported}
    for one in _advice(job):
        if one.severity is None and root:
            continue  # an error that the cause explains as well
        if (one.code, one.message) not in known:
            reported.append(one)
    return tuple(reported)


def _root(job: LoggedJob) -> list[Told]:
    """What the failure comes from: the first question that has an answer decides."""
    for question in (
        logged_mismatches,
        unlike_messages,
        local_errors,
        identity_errors,
        version_differences,
        mixed_networks,
        foreign_connections,
        _of_sizes,
        network_errors,
        _of_stuck_settings,
        absent_members,
        lagging,
        other_errors,
    ):
        if found := [one for one in question(job) if one.severity is None]:
            return found[:1]
    return []


def _of_sizes(job: LoggedJob) -> Iterator[Told]:
    """Data of other sizes than expected: settings explain it, or calls."""
    stated = list(complained_mismatches(job))
    if stated:
        hurting = [
            one for one in setting_differences(job, blamed=True) if one.severity is None
        ]
        yield from hurting or stated


def _of_stuck_settings(job: LoggedJob) -> Iterator[Told]:
    """Settings that ranks must share, where all began and none came to an end."""
    begun = sum(len(members) for members in job.communicators.values())
    if begun == job.run.world_size > 1 and job.made_none:
        yield from setting_differences(job, blamed=True)


def _advice(job: LoggedJob) -> Iterator[Told]:
    yield from version_differences(job)
    yield from setting_differences(job, blamed=False)
    yield from mixed_networks(job)
    yield from identity_errors(job)
    yield from foreign_connections(job)
    yield from network_errors(job)
    yield from fall_backs(job)
    yield from unseen_members(job)
    yield from slow_initialisation(job)
    yield from leftover_switches(job)
