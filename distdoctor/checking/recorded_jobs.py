"""Judges records of our own that lie among what a job left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from distdoctor.errors import DistdoctorError

if TYPE_CHECKING:
    from distdoctor.judging import Judgement
    from distdoctor.postmortem.job_evidence import Evidence
    from distdoctor.postmortem.own_records import OwnRecord

_WORSE = {"sick": 0, "unknown": 1, "well": 2}

_MOST_NAMED = 8


def judged_records(paths: list[str], columns: Path | None = None) -> Judgement | None:
    """The judgement on the records at these paths, and on what lies beside them.

    Of several runs, the worst is told, and of these the latest.

    Args:
        paths: Files and folders.
        columns: Folder for the calls of dumps that lie beside.

    Returns:
        None: there is no record that can be read.

    Raises:
        LeavingsMissing: A path does not exist.
    """
    from distdoctor.journal.kept_records import trim_if_broken_off
    from distdoctor.postmortem.own_records import record_folders

    folders = record_folders(paths)
    if not folders:
        return None
    for folder in folders:
        trim_if_broken_off(folder)
    evidence = _beside(paths, folders, columns)
    judged: list[tuple[OwnRecord, Judgement]] = []
    for folder in folders:
        try:
            judged.append(_judged(folder, evidence, alone=len(folders) == 1))
        except DistdoctorError as error:
            evidence.unreadable.append((str(folder), str(error)))
    if not judged:
        return None
    judged.sort(key=lambda one: one[0].manifest.started, reverse=True)
    judged.sort(key=lambda one: _WORSE[one[1].report.verdict])
    record, judgement = judged[0]
    remarks = [
        f"could not be read: {path} ({why})" for path, why in evidence.unreadable
    ]
    if len(judged) > 1:
        others = [
            f"{one.folder} is {other.report.verdict}{_codes(other)}"
            for one, other in judged[1 : _MOST_NAMED + 1]
        ]
        remarks.insert(
            0,
            f"{len(judged)} runs were recorded here; this is {record.folder}; "
            + "; ".join(others),
        )
    judgement.report.remarks = [*remarks, *judgement.report.remarks]
    return judgement


def _beside(paths: list[str], folders: list[Path], columns: Path | None) -> Evidence:
    """What lies beside the records, and is no part of one."""
    from distdoctor.postmortem.own_records import is_part_of_one
    from distdoctor.postmortem.recognising import gather

    return gather(
        paths, without=lambda path: is_part_of_one(path, folders), columns=columns
    )


def _judged(
    folder: Path, evidence: Evidence, *, alone: bool
) -> tuple[OwnRecord, Judgement]:
    from distdoctor.judging import judge_run
    from distdoctor.postmortem.evidence_run import run_of
    from distdoctor.postmortem.own_nccl_logs import with_observations
    from distdoctor.postmortem.own_records import read_record

    record = read_record(folder)
    if alone and evidence.sources:
        run = with_observations(record.run, run_of(evidence))
        record = replace(record, run=run)
    judgement = judge_run(record.run, record.manifest, str(folder), record.earlier)
    return record, judgement


def _codes(judgement: Judgement) -> str:
    """The diseases of a run, as a clause."""
    codes = dict.fromkeys(finding.code for finding in judgement.report.findings)
    return f" ({', '.join(codes)})" if codes else ""
