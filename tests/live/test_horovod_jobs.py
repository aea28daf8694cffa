"""Jobs that Horovod's or MPI's launcher starts: each has the answer that it says."""

from pathlib import Path

import pytest
from by_rule.running import Runner
from launchers import skip_where_it_cannot_run
from programs import Program, programs
from real_runs import check_program, findings_of, is_near, named_lines

JOBS = programs("horovod")


def each(jobs: list[Program]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("job", jobs, ids=lambda one: one.name)


@each([job for job in JOBS if job.has_twin])
def test_a_fault_is_found_and_nothing_else(
    job: Program, forked: Runner, tmp_path: Path
) -> None:
    skip_where_it_cannot_run(job.path)
    status, report, output = check_program(forked, tmp_path, job, "sick")
    assert (status, report["verdict"]) == (job.status, job.verdict), output
    if job.error:
        assert job.error in {one["error"] for one in report["raised"]}
    found = findings_of(report)
    assert [one["code"] for one in found] == list(job.findings), output
    for finding in found:
        assert finding["severity"] == job.severity
        assert finding["ranks"] == list(job.culprits), finding["summary"]
        named, lines = named_lines(finding), job.lines_of(finding["code"])
        assert is_near(named, lines), (named, lines)


@each([job for job in JOBS if job.has_twin])
def test_mended_it_is_well(job: Program, forked: Runner, tmp_path: Path) -> None:
    assert_well(job, forked, tmp_path, "well")


@each([job for job in JOBS if not job.has_twin])
def test_what_looks_like_a_fault_is_well(
    job: Program, forked: Runner, tmp_path: Path
) -> None:
    assert_well(job, forked, tmp_path)


def assert_well(job: Program, runner: Runner, folder: Path, *state: str) -> None:
    skip_where_it_cannot_run(job.path)
    status, report, output = check_program(runner, folder, job, *state)
    verdict, findings = report["verdict"], findings_of(report)
    assert (status, verdict, findings) == (0, "well", []), output
