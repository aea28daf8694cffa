"""Jobs that stand still: never well, and told where it can be proved; live."""

from pathlib import Path

import pytest
from real_runs import ROOT, check, constant

pytestmark = pytest.mark.live

PATIENTS = sorted((ROOT / "fixtures" / "standing").glob("*.py"))
EXIT = {"sick": 1, "unknown": 4}


@pytest.mark.parametrize("script", PATIENTS, ids=lambda path: path.stem)
def test_a_job_that_stands_still_is_not_well(script: Path, tmp_path: Path) -> None:
    ranks, verdict = str(constant(script, "RANKS")), constant(script, "VERDICT")
    # What is proved ends the run; the rest takes all of it, from the ranks' start on.
    budget = "240" if verdict == "sick" else "60"
    status, report, said = check(
        tmp_path, str(script), "-n", ranks, "--budget", budget, "--no-second-look"
    )
    assert report["verdict"] == verdict, said
    assert status == EXIT[verdict], said
    errors = [one for one in report["findings"] if one["severity"] == "error"]
    if verdict == "unknown":
        assert not errors
        assert script.name in said  # where it stands
        return
    assert [one["code"] for one in errors] == [constant(script, "CODE")], said
    (finding,) = errors
    assert finding["ranks"] == constant(script, "CULPRITS"), finding["summary"]
