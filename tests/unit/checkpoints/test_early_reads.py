"""Checkpoints that are read before they are there, as the manual does not show it."""

from dataclasses import replace

import pytest

from distdoctor.analysis.checkpoints.early_reads import early_reads
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Event, Failure, Place
from distdoctor.model.findings import Certainty, Finding
from distdoctor.model.observations.checkpoints import Opened, Stored, Storing
from distdoctor.model.run import Run

SAVE = Stored(rank=0, file="/c/best.pt", began_ns=5, ended_ns=9, place=Place("t.py", 3))
NOT_THERE = "FileNotFoundError"


def missing(path: str, *, fatal: bool = True) -> Failure:
    """An exception of rank 1."""
    return Failure(
        rank=1,
        error=NOT_THERE,
        message=f"[Errno 2] No such file or directory: '{path}'",
        place=Place("t.py", 5),
        fatal=fatal,
    )


def findings_of(
    of_0: list[Event], of_1: list[Event], source: str = ""
) -> list[Finding]:
    run = Run.of_events({0: of_0, 1: of_1}, sources={"t.py": source})
    return list(early_reads(run))


@pytest.mark.parametrize("path", ["/c/best.pt", "best.pt", "./best.pt"])
def test_an_open_of_the_scripts_own_fails_as_well(path: str) -> None:
    (found,) = findings_of([SAVE], [missing(path)])
    assert "rank 0 has written it, and failed to (FileNotFoundError)" in found.message
    assert [one.place.line for one in found.locations] == [5, 3]


def test_another_file_that_is_missing_is_another_matter() -> None:
    assert findings_of([SAVE], [missing("/c/best.pth")]) == []
    assert findings_of([SAVE], [missing("/c/best.pt", fatal=False)]) == []


def test_a_rank_that_tries_until_the_file_is_there_is_well() -> None:
    opened = Opened(rank=1, file="/c/best.pt", began_ns=20, ended_ns=21)
    failed = replace(opened, began_ns=2, error=NOT_THERE)
    (found,) = findings_of([SAVE], [failed, opened])
    assert found.certainty is Certainty.LIKELY  # by luck alone, as far as is seen


def test_a_write_that_was_begun_is_no_write_until_it_ends() -> None:
    begun = Storing(rank=0, file="/c/best.pt", began_ns=5, place=Place("t.py", 3))
    (found,) = findings_of([begun], [missing("/c/best.pt")])
    assert found.exhibits[1] == begun
    (found,) = findings_of([begun, SAVE], [missing("/c/best.pt")])
    assert found.exhibits[1] == SAVE


APART = """def main(rank, path):
    if rank == 0:
        torch.save(state, path)
    {between}
    torch.load(path)
main(dist.get_rank(), "best.pt")
"""


def test_the_source_tells_what_was_about_to_be_written() -> None:
    (found,) = findings_of(
        [], [missing("best.pt")], APART.format(between="time.sleep(1)")
    )
    assert found.certainty is Certainty.LIKELY
    assert [one.place.line for one in found.locations] == [5, 3]


@pytest.mark.parametrize(
    "source",
    [
        APART.replace("rank == 0", "args.train"),
        APART.replace("save(state, path)", "save(state, other)"),
        APART.replace("rank == 0", "rank == 1"),
        "def main(rank, path):\n if rank == 0:\n  pass\n if 1:\n  torch.load(path)\n"
        " if rank == 0:\n  torch.save(state, path)\nmain(dist.get_rank(), 'best.pt')",
    ],
)
def test_a_file_that_nobody_writes_above_is_missing_for_other_reasons(
    source: str,
) -> None:
    assert findings_of([], [missing("best.pt")], source) == []


def test_a_barrier_between_them_is_an_order() -> None:
    run = sketch(
        "rank 0 | storing(file=/c/a)@t.py:3  stored(file=/c/a)@t.py:3  barrier\n"
        "rank 1 | barrier  opened(file=/c/a,error=FileNotFoundError)@t.py:5"
    )
    assert list(early_reads(run)) == []
