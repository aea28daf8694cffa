"""Running the tests of others: one that does not end is left behind."""

from pathlib import Path

from their_tests import Way, outcomes_of

ENDLESS = """
import os, time
def test_first(): pass
def test_endless(): time.sleep(600)
def test_killing(): os._exit(0)
def test_last(): assert 0, "no"
"""


def test_tests_that_do_not_end_or_end_their_process_are_left_behind(
    tmp_path: Path,
) -> None:
    path = tmp_path / "test_theirs.py"
    path.write_text(ENDLESS)
    way = Way(tmp_path, joins=False, limit_s=100.0, each_s=2.0, forks=False)
    found = outcomes_of(path, way)
    assert {name.split("::")[1]: told.outcome for name, told in found.items()} == {
        "test_first": "passed",
        "test_endless": "crashed",
        "test_killing": "crashed",
        "test_last": "failed",
    }
