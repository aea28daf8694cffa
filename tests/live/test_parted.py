"""Where the paths of ranks part: patients of two ranks and more, live."""

from pathlib import Path

import pytest
from real_runs import ROOT, check, constant, culprit_lines, named_lines

pytestmark = pytest.mark.live

PATIENTS = sorted((ROOT / "fixtures" / "parted").glob("*.py"))


@pytest.mark.parametrize("script", PATIENTS, ids=lambda path: path.stem)
def test_the_branch_by_which_they_part_is_named_first(
    script: Path, tmp_path: Path
) -> None:
    ranks = str(constant(script, "RANKS"))
    status, report, said = check(tmp_path, str(script), "-n", ranks)
    assert status == 1, said
    errors = [one for one in report["findings"] if one["severity"] == "error"]
    (finding,) = errors
    assert finding["code"] == constant(script, "CODE"), finding["summary"]
    assert finding["ranks"] == constant(script, "CULPRITS"), finding["summary"]
    assert named_lines(finding)[0] in culprit_lines(script), finding["summary"]
    seen = {"DD202", "DD211"}  # what was observed needs no source
    assert "source" in finding["evidence"] or finding["code"] in seen
