"""The signs of drawings have a meaning each."""

from distdoctor.model.drawing_calls import _ENDINGS, _FLAGS
from distdoctor.model.drawing_legend import _ENDS, _LIVES
from distdoctor.model.drawing_legend import _FLAGS as _TOLD_FLAGS
from distdoctor.model.drawing_words import WORDS


def test_every_word_and_mark_has_a_meaning() -> None:
    assert {*_LIVES} == {*WORDS}
    assert {*_TOLD_FLAGS} == {*_FLAGS}
    assert {*_ENDS} == {*_ENDINGS.values()} - {""}
