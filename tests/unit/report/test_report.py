"""Reports: what a reader and a machine get to see."""

from __future__ import annotations

import json
from dataclasses import replace

import jsonschema
import pytest
from drawn_reports import SICK, WELL

from distdoctor.catalogue import every_check
from distdoctor.examination.concluding import conclude
from distdoctor.examination.examining import examine
from distdoctor.examination.waivers import Waiving
from distdoctor.journal.folder import Manifest
from distdoctor.model.drawing import sketch
from distdoctor.model.run import Run
from distdoctor.report import json as json_report
from distdoctor.report import text as text_report
from distdoctor.report.compose import compose
from distdoctor.report.schema import SCHEMA, Report, json_schema

SOURCE = "\n".join(f"line_{n}()" for n in range(1, 30))


def report_of(run: Run, script: str = "train.py") -> Report:
    verdicts = examine(run, every_check())
    manifest = Manifest(
        distdoctor="0.1.0", launch=["torchrun", script], script=script, directory="/job"
    )
    return compose(run, Waiving(verdicts), conclude(run, verdicts), manifest)


def text_of(run: Run, script: str = "train.py") -> str:
    return text_report.render(report_of(run, script), run)


def sick() -> Run:
    return replace(sketch(SICK), sources={"train.py": SOURCE}, stopped="refused")


def test_the_json_report_keeps_its_schema() -> None:
    for run in (sick(), sketch(WELL), sketch("rank 0 | ?\nrank 1 | ?")):
        report = json.loads(json_report.render(report_of(run), run))
        jsonschema.validate(report, json_schema())
        assert report["schema"] == SCHEMA


def test_a_sick_run_reads_verdict_rank_line_and_cure() -> None:
    text = text_of(sick())
    assert "SICK   DD108 skipped collective" in text
    assert "ranks {0-1,3}" in text
    assert "▸   12 │ line_12()" in text
    assert "\ncure   " in text
    assert "distdoctor explain DD108" in " ".join(text.split())
    assert text.rstrip().splitlines()[-1].startswith("verdict: sick · 1 error")
    assert max(map(len, text.splitlines())) <= 80


def test_it_is_told_since_when_ranks_wait() -> None:
    run = sketch("""
        rank 0 | barrier+10ms  all_reduce(4)@train.py:7...+2050ms
        rank 1 | barrier+12ms  all_reduce(4)@train.py:7...+2060ms
        rank 2 | barrier+11ms  exit=0
    """)
    (finding,) = report_of(run).findings
    (waiting,) = finding.details["waiting"]
    assert (waiting["ranks"], waiting["at"]) == ([0, 1], "train.py:7")
    assert "seconds after the first call: ranks {0-1} from 2.0\n" in text_of(run)


def test_ranks_that_stand_since_the_same_moment_are_told_together() -> None:
    text = text_of(
        sketch("""
        rank 0 | barrier+10ms  all_reduce(4)@train.py:7!+2050ms
        rank 1 | barrier+12ms  barrier@train.py:9!+2060ms
        """)
    )
    assert "after the first call: ranks {0-1} from 2.0\n" in text


def test_a_healthy_run_is_told_in_three_lines() -> None:
    text = text_of(sketch(WELL))
    assert len(text.splitlines()) <= 3
    assert "checks found nothing" in text


def test_what_only_gpus_show_is_told_and_leaves_a_job_well() -> None:
    run = replace(
        sketch(WELL), substituted=("batch-norm", "nccl", "of a later release")
    )
    report = report_of(run)
    assert report.verdict == "well"
    (gap,) = report.not_examined
    assert (gap.what, gap.why) == ("what only GPUs show", "NCCL's own behaviour")
    assert [one.what for one in report.substituted] == [
        "NCCL",
        "SyncBatchNorm's kernels",
    ]
    text = " ".join(text_of(run).split())
    assert (
        "substituted gloo for NCCL; the same formulas for SyncBatchNorm's kernels"
        in text
    )
    nothing_hidden = replace(sketch(WELL), substituted=("properties",))
    assert report_of(nothing_hidden).not_examined == []


def test_what_was_not_seen_makes_the_verdict_unknown() -> None:
    report = report_of(sketch("rank 0 | start=2  all_reduce(4)  exit=0\nrank 1 | ?"))
    assert report.verdict == "unknown"
    assert [gap.what for gap in report.not_examined] == ["rank 1"]


def test_control_characters_of_the_job_do_not_reach_the_terminal() -> None:
    text = text_of(sketch(WELL), script="evil\x1b]0;owned\x07.py")
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\\x1b" in text


@pytest.mark.parametrize(
    ("wrapped", "verdict"), [("wrap=ddp:w", "unknown"), ("", "well")]
)
def test_a_budget_that_ends_before_the_first_step_shows_no_training(
    wrapped: str, verdict: str
) -> None:
    rank = f"start=2  {wrapped}  all_reduce(4)"
    run = sketch(f"rank 0 | {rank}\nrank 1 | {rank}")
    report = report_of(replace(run, stopped="budget"))
    assert report.verdict == verdict
    assert ("larger --budget" in report.not_examined[-1].why) is bool(wrapped)


SHORTENED = """
    rank 0 | start=2  batches=90@t.py:5  shortened=4:1000@t.py:5  batches=4@t.py:5
    rank 1 | start=2  batches=90@t.py:5  shortened=4:1000@t.py:5  batches=4@t.py:5
"""


def with_calls(drawing: str) -> Run:
    lines = [line for line in drawing.splitlines() if line.strip()]
    return sketch("\n".join(f"{line}  all_reduce(4)  leave  exit=0" for line in lines))


def test_shortened_epochs_are_told_and_do_no_harm() -> None:
    report = report_of(with_calls(SHORTENED))
    assert report.verdict == "well"
    (gap,) = report.not_examined
    assert gap.what == "what takes many batches"
    assert gap.why == (
        "epochs were shortened so that the job ends within --budget: the loader at "
        "t.py:5 gave 4 of 1,000 batches in 1 of 2 passes; --full leaves nothing out"
    )


def test_passes_of_several_lengths_are_told_as_a_range() -> None:
    rank = (
        "start=1  shortened=64:1000@t.py:5  batches=64@t.py:5  "
        "shortened=4:1000@t.py:5  batches=4@t.py:5  batches=4@t.py:5"
    )
    (gap, _) = report_of(with_calls(f"rank 0 | {rank}")).not_examined[::-1]
    assert "gave 4 to 64 of 1,000 batches in 3 of 3 passes" in gap.why


def test_a_stream_that_was_ended_hides_where_it_ends() -> None:
    rank = "start=2  shortened=8:@t.py:5"
    report = report_of(with_calls(f"rank 0 | {rank}\nrank 1 | {rank}"))
    (gap,) = report.not_examined
    assert gap.what.endswith("where each rank's stream of data ends")
    assert "the loader at t.py:5 gave 8 batches in 0 of 0 passes" in gap.why


def test_many_shortened_loaders_are_not_all_listed() -> None:
    words = "  ".join(f"shortened=4:100@t.py:{n}" for n in range(1, 6))
    rank = f"start=2  {words}"
    report = report_of(with_calls(f"rank 0 | {rank}\nrank 1 | {rank}"))
    assert "2 others likewise" in report.not_examined[0].why


RAISED = """
    rank 0 | start=2  all_reduce(4)@train.py:7  fail=ValueError@train.py:9  exit=1
    rank 1 | start=2  all_reduce(4)@train.py:7  fail=ValueError@train.py:9  exit=1
    the command left with 1
"""


def test_what_ended_the_job_stands_above_all_else() -> None:
    run = replace(sketch(RAISED), sources={"train.py": SOURCE})
    report = report_of(run)
    report.run.exit_code = run.exit_code
    text = text_report.render(report, run)
    head, _, first, *_ = text.splitlines()
    assert head.endswith("exit code 1")
    assert first.split() == ["FAILED", "ValueError"]
    assert text.index("9 │ line_9()") < text.index("not examined")
    assert "nothing wrong was found" not in text


def test_what_ended_the_job_is_told_to_machines() -> None:
    run = sketch(RAISED)
    (raised,) = json.loads(json_report.render(report_of(run), run))["raised"]
    assert (raised["error"], raised["ranks"]) == ("ValueError", [0, 1])
    assert (raised["location"]["file"], raised["location"]["line"]) == ("train.py", 9)
