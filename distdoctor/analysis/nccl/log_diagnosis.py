"""What NCCL's log shows to be wrong: one cause, its victims apart, and advice."""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.memoize import memoize
from distdoctor.analysis.nccl.absent_members import absent_members, unseen_members
from distdoctor.analysis.nccl.identity_errors import identity_errors
from distdoctor.analysis.nccl.leftover_switches import leftover_switches
from distdoctor.analysis.nccl.local_errors import local_errors
from distdoctor.analysis.nccl.logged_job import LoggedJob, Told, job_of
from distdoctor.analysis.nccl.logged_mismatches import (
    complained_mismatches,
    lagging,
    logged_mismatches,
)
from distdoctor.analysis.nccl.network_errors import network_errors
from distdoctor.analysis.nccl.setting_differences import (
    setting_differences,
    version_differences,
)
from distdoctor.analysis.nccl.transports import fall_backs, mixed_networks
from distdoctor.model.findings import Finding
from distdoctor.model.run import Run


def findings_of(run: Run, code: str) -> Iterator[Finding]:
    """The findings of one check.

    Args:
        run: The run that is judged.
        code: Of the disease.
    """
    for told in diagnoses(run):
        if told.code == code:
            yield told.finding(run)


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
    told = list(root)
    known = {(one.code, one.message) for one in told}
    for one in _advice(job):
        if one.severity is None and root:
            continue  # an error that the cause explains as well
        if (one.code, one.message) not in known:
            told.append(one)
    return tuple(told)


def _root(job: LoggedJob) -> list[Told]:
    """What the failure comes from: the first question that has an answer decides."""
    for question in (
        logged_mismatches,
        local_errors,
        identity_errors,
        version_differences,
        mixed_networks,
        _of_sizes,
        network_errors,
        absent_members,
        lagging,
    ):
        if found := [one for one in question(job) if one.severity is None]:
            return found[:1]
    return []


def _of_sizes(job: LoggedJob) -> Iterator[Told]:
    """Data of other sizes than expected: settings explain it, or calls."""
    said = list(complained_mismatches(job))
    if said:
        hurting = [
            one for one in setting_differences(job, blamed=True) if one.severity is None
        ]
        yield from hurting or said


def _advice(job: LoggedJob) -> Iterator[Told]:
    yield from version_differences(job)
    yield from setting_differences(job, blamed=False)
    yield from mixed_networks(job)
    yield from identity_errors(job)
    yield from network_errors(job)
    yield from fall_backs(job)
    yield from unseen_members(job)
    yield from leftover_switches(job)
