"""Examines the record of a test's ranks, and adds findings to its outcome."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from distdoctor.errors import DistdoctorError, JournalUnreadable
from distdoctor.journal.assembly import assemble
from distdoctor.journal.event_text import kind_of
from distdoctor.journal.format import RecordKind
from distdoctor.journal.layout import EXITS_FILE
from distdoctor.journal.private_files import append_line, make_private_folder
from distdoctor.journal.reader import JournalReader
from distdoctor.judging import Judgement, judge, judge_run
from distdoctor.launch.watchdog import Watchdog
from distdoctor.pytest_plugin.outcome import Outcome
from distdoctor.report.schema import FindingData

_JOINING = {int(kind) for kind in (RecordKind.LIFE, RecordKind.ENTER, RecordKind.WOKE)}
_COMING_AND_GOING = {"Started", "Left"}


def judge_now(watchdog: Watchdog) -> Judgement:
    """Examine what is recorded so far, without stacks and sources; it is fast."""
    run = assemble(watchdog.folder, watchdog.manifest, stacks=False)
    return judge_run(run, watchdog.manifest)


def judge_test(
    watchdog: Watchdog,
    outcome: Outcome,
    exits: Mapping[int, int],
    ignore: frozenset[str],
    keep: Path,
) -> None:
    """Put the findings into the outcome; keep the record if it is of use.

    Args:
        watchdog: The watch over the ranks, all of which are through.
        outcome: Outcome of the test.
        exits: Status of the processes that died in it, by number.
        ignore: Codes of findings that do not fail it.
        keep: Where the record goes if it is kept; the folder is made.
    """
    try:
        if not outcome.is_bad:
            if _is_uneventful(watchdog.folder):
                return
            watchdog.manifest.alive = []
            judgement = judge_now(watchdog)
            outcome.findings = _culpable(judgement, ignore)
            outcome.judgement = judgement
            if not outcome.findings:
                return
        _write_exits(watchdog.folder, exits)
        watchdog.conclude()
        keep.parent.parent.mkdir(parents=True, exist_ok=True)
        make_private_folder(keep.parent, below=0)
        shutil.move(watchdog.folder, keep)
        outcome.record = keep
        outcome.judgement = judge(keep, str(keep))
        outcome.findings = _culpable(outcome.judgement, ignore)
        if not (outcome.findings or outcome.stopped or outcome.died):
            shutil.rmtree(keep)  # an assertion: it says all there is to say
            outcome.record = None
    except (DistdoctorError, OSError) as error:
        outcome.remark = (
            f"{outcome.remark}\ndistdoctor could not judge it: {error}".strip()
        )
    finally:
        shutil.rmtree(watchdog.folder, ignore_errors=True)


def _culpable(judgement: Judgement, ignore: frozenset[str]) -> Sequence[FindingData]:
    return [
        finding
        for finding in judgement.report.findings
        if finding.severity == "error" and finding.code not in ignore
    ]


def _write_exits(folder: Path, exits: Mapping[int, int]) -> None:
    for pid, status in exits.items():
        append_line(folder / EXITS_FILE, json.dumps({"pid": pid, "status": status}))


def _is_uneventful(folder: Path) -> bool:
    """Whether the ranks did nothing but join and leave: then there is no question.

    To put a run together and to ask every check takes 10 ms (measured).
    """
    for path in folder.glob("*.journal"):
        with suppress(JournalUnreadable):
            reader = JournalReader(path)
            records = reader.last()
            kinds = set(records["kind"].tolist())
            made = records["kind"] == RecordKind.ENTER
            life = records["spec"][records["kind"] == RecordKind.LIFE].tolist()
            notes = (kind_of(reader.string(number)) for number in life)
            if (
                kinds <= _JOINING
                and made.sum() <= 1
                and not reader.header().lost
                and not reader.header().steps
                and set(notes) <= _COMING_AND_GOING
            ):
                continue
        return False
    return True
