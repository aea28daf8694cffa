"""Record folder → report: reads what was recorded, asks every check, sums up."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from distdoctor.catalogue import every_check
from distdoctor.examination.concluding import conclude
from distdoctor.examination.examining import examine, together
from distdoctor.examination.thresholds import Thresholds, changed, require_thresholds
from distdoctor.examination.waivers import waive
from distdoctor.journal.assembly import read_earlier, read_run
from distdoctor.journal.folder import Manifest, read_manifest
from distdoctor.journal.secret_masking import masked_text
from distdoctor.lint.hints import hints_of
from distdoctor.model.run import Run
from distdoctor.report.compose import compose
from distdoctor.report.schema import HintData, Report


def load_checks(wanted: Thresholds | None = None) -> None:
    """Load all checks, so that a judgement later need not.

    Args:
        wanted: Thresholds that they are to have.

    Raises:
        CheckMalformed: A module lacks a part, or two share a code.
        CheckUnknown: A check has no such threshold.
    """
    require_thresholds(every_check(), wanted or {})


@dataclass(frozen=True, slots=True)
class Judgement:
    """A run and what is to be said of it."""

    run: Run
    report: Report


def judge(
    folder: Path,
    kept: str = "",
    completed: Callable[[Run, Path, Manifest], Run] = lambda run, _folder, _manifest: (
        run
    ),
) -> Judgement:
    """Judge the run in a record folder.

    Args:
        folder: The record folder.
        kept: Its name for the report, if it stays.
        completed: Adds to the run what others than our probes wrote into the folder.

    Raises:
        RecordUnreadable: It holds no run, or one that cannot be read.
    """
    earlier = read_earlier(folder)
    manifest = read_manifest(folder)
    run = completed(read_run(folder), folder, manifest)
    return judge_run(run, manifest, kept, earlier)


def judge_run(
    run: Run, manifest: Manifest, kept: str = "", earlier: Sequence[Run] = ()
) -> Judgement:
    """Judge a run that was put together already.

    Args:
        run: The run.
        manifest: How it was started and how it ended.
        kept: Its record folder for the report, if it stays.
        earlier: What ranks did in the same job that were started before these.
    """
    with without_collection(), changed(every_check(), manifest.thresholds):
        verdicts = examine(run, every_check())
        if earlier:
            before = [examine(one, every_check()) for one in earlier]
            verdicts = together(verdicts, before)
    waiving = waive(run, verdicts, manifest.ignored)
    conclusion = conclude(run, waiving.verdicts, waiving.waived)
    report = compose(run, waiving, conclusion, manifest, kept)
    if report.verdict != "sick":
        report.hints = _hints(run, report)
    return Judgement(run, report)


def _hints(run: Run, report: Report) -> list[HintData]:
    """Where to look by the text alone, where nothing that happened tells that."""
    told = [*report.findings, *(one.finding for one in report.ignored)]
    try:
        found = hints_of(run.sources, [one.code for one in told])
    except Exception:  # noqa: BLE001 - a hint is worth no report
        return []
    for hint in found:
        hint.what = masked_text(hint.what)
    return found


@contextmanager
def without_collection() -> Iterator[None]:
    """Without Python's garbage collector, where it looks at much and finds nothing.

    Checks make next to no cycles of objects, and a run of 16,384 ranks has a million
    events, all of which each full collection looks at; modules that are loaded are no
    garbage, either.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            if not gc.get_freeze_count():
                # What was made in between counts as old: the first collection need
                # not look at all of it.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
