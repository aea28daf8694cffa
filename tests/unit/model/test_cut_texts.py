"""Texts that a sentence holds."""

from hypothesis import given
from hypothesis import strategies as st

from distdoctor.model.cut_texts import first_line


def test_a_long_line_ends_with_a_whole_word() -> None:
    text = "Received data size doesn't match expected size.\nnext"
    assert first_line(text, 30) == "Received data size doesn't…"
    assert first_line(text, 24) == "Received data size…"
    assert first_line(text, 60) == "Received data size doesn't match expected size."


def test_a_word_that_is_almost_all_is_cut() -> None:
    assert first_line("at /a/very/long/path.cc", 12) == "at /a/very/…"


@given(st.text(), st.integers(8, 60))
def test_it_is_one_line_of_at_most_that_length(text: str, longest: int) -> None:
    line = first_line(text, longest)
    assert len(line) <= longest
    assert "\n" not in line
