"""Ranks by the names of files."""

import pytest

from distdoctor.postmortem.rank_names import rank_of, ranks_of


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("out/rank3.txt", 3),
        ("out/rank_12.stacks", 12),
        ("out/stack-rank-0007.json", 7),
        ("out/host4_rank31_local_rank7.txt", 31),
        ("out/local_rank7.txt", None),
        ("out/rank5/stack.txt", 5),
        ("out/dump.r17.txt", 17),
        ("out/franky3.txt", None),
        ("out/3.txt", None),
    ],
)
def test_a_name_says_its_rank(path: str, rank: int | None) -> None:
    assert rank_of(path) == rank


def test_files_that_one_number_counts_are_ranks() -> None:
    assert ranks_of([f"d/dump.{n}.txt" for n in (2, 0, 1)]) == {
        "d/dump.0.txt": 0,
        "d/dump.1.txt": 1,
        "d/dump.2.txt": 2,
    }


def test_machines_and_their_ranks_are_counted_on() -> None:
    paths = [f"d/node{host:02d}_{n}.txt" for host in (3, 7) for n in range(4)]
    assert list(ranks_of(paths).values()) == list(range(8))


def test_numbers_that_do_not_count_from_0_are_no_ranks() -> None:
    assert ranks_of(["d/py-spy-4711.txt", "d/py-spy-4713.txt"]) == {}
    assert ranks_of(["d/a1.txt", "d/b2.txt"]) == {}
    assert ranks_of(["d/dump.0.txt"]) == {}
