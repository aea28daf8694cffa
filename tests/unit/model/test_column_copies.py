"""Columns of calls by themselves: what they have is what the calls have."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distdoctor.model import column_copies
from distdoctor.model.column_copies import ColumnCopies
from distdoctor.model.run import CALLS


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 62)]),
            st.sampled_from([-1, 0, 3, 255, 256, 1 << 30]),
            st.integers(0, 299),
        ),
        max_size=20,
    ),
    st.integers(1, 7),
)
def test_a_column_has_what_the_calls_have(
    rows: list[tuple[int, int, int]], at_once: int
) -> None:
    calls = np.zeros(len(rows), CALLS)
    if rows:
        calls["ordinal"], calls["thread"], calls["site"] = zip(*rows, strict=True)
    columns = ColumnCopies(calls, {"site": 300})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_copies, "_AT_ONCE", at_once)
        for name in CALLS.names or ():
            assert columns.column(name).tolist() == calls[name].tolist()


def test_numbers_of_a_small_table_take_little_memory() -> None:
    calls = np.zeros(10, CALLS)
    columns = ColumnCopies(calls, {"site": 3, "group": 300})
    types = {name: columns.column(name).dtype for name in ("site", "group", "spec")}
    assert types == {"site": np.uint8, "group": np.uint16, "spec": np.int32}


def test_all_who_ask_share_a_column_and_may_not_change_it() -> None:
    columns = ColumnCopies(np.zeros(3, CALLS), {})
    assert columns.column("state") is columns.column("state")
    with pytest.raises(ValueError, match="read-only"):
        columns.column("state")[0] = 1
