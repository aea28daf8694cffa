"""Record folder → report: reads what was recorded, asks every check, sums up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from distdoctor.catalogue import every_check
from distdoctor.examination import conclude, examine
from distdoctor.journal.assembly import read_run
from distdoctor.journal.folder import Manifest, read_manifest
from distdoctor.model.run import Run
from distdoctor.report.compose import compose
from distdoctor.report.schema import Report


@dataclass(frozen=True, slots=True)
class Judgement:
    """A run and what is to be said of it."""

    run: Run
    report: Report


def judge(folder: Path, kept: str = "") -> Judgement:
    """Judge the run in a record folder.

    Args:
        folder: The record folder.
        kept: Its name for the report, if it stays.

    Raises:
        RecordUnreadable: It holds no run, or one that cannot be read.
    """
    return judge_run(read_run(folder), read_manifest(folder), kept)


def judge_run(run: Run, manifest: Manifest, kept: str = "") -> Judgement:
    """Judge a run that was put together already.

    Args:
        run: The run.
        manifest: How it was started and how it ended.
        kept: Its record folder for the report, if it stays.
    """
    verdicts = examine(run, every_check())
    conclusion = conclude(run, verdicts)
    return Judgement(run, compose(run, verdicts, conclusion, manifest, kept))
