"""The pulse: when ranks are worth a closer look."""

from pathlib import Path

import pytest

from distdoctor.journal import Kind
from distdoctor.journal.writer import JournalWriter
from distdoctor.launch.pulse import Pulse


def note(writer: JournalWriter, what: str) -> None:
    writer.put(Kind.LIFE, 1, spec=writer.intern(f'{{"what": "{what}", "step": 3}}'))


@pytest.mark.parametrize(
    ("lives", "leaving"),
    [
        ([["start", "leave"], ["start", "leave"]], 2),
        ([["start", "leave", "batch"], ["leave"]], 2),
        ([["start", "leave"], ["start"]], 0),
        ([["start", "leave", "start"], ["leave"]], 0),
        ([["start"], []], 0),
    ],
)
def test_ranks_are_leaving_once_all_have_left_the_job(
    tmp_path: Path, lives: list[list[str]], leaving: int
) -> None:
    pulse = Pulse(tmp_path)
    for rank, life in enumerate(lives):
        writer = JournalWriter(tmp_path, rank, len(lives), 64 * 1024)
        for what in life:
            note(writer, what)
    pulse.discover()
    pulse.update()
    assert len(pulse.leaving()) == leaving
