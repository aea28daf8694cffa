"""Rows of ranks: folded, filtered, sorted, and cut to a width."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdoctor.watching.folded_ranks import RankRow, RowOrder, matches, rows_of
from distdoctor.watching.rank_table import GAP, short, table_of
from distdoctor.watching.snapshot import RankDoing, WatchedCall, WatchedRank

CALL = WatchedCall(op="all_reduce", group="world", ordinal=57, place="train.py:88")


def rank(number: int, **fields: object) -> WatchedRank:
    told: dict[str, object] = {
        "doing": RankDoing.WAITING,
        "since_s": 5.0,
        "call": CALL,
        **fields,
    }
    return WatchedRank(rank=number, **told)  # type: ignore[arg-type]


def names(rows: list[RankRow]) -> list[str]:
    return [str(row) for row in rows]


def test_ranks_alike_are_one_row_and_the_odd_one_stands_first() -> None:
    ranks = [rank(n) for n in range(1024)]
    ranks[77] = rank(77, doing=RankDoing.OWN_CODE)
    assert names(rows_of(ranks, folded=True)) == ["77", "0-76,78-1023"]
    assert names(rows_of(ranks, folded=False))[:2] == ["77", "0"]


def test_who_died_stands_before_all() -> None:
    ranks = [rank(0), rank(1), rank(2, doing=RankDoing.DIED), rank(3), rank(4)]
    ranks[0] = rank(0, doing=RankDoing.OWN_CODE)
    assert names(rows_of(ranks, folded=True)) == ["2", "0", "1,3-4"]


def test_who_moves_is_folded_whatever_the_number_of_the_call() -> None:
    calls = [WatchedCall(op="all_reduce", group="world", ordinal=n) for n in range(4)]
    moving = [rank(n, since_s=0.1, call=calls[n]) for n in range(4)]
    standing = [rank(n, since_s=9.0, call=calls[n]) for n in range(4)]
    assert names(rows_of(moving, folded=True)) == ["0-3"]
    assert len(rows_of(standing, folded=True)) == 4


@pytest.mark.parametrize(
    ("only", "shown"),
    [
        ("", [0, 1, 2, 3]),
        ("2", [2]),
        ("0-1,3", [0, 1, 3]),
        ("barrier", [3]),
        ("BARRIER", [3]),
        ("waiting 0-2", [0, 2]),
        ("train.py:88", [0, 1, 2]),
        ("nothing", []),
        ("99999999999999", []),
        ("1-", []),
        ("[red]", []),
    ],
)
def test_a_filter_names_ranks_or_a_text(only: str, shown: list[int]) -> None:
    barrier = WatchedCall(op="barrier", group="world", ordinal=1, place="eval.py:1")
    ranks = [rank(0), rank(1, doing=RankDoing.OWN_CODE), rank(2)]
    ranks.append(rank(3, call=barrier))
    assert [one.rank for one in ranks if matches(one, only)] == shown


def test_rows_are_sorted_as_asked() -> None:
    ranks = [
        rank(0, since_s=1.0, memory_bytes=5, steps_per_s=9.0),
        rank(1, since_s=3.0, memory_bytes=9, steps_per_s=1.0),
        rank(2, since_s=2.0, memory_bytes=7, steps_per_s=5.0),
    ]

    def sorted_by(order: RowOrder) -> list[str]:
        return names(rows_of(ranks, folded=False, order=order))

    assert sorted_by(RowOrder.RANK) == ["0", "1", "2"]
    assert sorted_by(RowOrder.SINCE) == ["1", "2", "0"]
    assert sorted_by(RowOrder.MEMORY) == ["1", "2", "0"]
    assert sorted_by(RowOrder.PACE) == ["1", "2", "0"]


TEXT = st.text(max_size=40)
RANKS = st.lists(
    st.builds(
        rank,
        st.integers(0, 2000),
        doing=st.sampled_from(RankDoing),
        detail=TEXT,
        since_s=st.none() | st.floats(0, 1e9),
        call=st.none()
        | st.builds(
            WatchedCall,
            op=TEXT,
            group=TEXT,
            ordinal=st.integers(0, 1 << 62),
            place=TEXT,
            function=TEXT,
        ),
        steps=st.none() | st.integers(0, 1 << 40),
        memory_bytes=st.none() | st.integers(0, 1 << 50),
        calls_per_s=st.none() | st.floats(0, 1e9),
        host=TEXT,
    ),
    max_size=8,
    unique_by=lambda one: one.rank,
)


@given(ranks=RANKS, width=st.integers(40, 200), folded=st.booleans())
def test_a_table_fits_and_controls_no_terminal(
    ranks: list[WatchedRank], width: int, folded: bool
) -> None:
    rows = rows_of(ranks, folded=folded)
    assert sorted(n for row in rows for n in row.ranks) == sorted(r.rank for r in ranks)
    table = table_of(rows, width, by_steps=False)
    assert len(table) == len(rows) + 1
    for line in table:
        assert all(cell.isprintable() for cell in line)
        assert [*map(len, line)] == [*map(len, table[0])]
    least = 8 * 8 + 7 * GAP
    assert len((" " * GAP).join(table[0])) <= max(width, least)


@given(text=st.text(), most=st.integers(3, 20))
def test_a_long_text_is_cut_in_its_middle(text: str, most: int) -> None:
    cut = short(text, most)
    assert len(cut) <= most
    assert cut == text or (cut[0] == text[0] and cut[-1] == text[-1])
