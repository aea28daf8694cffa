"""Probes that go wrong on one rank: what is made of it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.catalogue import every_check
from distdoctor.examination.concluding import conclude
from distdoctor.examination.examining import examine
from distdoctor.journal.assembly import assemble
from distdoctor.journal.environment import OWNER_VARIABLE, SIZE_VARIABLE
from distdoctor.journal.folder import Manifest
from distdoctor.journal.format import RecordKind
from distdoctor.journal.packed_texts import group_text
from distdoctor.journal.reader import JournalReader
from distdoctor.journal.writer import JournalWriter
from distdoctor.model.drawing import sketch
from distdoctor.model.findings import Certainty, Severity, Sick
from distdoctor.model.operations import CODE_OF, NOT_SEEN
from distdoctor.model.run import Run
from distdoctor.probes.recorder import Recorder

PARTING = """
    rank 0 | start=3  all_reduce(4)@t.py:2      barrier@t.py:3  exit=0
    rank 1 | start=3  reduce(4)@t.py:4          barrier@t.py:3  exit=0
    rank 2 | start=3  all_reduce(4)@t.py:2      barrier@t.py:3  exit=0
"""


def unread(run: Run, rank: int, call: int) -> Run:
    """The run, with one rank's call counted and not read."""
    calls = run.calls.copy()
    row = run.rows_of(rank)[call]
    calls["signature"][row] = NOT_SEEN
    calls["site"][row] = calls["spec"][row] = 0
    return replace(run, calls=calls)


def test_a_call_that_was_not_read_agrees_with_any() -> None:
    run = sketch(PARTING)
    assert divergences(run)
    (parting,) = np.flatnonzero(run.calls["op"][run.rows_of(1)] == CODE_OF["reduce"])
    assert divergences(unread(run, 1, int(parting))) == []


@pytest.mark.parametrize("rank", [0, 2])
def test_the_others_are_compared_all_the_same(rank: int) -> None:
    run = sketch(PARTING)
    (parting,) = np.flatnonzero(run.calls["op"][run.rows_of(1)] == CODE_OF["reduce"])
    assert divergences(unread(run, rank, int(parting)))


def verdicts_of(run: Run) -> tuple[str, list[tuple[str, Severity, Certainty]]]:
    verdicts = examine(run, every_check())
    findings = [
        (sick.code, sick.severity_of(finding), finding.certainty)
        for sick in verdicts
        if isinstance(sick, Sick)
        for finding in sick.findings
    ]
    return conclude(run, verdicts).verdict, findings


def test_what_is_found_where_a_probe_went_wrong_is_advice() -> None:
    run = sketch(PARTING)
    assert verdicts_of(run) == ("sick", [("DD101", Severity.ERROR, Certainty.PROVED)])
    faltered = replace(run, faltered={1}, partial={1: "1 event was lost"})
    assert verdicts_of(faltered) == (
        "unknown",
        [("DD101", Severity.WARNING, Certainty.LIKELY)],
    )


def test_a_finding_that_is_doubted_says_why() -> None:
    run = replace(sketch(PARTING), faltered={1})
    (found,) = [one for one in examine(run, every_check()) if isinstance(one, Sick)]
    message = found.findings[0].message
    assert message.endswith(
        "root=0) (a probe of rank 1 failed in this run; it may only look so)"
    )


def test_a_job_that_stood_still_for_its_calls_is_sick_all_the_same() -> None:
    run = replace(sketch(PARTING), faltered={1}, stopped="refused")
    assert verdicts_of(run) == ("sick", [("DD101", Severity.ERROR, Certainty.PROVED)])


def test_a_rank_that_counted_a_call_too_few_is_read_as_unseen(tmp_path: Path) -> None:
    group = group_text("0", "default_pg", 0, (0, 1))
    for rank, ops in enumerate((["all_reduce", "barrier"], ["barrier"])):
        pen = JournalWriter(tmp_path, rank, 2, 64 * 1024)
        for n, op in enumerate(ops, start=1):
            number = pen.intern(group)
            pen.put(RecordKind.ENTER, 1, n, n, number, CODE_OF[op] + 1, CODE_OF[op])
    manifest = Manifest(distdoctor="0.1.0", launch=[], directory="/job")
    assert divergences(assemble(tmp_path, manifest))
    pen.go_blind()
    run = assemble(tmp_path, manifest)
    assert "probes failed" in run.unseen[1]
    assert divergences(run) == []


def test_the_last_process_of_a_rank_is_the_one_that_counts(tmp_path: Path) -> None:
    first = JournalWriter(tmp_path, 0, 1, 64 * 1024)
    second = JournalWriter(tmp_path, 0, 1, 64 * 1024)
    manifest = Manifest(distdoctor="0.1.0", launch=[], directory="/job")
    first.go_blind()
    assert assemble(tmp_path, manifest).unseen == {}
    second.go_blind()
    assert "probes failed" in assemble(tmp_path, manifest).unseen[0]


def test_who_was_blind_before_it_had_a_journal_is_so_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OWNER_VARIABLE, "")  # which opening a journal sets
    monkeypatch.setenv(SIZE_VARIABLE, str(64 * 1024))
    monkeypatch.setattr(Recorder, "_offer_stacks", lambda _: None)
    pen = Recorder()
    pen.folder, pen.blind = tmp_path, True
    writer = pen.open(0, 2)
    assert writer is not None
    assert JournalReader(writer.path).header().blind == 1
