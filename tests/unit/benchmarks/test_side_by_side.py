"""The comparison with other ways to test: what it counts as an explanation."""

import pytest
import side_by_side
import twenty_tests

SICK = [name for name in twenty_tests.NAMES if name.startswith("sick_")]


def test_there_are_ten_healthy_and_ten_sick_bodies() -> None:
    assert (len(twenty_tests.NAMES), len(SICK)) == (20, 10)


@pytest.mark.parametrize("name", SICK)
def test_rank_and_line_make_an_explanation_and_one_of_them_does_not(name: str) -> None:
    line = min(side_by_side.explaining_lines(name))
    explains = side_by_side.explains
    assert explains(name, f"ranks {{0-1}} wait\ntwenty_tests.py:{line} {name}")
    assert explains(name, f'-- Process 1 ended\nFile "/x/twenty_tests.py", line {line}')
    assert not explains(name, f"ranks {{0,2-3}} wait\ntwenty_tests.py:{line} {name}")
    started = "INFO Started process 1 with pid 7"
    assert not explains(name, f"{started}\ntwenty_tests.py:{line} {name}")
    assert not explains(name, f"process 1234\ntwenty_tests.py:{line} {name}")
    assert not explains(name, f"rank 1 failed\ntwenty_tests.py:{line}9 {name}")
    assert not explains(name, f"rank 1 failed\ntest_them.py:{line} {name}")


def test_lines_of_one_body_do_not_explain_another() -> None:
    explaining = [side_by_side.explaining_lines(name) for name in SICK]
    assert all(explaining)
    assert len(set().union(*explaining)) == sum(map(len, explaining))
