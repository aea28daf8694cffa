"""The board: of calls that cannot meet, somebody notices; of others, nobody."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distdoctor.probes.collectives.board import Board, local_cells


def boards(folder: Path, members: int = 2, group: str = "g") -> list[Board]:
    """One group's board, as each of its members has it."""
    return [Board(folder, group, members, member) for member in range(members)]


def rows_of(folder: Path, members: int) -> int:
    """How many calls a board shows before it uses a row again."""
    (file,) = folder.iterdir()
    return file.stat().st_size // (16 * members)


def test_a_rank_that_is_alone_agrees(tmp_path: Path) -> None:
    first, _ = boards(tmp_path)
    first.write(1, 7)
    assert first.agrees(1, 7)


def test_ranks_that_make_the_same_call_agree(tmp_path: Path) -> None:
    first, second = boards(tmp_path)
    first.write(1, 7)
    second.write(1, 7)
    assert first.agrees(1, 7)
    assert second.agrees(1, 7)


def test_who_comes_last_sees_that_another_made_another_call(tmp_path: Path) -> None:
    first, second = boards(tmp_path)
    first.write(1, 7)
    second.write(1, 8)
    assert not second.agrees(1, 8)


def test_calls_are_compared_by_their_number(tmp_path: Path) -> None:
    first, second = boards(tmp_path)
    first.write(1, 7)
    first.write(2, 8)
    second.write(1, 7)
    assert second.agrees(1, 7)
    second.write(2, 9)
    assert not second.agrees(2, 9)


def test_groups_have_boards_of_their_own(tmp_path: Path) -> None:
    (here, _), (_, there) = boards(tmp_path, group="a"), boards(tmp_path, group="b")
    here.write(1, 7)
    there.write(1, 8)
    assert there.agrees(1, 8)


def test_one_of_many_is_enough_to_disagree(tmp_path: Path) -> None:
    members = boards(tmp_path, 5)
    for board in members[:4]:
        board.write(3, 7)
    members[4].write(3, 6)
    assert not members[4].agrees(3, 6)


def test_signatures_use_all_their_bits(tmp_path: Path) -> None:
    first, second = boards(tmp_path)
    first.write(1, (1 << 64) - 1)
    second.write(1, (1 << 63) - 1)
    assert first.agrees(1, (1 << 64) - 1) is False
    second.write(1, (1 << 64) - 1)
    assert first.agrees(1, (1 << 64) - 1) is True


def test_a_rank_far_ahead_is_not_compared(tmp_path: Path) -> None:
    first, second = boards(tmp_path)
    ahead = 1 + rows_of(tmp_path, 2)
    first.write(1, 7)
    first.write(ahead, 8)
    second.write(1, 9)
    assert second.agrees(1, 9)


def test_a_row_used_again_compares_again(tmp_path: Path) -> None:
    first, second = boards(tmp_path)
    ahead = 1 + rows_of(tmp_path, 2)
    for board in (first, second):
        board.write(1, 7)
    first.write(ahead, 8)
    assert first.agrees(ahead, 8)
    second.write(ahead, 9)
    assert not second.agrees(ahead, 9)


@pytest.mark.parametrize("members", [2, 3, 64, 5000])
def test_a_board_of_any_size_has_rows_for_many_calls(
    tmp_path: Path, members: int
) -> None:
    first, last = (Board(tmp_path, "g", members, n) for n in (0, members - 1))
    assert rows_of(tmp_path, members) >= 64
    first.write(63, 7)
    last.write(63, 8)
    assert not last.agrees(63, 8)


@settings(deadline=None)
@given(
    st.permutations(range(4)),
    st.lists(st.integers(1, 2), min_size=4, max_size=4),
    st.integers(1, 1 << 40),
)
def test_the_last_to_come_sees_whether_all_are_alike(
    tmp_path_factory: pytest.TempPathFactory,
    order: list[int],
    signatures: list[int],
    ordinal: int,
) -> None:
    members = boards(tmp_path_factory.mktemp("boards"), 4)
    for member in order:
        members[member].write(ordinal, signatures[member])
    last = order[-1]
    alike = len(set(signatures)) == 1
    assert members[last].agrees(ordinal, signatures[last]) is alike


def test_a_board_is_for_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "boards"
    Board(folder, "g", 2, 0)
    assert folder.stat().st_mode & 0o077 == 0
    assert all(file.stat().st_mode & 0o077 == 0 for file in folder.iterdir())


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int, _offset: int, _size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        Board(tmp_path, "g", 2, 0)


# --- groups larger than a machine -----------------------------------------------------


def launched_as(rank: int, size: int, local: int, of: int) -> dict[str, str]:
    """What torchrun tells a rank of the second machine."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(of),
        "GROUP_RANK": "1",
    }


def test_of_a_large_group_only_the_ranks_of_the_machine_have_cells() -> None:
    assert local_cells(16384, 13, 16384, launched_as(13, 16384, 5, 8)) == (8, 5, "\n1")


def test_a_small_group_has_a_cell_for_each_member() -> None:
    assert local_cells(64, 13, 16384, launched_as(13, 16384, 5, 8)) is None


@pytest.mark.parametrize(
    "variables",
    [
        {},
        launched_as(0, 1, 0, 1),  # inherited by a rank that the script has started
        launched_as(13, 16384, 8, 8),
        {**launched_as(13, 16384, 5, 8), "LOCAL_WORLD_SIZE": "many"},
    ],
)
def test_without_the_launchers_word_all_members_have_cells(
    variables: dict[str, str],
) -> None:
    assert local_cells(16384, 13, 16384, variables) is None
