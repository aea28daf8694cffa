"""Dumps as columns: the verdict is that of the dumps, whatever is left out of them."""

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorder_dumps import JOBS, Simulation, Step, Style, all_reduce, dumps, write
from recorder_faults import FAULTS, Fault

from distdoctor.cli import app
from distdoctor.errors import LeavingsMissing
from distdoctor.judging import judge_run
from distdoctor.postmortem.columns import column_reader, column_writing, window_queries
from distdoctor.postmortem.columns.column_writing import write_columns
from distdoctor.postmortem.evidence_run import manifest_of, run_of
from distdoctor.postmortem.job_evidence import Evidence
from distdoctor.postmortem.leavings import find
from distdoctor.postmortem.recognising import gather
from distdoctor.report.schema import Report

duckdb = pytest.importorskip("duckdb")

STYLES = (
    Style(),
    Style(ring=150),
    Style(version="2.4", timing=True, frames=False),
    Style(as_json=True),
    Style(active_only=True),
)


@pytest.fixture(autouse=True)
def scratch(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Nothing may be left in the folder for temporary files."""
    folder = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert list(folder.iterdir()) == []


def report_of(evidence: Evidence) -> Report:
    return judge_run(run_of(evidence), manifest_of(evidence, [], "/")).report


def stated(report: Report) -> object:
    """All that a report says but for the files."""
    findings = [
        (one.code, tuple(one.ranks), one.severity, one.certainty, one.summary)
        for one in report.findings
    ]
    gaps = [(gap.what, gap.why) for gap in report.not_examined]
    return report.verdict, findings, gaps


def from_columns(*folders: Path, most_whole: int = 0) -> Evidence:
    evidence = Evidence()
    files = list(find([str(folder) for folder in folders]))
    column_reader.read(files, evidence, most_whole)
    return evidence


def made(
    folder: Path, kind: str, fault: Fault | None, style: Style, seed: int = 3
) -> bool:
    """Write the dumps of a job, long enough that most of it can be left out."""
    job = JOBS[kind](8, 40)
    if fault is not None and fault(job, random.Random(seed)) is None:
        return False
    rounds = 120 if fault is None else 0
    simulation = Simulation(job, seed, rounds)
    write(folder, dumps(job, simulation, style, at_once=fault is None), style)
    return True


@pytest.mark.parametrize(
    "fault", [*FAULTS, None], ids=lambda one: getattr(one, "__name__", "running")
)
def test_the_verdict_is_that_of_the_dumps(fault: Fault | None, tmp_path: Path) -> None:
    at = [*FAULTS, None].index(fault)
    kinds = ["ddp" if at % 2 else "mesh", "pipeline", list(JOBS)[at % len(JOBS)]]
    for n, kind in enumerate(dict.fromkeys(kinds)):
        style = STYLES[(n + at) % 4] if n else STYLES[0]
        folder, columns = tmp_path / kind, tmp_path / f"{kind}-columns"
        if not made(folder, kind, fault, style):
            continue
        directly = gather([str(folder)])
        assert write_columns([str(folder)], columns).failed == []
        evidence = from_columns(columns)
        assert evidence.unreadable == []
        assert stated(report_of(evidence)) == stated(report_of(directly)), (kind, style)


def test_most_calls_are_left_out(tmp_path: Path) -> None:
    folder, columns = tmp_path / "job", tmp_path / "columns"
    made(folder, "pipeline", FAULTS[-1], Style())
    write_columns([str(folder)], columns)
    evidence = from_columns(columns)
    kept = len(evidence.columns.calls)
    assert 0 < 3 * kept < len(gather([str(folder)]).columns.calls)
    assert any(f", {kept:,} were looked at" in remark for remark in evidence.remarks)


def test_parts_of_several_machines_are_one_job(tmp_path: Path) -> None:
    folder, columns = tmp_path / "job", tmp_path / "columns"
    made(folder, "mesh", FAULTS[1], Style())
    files = sorted(map(str, folder.iterdir()))
    for some in (files[5:], files[:2], files[2:5], files[:2]):  # the last once more
        write_columns(some, columns)
    assert len(list(columns.glob("calls-*.parquet"))) == 3
    assert stated(report_of(from_columns(columns))) == stated(
        report_of(gather([str(folder)]))
    )


def test_few_calls_are_looked_at_without_a_choice(tmp_path: Path) -> None:
    folder, columns = tmp_path / "job", tmp_path / "columns"
    made(folder, "ddp", FAULTS[1], Style())
    write_columns([str(folder)], columns)
    evidence = gather([str(columns)])
    assert len(evidence.columns.calls) == len(gather([str(folder)]).columns.calls)
    assert not any("one by one" in remark for remark in evidence.remarks)


def test_lines_that_differ_on_purpose_do_not_keep_all_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = JOBS["ddp"](6, 60)
    for steps in (job.steps[2], job.steps[4]):
        steps[:] = [
            all_reduce(step.sizes[0][0][0], line=("other", 7))
            if step.sizes[0]
            else step
            for step in steps
        ]
    job.steps[5].append(Step("stop"))
    del job.steps[5][-40:-1]
    folder, columns = tmp_path / "job", tmp_path / "columns"
    write(folder, dumps(job, Simulation(job, 1), Style()), Style())
    write_columns([str(folder)], columns)
    monkeypatch.setattr(window_queries, "MOST_KEPT", 500)
    evidence = from_columns(columns)
    assert len(evidence.columns.calls) < 500
    assert any("lines were not compared" in remark for remark in evidence.remarks)
    direct, report = report_of(gather([str(folder)])), report_of(evidence)
    assert report.verdict == direct.verdict
    assert [gap.what for gap in report.not_examined] == [
        gap.what for gap in direct.not_examined
    ]


def test_too_much_is_said_and_nobody_is_accused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, columns = tmp_path / "job", tmp_path / "columns"
    made(folder, "ddp", FAULTS[1], Style())
    write_columns([str(folder)], columns)
    monkeypatch.setattr(window_queries, "MOST_KEPT", 10)
    evidence = from_columns(columns)
    assert "are too many to be looked at here" in evidence.unreadable[0][1]
    assert report_of(evidence).verdict == "unknown"


def test_what_does_not_fit_in_memory_goes_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, columns = tmp_path / "job", tmp_path / "columns"
    made(folder, "mesh", FAULTS[1], Style())
    write_columns([str(folder)], columns)
    monkeypatch.setattr(column_reader, "MEMORY_MB", 64)
    assert report_of(from_columns(columns)).verdict == "sick"


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def _other_schema(path: Path) -> None:
    path.unlink()
    duckdb.sql("SELECT 1 AS a").write_parquet(str(path))


def _other_columns(path: Path) -> None:
    table, _, part = path.stem.partition("-")
    path.unlink()
    schema = "distdoctor.columns/1"
    duckdb.execute(
        f"COPY (SELECT 1 AS a) TO '{path}' (FORMAT parquet, KV_METADATA "
        f"{{distdoctor: '{schema}', part: '{part}', tab: '{table}'}})"
    )


@pytest.mark.parametrize("damage", [Path.unlink, _cut, _other_schema, _other_columns])
@pytest.mark.parametrize("table", ["calls", "files", "kinds"])
def test_a_damaged_part_is_listed(
    damage: Callable[[Path], Any], table: str, tmp_path: Path
) -> None:
    folder, columns = tmp_path / "job", tmp_path / "columns"
    made(folder, "ddp", FAULTS[1], Style())
    write_columns([str(folder)], columns)
    damage(next(columns.glob(f"{table}-*.parquet")))
    evidence = from_columns(columns)
    assert evidence.unreadable != []
    assert report_of(evidence).verdict == "unknown"


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_no_change_of_a_byte_raises(data: st.DataObject, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    if not folder.exists():
        made(folder, "pipeline", FAULTS[1], Style())
        write_columns([str(folder)], tmp_path / "columns")
    columns = tmp_path / "changed"
    columns.mkdir(exist_ok=True)
    files = sorted((tmp_path / "columns").iterdir())
    chosen = data.draw(st.sampled_from(files))
    for file in files:
        content = bytearray(file.read_bytes())
        if file == chosen:
            for _ in range(data.draw(st.integers(1, 4))):
                at = data.draw(st.integers(4, len(content) - 1))
                content[at] = data.draw(st.integers(0, 255))
        (columns / file.name).write_bytes(content)
    report_of(from_columns(columns))


def test_other_parquet_files_say_nothing_of_a_job(tmp_path: Path) -> None:
    duckdb.sql("SELECT 1 AS a").write_parquet(str(tmp_path / "tokens.parquet"))
    evidence = gather([str(tmp_path)])
    assert [why for _, why in evidence.left_out] == ["it is of no kind that is known"]
    assert evidence.unreadable == []


def test_the_commands(tmp_path: Path) -> None:
    folder, columns = tmp_path / "job", tmp_path / "columns"
    made(folder, "fsdp", FAULTS[1], Style())
    (folder / "notes.txt").write_text("nothing of a job")
    (folder / "comm_lib_trace_rank_99").write_bytes(b"\x80\x02broken")
    invoke = CliRunner().invoke
    done = invoke(app, ["columns", str(folder), "--into", str(columns)])
    assert done.exit_code == 4, done.output
    assert "8 dumps, " in done.output
    assert "comm_lib_trace_rank_99" in done.output
    by_columns = invoke(app, ["autopsy", str(columns)])
    assert by_columns.exit_code == 1, by_columns.output
    assert "DD103" in by_columns.output
    again = tmp_path / "again"
    at_once = invoke(app, ["autopsy", str(folder), "--columns", str(again)])
    assert at_once.exit_code == 1
    assert {file.name.partition("-")[0] for file in again.iterdir()} == {
        *("calls", "spans", "files", "kinds", "chains", "members")
    }
    empty = tmp_path / "empty"
    empty.mkdir()
    nothing = invoke(app, ["columns", str(empty), "--into", str(columns)])
    assert "no flight recorder dump was found there" in str(nothing.exception)


def test_without_duckdb_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    folder, columns = tmp_path / "job", tmp_path / "columns"
    made(folder, "ddp", FAULTS[1], Style())
    write_columns([str(folder)], columns)
    program = (
        "import sys; sys.modules['duckdb'] = None\n"
        "from distdoctor.cli import main; main()"
    )
    for arguments, status in (
        (["columns", str(folder), "--into", str(columns)], 2),
        (["autopsy", str(folder), "--columns", str(columns)], 2),
        (["autopsy", str(columns)], 4),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "TMPDIR": tempfile.gettempdir()},
        )
        assert done.returncode == status, done.stderr
        said = " ".join((done.stdout + done.stderr).split())
        assert "pip install 'distdoctor[big]'" in said


def test_dumps_that_are_written_again_with_others_count_once(tmp_path: Path) -> None:
    folder, columns = tmp_path / "job", tmp_path / "columns"
    made(folder, "pipeline", None, Style())
    everyone = sorted(folder.iterdir())
    write_columns([str(one) for one in everyone[:-1]], columns)
    once, twice = from_columns(columns), tmp_path / "twice"
    write_columns([str(folder)], twice)
    write_columns([str(folder)], columns)
    again = from_columns(columns)
    assert len(again.columns.calls) == len(from_columns(twice).columns.calls)
    assert len(once.columns.calls) < len(again.columns.calls)
    assert report_of(again).findings == report_of(from_columns(twice)).findings


def test_what_lay_in_the_folder_of_columns_is_not_judged(tmp_path: Path) -> None:
    columns = tmp_path / "job" / "columns"
    made(tmp_path / "other", "ddp", FAULTS[0], Style())
    write_columns([str(tmp_path / "other")], columns)
    made(tmp_path / "job", "pipeline", None, Style())
    directly = gather([str(tmp_path / "job")], columns=columns)
    assert report_of(directly).findings == []


def test_a_name_that_is_no_text_spoils_no_other_dump(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    made(folder, "ddp", None, Style())
    first = min(folder.iterdir())
    content = first.read_bytes()
    first.write_bytes(content.replace(b"all_reduce", b"all\xed\xa0\x80duce"))
    assert first.read_bytes() != content
    assert write_columns([str(folder)], tmp_path / "columns").failed == []
    ranks = from_columns(tmp_path / "columns").columns.calls["rank"]
    assert set(ranks.tolist()) > {1}


def test_a_folder_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / "job", "ddp", None, Style())

    def fails(*_: object) -> Path:
        raise duckdb.IOException("No space left on device")

    monkeypatch.setattr(column_writing, "write_table", fails)
    with pytest.raises(LeavingsMissing, match="No space left"):
        write_columns([str(tmp_path / "job")], tmp_path / "columns")
