"""What looks like a disease and is none: nothing is found, not even advice."""

from pathlib import Path

import pytest
from by_rule.running import Runner
from launchers import skip_where_it_cannot_run
from programs import Program, programs
from real_runs import check_program, findings_of


@pytest.mark.parametrize("job", programs("near_misses"), ids=lambda one: one.name)
def test_a_near_miss_is_well(job: Program, forked: Runner, tmp_path: Path) -> None:
    skip_where_it_cannot_run(job.path)
    status, report, output = check_program(forked, tmp_path, job)
    verdict, findings = report["verdict"], findings_of(report)
    assert (status, verdict, findings) == (0, "well", []), output
