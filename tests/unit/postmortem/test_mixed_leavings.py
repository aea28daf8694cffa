"""Files of several kinds that one job left, read together."""

import bz2
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from autopsies import findings_in, report_on
from mixed_leavings import (
    GPU_ERROR,
    IB_ERROR,
    WORLD,
    kernel_killed,
    killed,
    lost_peers,
    marked,
    nccl_log,
    raised_key_error,
    steps_of,
    watchdogs,
    write_dumps,
    write_stacks,
)
from recorder_dumps import Job, Simulation, Step, Style, all_reduce, dumps, write
from stack_dumps import py_spy_text

from distdoctor.judging import judge_run
from distdoctor.postmortem.evidence_run import manifest_of, run_of
from distdoctor.postmortem.recognising import gather
from distdoctor.report.schema import Report
from distdoctor.report.text import render


def killed_for_memory(folder: Path) -> None:
    write_dumps(folder / "deep" / "fr", die=7)
    write_stacks(folder / "stacks", 7)
    output = steps_of() + lost_peers(0, 1, 2) + killed(7, 24065)
    (folder / "job.out.gz").write_bytes(gzip.compress(output.encode()))
    (folder / "dmesg.txt").write_text(kernel_killed(24065))
    (folder / "model.py").write_text("import torch\n")


def raised(folder: Path) -> None:
    write_dumps(folder / "fr", die=3)
    (folder / "job.out").write_text(
        steps_of() + raised_key_error(3) + lost_peers(0, 1, 2)
    )


def raised_after_its_dump(folder: Path) -> None:
    write_dumps(folder / "fr", stop=3)
    write_stacks(folder / "stacks")
    others = [rank for rank in range(WORLD) if rank != 3]
    output = steps_of() + raised_key_error(3) + watchdogs(*others)
    (folder / "job.out").write_text(output)


def stuck(folder: Path) -> None:
    write_dumps(folder / "fr", stop=5)
    write_stacks(folder / "stacks", stuck=5)
    for path in (folder / "stacks").iterdir():
        packed = path.with_name(f"{path.name}.bz2")
        packed.write_bytes(bz2.compress(path.read_bytes()))
        path.unlink()


def stuck_without_a_dump(folder: Path) -> None:
    write_dumps(folder / "fr", die=5)
    write_stacks(folder / "stacks", stuck=5)


def stuck_until_the_timeout(folder: Path) -> None:
    write_dumps(folder / "fr", stop=5)
    write_stacks(folder / "stacks", stuck=5)
    others = [rank for rank in range(WORLD) if rank != 5]
    (folder / "job.out").write_text(steps_of() + watchdogs(*others))


def gone_without_a_word(folder: Path) -> None:
    write_dumps(folder / "fr", die=5)
    (folder / "job.out").write_text(steps_of() + lost_peers(0))


@pytest.mark.parametrize(
    ("write", "code", "culprit", "evidence"),
    [
        (killed_for_memory, "DD202", 7, ["dump", "log", "stack"]),
        (raised, "DD202", 3, ["dump", "log"]),
        (raised_after_its_dump, "DD202", 3, ["dump", "log", "stack"]),
        (stuck, "DD204", 5, ["dump", "stack"]),
        (stuck_without_a_dump, "DD204", 5, ["dump", "stack"]),
        (stuck_until_the_timeout, "DD204", 5, ["dump", "log", "stack"]),
        (gone_without_a_word, "DD202", 5, ["dump", "log"]),
    ],
)
def test_all_kinds_of_files_tell_one_finding(
    write: Callable[[Path], None],
    code: str,
    culprit: int,
    evidence: list[str],
    tmp_path: Path,
) -> None:
    write(tmp_path)
    report = report_on(tmp_path)
    assert findings_in(report) == [(code, (culprit,))]
    (finding,) = report.findings
    assert finding.evidence == evidence
    assert [one.evidence for one in finding.told_by] == evidence
    assert all(one.files and one.what for one in finding.told_by)
    assert "all_reduce" in finding.summary


def test_the_network_is_the_cause_of_timeouts(tmp_path: Path) -> None:
    write_dumps(tmp_path / "fr")
    (tmp_path / "job.out").write_text(steps_of() + watchdogs(*range(WORLD)))
    (tmp_path / "h0.log").write_text(nccl_log(0, range(4)))
    (tmp_path / "h1.log").write_text(nccl_log(1, range(4, WORLD), fault=IB_ERROR))
    report = report_on(tmp_path)
    assert findings_in(report) == [("DD605", (0, 1, 2, 3))]
    assert [one.code for one in report.findings[0].consequences] == ["DD609"]


def test_an_error_of_its_gpu_tells_why_a_rank_left_no_dump(tmp_path: Path) -> None:
    write_dumps(tmp_path / "fr", die=7)
    (tmp_path / "h0.log").write_text(nccl_log(0, range(7)))
    (tmp_path / "h1.log").write_text(nccl_log(1, range(7, WORLD), fault=GPU_ERROR))
    report = report_on(tmp_path)
    assert findings_in(report) == [("DD606", (7,))]
    assert [one.code for one in report.findings[0].consequences] == ["DD202"]


def test_dumps_alone_do_not_tell_late_from_stuck(tmp_path: Path) -> None:
    write_dumps(tmp_path, stop=5)
    report = report_on(tmp_path)
    assert (report.verdict, report.findings) == ("unknown", [])


def test_a_rank_at_work_may_only_be_late(tmp_path: Path) -> None:
    write_dumps(tmp_path / "fr", stop=5)
    write_stacks(tmp_path / "stacks", stuck=5)
    path = tmp_path / "stacks" / "rank5.txt"
    path.write_text(path.read_text().replace("4005 (idle)", "4005 (active)"))
    report = report_on(tmp_path)
    assert (report.verdict, report.findings) == ("unknown", [])


def test_a_rank_that_saves_a_checkpoint_may_only_be_late(tmp_path: Path) -> None:
    write_dumps(tmp_path / "fr", stop=5)
    write_stacks(tmp_path / "stacks", stuck=5)
    path = tmp_path / "stacks" / "rank5.txt"
    path.write_text(
        path.read_text().replace(
            "    read_shard", "    save (torch/serialization.py:850)\n    read_shard"
        )
    )
    report = report_on(tmp_path)
    assert (report.verdict, report.findings) == ("unknown", [])


def test_a_healthy_job_is_not_accused(tmp_path: Path) -> None:
    write_dumps(tmp_path / "fr")
    write_stacks(tmp_path / "stacks")
    (tmp_path / "job.out").write_text(steps_of() + "done\n")
    (tmp_path / "nccl.log").write_text(nccl_log(0, range(WORLD)))
    report = report_on(tmp_path)
    assert (report.verdict, report.findings) == ("unknown", [])


# --- files of two jobs ---


def test_stacks_of_more_ranks_are_of_another_job(tmp_path: Path) -> None:
    write_dumps(tmp_path / "fr", stop=5)
    write_stacks(tmp_path / "stacks", 16, stuck=12)
    report = report_on(tmp_path)
    assert (report.world_size, report.findings) == (WORLD, [])
    assert any("another job" in gap.why for gap in report.not_examined)


def test_stacks_of_another_script_are_of_another_job(tmp_path: Path) -> None:
    write_dumps(tmp_path / "fr", stop=5, script="pretrain.py")
    write_stacks(tmp_path / "stacks", stuck=5)
    report = report_on(tmp_path)
    assert report.findings == []
    assert any("another job" in gap.why for gap in report.not_examined)


def test_output_of_more_ranks_is_of_another_job(tmp_path: Path) -> None:
    write_dumps(tmp_path / "fr", stop=5)
    output = "".join(marked(rank, "step 1") for rank in range(16))
    (tmp_path / "job.out").write_text(output + raised_key_error(12) + lost_peers(0, 1))
    report = report_on(tmp_path)
    assert (report.findings, report.raised) == ([], [])
    assert any("another job" in gap.why for gap in report.not_examined)


def test_of_the_output_of_several_jobs_the_last_counts(tmp_path: Path) -> None:
    early = steps_of() + raised_key_error(1) + lost_peers(0, 2)
    late = steps_of() + raised_key_error(3) + lost_peers(0, 1, 2)
    (tmp_path / "slurm-77.out").write_text(early)
    (tmp_path / "slurm-102.out").write_text(late)
    report = report_on(tmp_path)
    assert findings_in(report) == [("DD202", (3,))]
    assert any("job 102 is later" in gap.why for gap in report.not_examined)


def test_an_exception_of_a_rank_that_nobody_waits_for_is_not_the_cause(
    tmp_path: Path,
) -> None:
    write_dumps(tmp_path / "fr", stop=5)
    (tmp_path / "job.out").write_text(raised_key_error(3) + lost_peers(0, 1))
    report = report_on(tmp_path)
    assert ("DD202", (3,)) not in findings_in(report)


# --- what was found ---


def test_what_was_found_is_listed_by_rank(tmp_path: Path) -> None:
    killed_for_memory(tmp_path)
    (tmp_path / "deep" / "fr" / "nccl_trace_rank_6").write_bytes(b"\x80broken")
    report = report_on(tmp_path)
    reported = [(one.ranks, one.evidence) for one in report.evidence_of_ranks]
    assert ([*range(6)], ["dump", "log", "stack"]) in reported
    assert ([7], ["log"]) in reported
    states = {Path(one.path).name: one.state for one in report.files}
    assert states["model.py"] == "left out"
    assert states["nccl_trace_rank_6"] == "unreadable"
    assert states["nccl_trace_rank_0"] == "read"
    assert all(one.why for one in report.files if one.state != "read")
    assert json.loads(msgspec.json.encode(report))["evidence_of_ranks"]
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


def test_the_text_says_which_file_told_what(tmp_path: Path) -> None:
    raised(tmp_path)
    evidence = gather([str(tmp_path)])
    run = run_of(evidence)
    judged = judge_run(run, manifest_of(evidence, [str(tmp_path)], "/"))
    text = render(judged.report, run, width=200)
    assert "there is none of rank 3 (fr/nccl_trace_rank_0, fr/nccl_trace_rank_1" in text
    assert "rank 3 raised KeyError" in text
    assert "/job.out)" in text
    assert "evidence  ranks {0-2,4-7}: dump, log; rank 3: log" in text


def test_a_file_that_two_readers_leave_out_is_listed_once(tmp_path: Path) -> None:
    write_dumps(tmp_path / "fr", stop=5, script="other.py")
    write_stacks(tmp_path / "stacks")
    left_out = [path for path, _ in gather([str(tmp_path)]).left_out]
    assert len(left_out) == len(set(left_out)) == WORLD


def test_stacks_that_are_only_counted_make_no_further_ranks(tmp_path: Path) -> None:
    style = Style(backend="gloo", prefix="fr_rank_")
    job = Job(
        2, {"0": (0, 1)}, {rank: [all_reduce(4), Step("wait")] for rank in (0, 1)}
    )
    write(tmp_path / "fr", dumps(job, Simulation(job), style), style)
    for number in range(6):
        (tmp_path / f"stack{number}.txt").write_text(py_spy_text(number))
    evidence = gather([str(tmp_path)])
    assert (evidence.world_size, evidence.stacks) == (2, {})
    assert any("name no rank" in one for one in evidence.remarks)
