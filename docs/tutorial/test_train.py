"""The test that keeps the job of the tutorial mended."""

from distdoctor.pytest_plugin.scripts import ScriptChecker
from distdoctor.testing import assert_well


def test_all_ranks_stop_at_the_same_step(check_script: ScriptChecker) -> None:
    assert_well(check_script("train.py", nproc=4))
