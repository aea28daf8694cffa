"""Jobs that stand still: never well, and told where it can be proved."""

from pathlib import Path

import pytest
from by_rule.running import Runner
from programs import Program, programs
from real_runs import check_program


@pytest.mark.parametrize("job", programs("standing"), ids=lambda one: one.name)
def test_a_job_that_stands_still_is_not_well(
    job: Program, forked: Runner, tmp_path: Path
) -> None:
    # What is proved ends the run; the rest takes all of it, from the ranks' start on.
    budget = "240" if job.verdict == "sick" else "30"
    options = ["--budget", budget, "--no-second-look"]
    status, report, output = check_program(forked, tmp_path, job, options=options)
    assert report["verdict"] == job.verdict, output
    assert status == job.status, output
    errors = [one for one in report["findings"] if one["severity"] == "error"]
    assert [one["code"] for one in errors] == list(job.findings), output
    if job.verdict == "unknown":
        assert report["run"]["stopped"] == "budget"
        assert job.path.name in output  # where it stands
    for finding in errors:
        assert finding["ranks"] == list(job.culprits), finding["summary"]
