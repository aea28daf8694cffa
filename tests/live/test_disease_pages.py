"""Bad and good code of pages about diseases: the whole scripts are what they say."""

from pathlib import Path

import pytest
from by_rule.running import Runner
from programs import program
from real_runs import check_forked, findings_of

from distdoctor.excerpts.patient_excerpts import patient

ROOT = Path(__file__).parent.parent.parent


# Each is made in another way: an argument that is chosen, a branch that goes, and a
# place in a table.
@pytest.mark.parametrize(
    "name",
    ["dd118_wrong_device", "dd207_missing_key", "dd104_mismatched_reduce_op"],
)
def test_the_bad_script_is_sick_and_the_good_one_is_well(
    name: str, forked: Runner, tmp_path: Path
) -> None:
    path = ROOT / "fixtures" / "patients" / f"{name}.py"
    shown, known = patient(path), program(path)
    assert shown.well
    for excerpt, codes in ((shown.sick, {known.code}), (shown.well, set())):
        script = tmp_path / "train.py"
        script.write_text(excerpt.program)
        _, report, said = check_forked(forked, tmp_path, script, ranks=shown.ranks)
        found = {one["code"] for one in findings_of(report)}
        assert found == codes, said
