"""Agreement: of all proposals the first counts, for everybody."""

import errno
import multiprocessing
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from distdoctor.probes.data.agreement import Agreement, Begun

GATES = 200


class Proposal:
    """Proposes a number, and remembers what it was given to decide."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.begun: dict[int, Begun] | None = None

    def __call__(self, begun: Mapping[int, Begun]) -> int:
        """The number."""
        self.begun = dict(begun)
        return self.number


def of(number: int) -> Proposal:
    return Proposal(number)


def decide_all(
    file: Path, number: int, results: "multiprocessing.Queue[list[int]]"
) -> None:
    agreement = Agreement(file)
    results.put([agreement.settle("k", gate, of(number)) for gate in range(GATES)])


def test_ranks_that_decide_at_once_decide_alike(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    ranks = [
        context.Process(target=decide_all, args=(tmp_path / "log", n, results))
        for n in range(1, 5)
    ]
    for rank in ranks:
        rank.start()
    decided = [results.get(timeout=60) for _ in ranks]
    for rank in ranks:
        rank.join(timeout=60)
    assert all(each == decided[0] for each in decided)
    assert set(decided[0]) <= {1, 2, 3, 4}


def test_the_first_proposal_counts_and_a_decided_one_is_not_asked_again(
    tmp_path: Path,
) -> None:
    first, second = Agreement(tmp_path / "log"), Agreement(tmp_path / "log")
    assert first.settle("k", 8, of(0)) == 0
    late = of(99)
    assert second.settle("k", 8, late) == 0
    assert late.begun is None
    assert second.settle("k", 16, late) == 99
    assert second.settle("other", 8, of(7)) == 7
    assert first.settle("k", 16, of(1)) == 99


def test_a_rank_that_cannot_decide_leaves_nothing_out_on_any(tmp_path: Path) -> None:
    def wrong(_begun: Mapping[int, Begun]) -> int:
        raise ZeroDivisionError

    first, second = Agreement(tmp_path / "log"), Agreement(tmp_path / "log")
    assert first.settle("k", 8, wrong) == 0
    assert second.settle("k", 8, of(5)) == 0


def test_who_decides_knows_the_ranks_that_have_begun(tmp_path: Path) -> None:
    first, second = Agreement(tmp_path / "log"), Agreement(tmp_path / "log")
    first.begin("k", 0, Begun(100, 4))
    second.begin("k", 1, Begun(None, 0))
    second.begin("other", 1, Begun(7, 0))
    proposal = of(1)
    first.settle("k", 2, proposal)
    assert proposal.begun == {0: Begun(100, 4), 1: Begun(None, 0)}


def test_what_was_told_of_a_pass_can_be_forgotten(tmp_path: Path) -> None:
    agreement = Agreement(tmp_path / "log")
    agreement.begin("k", 0, Begun(100, 4))
    agreement.settle("k", 2, of(5))
    agreement.forget("k")
    again = of(6)
    agreement.settle("k", 4, again)
    assert again.begun == {}


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    agreement = Agreement(tmp_path / "log")
    with (tmp_path / "log").open("ab", buffering=0) as other:
        other.write(b"G k 8 4")
        agreement._read()
        assert not agreement._decided
        other.write(b"2\nG k")
        assert agreement.settle("k", 8, of(1)) == 42


def test_a_full_disk_leaves_what_others_have_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Agreement(tmp_path / "log"), Agreement(tmp_path / "log")

    class Meanwhile(Proposal):
        def __call__(self, begun: Mapping[int, Begun]) -> int:
            """The number, after another rank was faster and the disk is full."""
            second.settle("k", 8, of(3))
            monkeypatch.setattr(os, "write", full)
            return super().__call__(begun)

    def full(_file: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert first.settle("k", 8, Meanwhile(9)) == 3
    with pytest.raises(OSError, match="No space left"):
        first.settle("k", 16, of(1))


def test_a_note_cut_short_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreement = Agreement(tmp_path / "log")
    monkeypatch.setattr(os, "write", lambda _file, data: len(data) - 1)
    with pytest.raises(OSError, match="cut short"):
        agreement.begin("k", 0, Begun(1, 0))
    monkeypatch.undo()
    agreement.close()
