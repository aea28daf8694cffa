"""The line that changes something is found, and nothing else is traced."""

import sys
from collections.abc import Iterator

import pytest

from distdoctor.probes import call_sites
from distdoctor.probes.replicas import changing_lines


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Takes this file for the user's, and puts back what traced before."""
    monkeypatch.setattr(changing_lines, "is_users", lambda file: file == __file__)
    # Another test may have compiled in this process; nothing does here.
    monkeypatch.setattr(changing_lines, "compiles", lambda: False)
    before = sys.gettrace()
    sys.settrace(None)
    yield []
    sys.settrace(before)


def change(values: list[int]) -> None:
    values.append(1)
    values.append(2)


def test_the_innermost_line_is_told_once(found: list[str]) -> None:
    values: list[int] = []
    lines = changing_lines.Lines(lambda: len(values), found.append)
    assert lines.start(sys._getframe())
    assert not values
    change(values)
    change(values)
    lines.stop()
    first = change.__code__.co_firstlineno + 1
    assert found == [call_sites.text_of(__file__, first, "change")]
    assert sys.gettrace() is None


def test_nothing_is_told_where_nothing_changes(found: list[str]) -> None:
    lines = changing_lines.Lines(lambda: 0, found.append)
    lines.start(sys._getframe())
    change([])
    lines.stop()
    assert not found
    assert sys.gettrace() is None


def test_a_debugger_is_left_alone(found: list[str]) -> None:
    def debugger(*_: object) -> None:
        return None

    sys.settrace(debugger)
    assert not changing_lines.Lines(lambda: 0, found.append).start(sys._getframe())
    assert sys.gettrace() is debugger


def test_it_gives_up_in_the_end(
    found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changing_lines, "MOST_LINES", 5)
    values: list[int] = []
    lines = changing_lines.Lines(lambda: len(values), found.append)
    lines.start(sys._getframe())
    for _ in range(10):
        pass
    change(values)
    lines.stop()
    assert not found
