"""The words of a divergence: of its own check, of another one, and of none."""

from dataclasses import replace

import pytest

from distdoctor.analysis import sentences
from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.divergence.cascade import divergences, findings
from distdoctor.analysis.sentences import sentence, sentence_of
from distdoctor.errors import CheckMalformed
from distdoctor.model.drawing import sketch

DRAWING = "rank 0 | all_reduce(4)...\nrank 1 | all_reduce(5)!"


@pytest.fixture
def unlike() -> Divergence:
    (found,) = divergences(sketch(DRAWING))
    return found


def test_a_cause_has_the_words_of_one_check_alone() -> None:
    with pytest.raises(CheckMalformed, match="leave them to one check"):

        @sentence_of(Cause.NUMEL)
        def _others(_facts: object) -> str:
            return ""


def test_what_a_divergence_was_taken_for_keeps_its_words(unlike: Divergence) -> None:
    first = replace(unlike, remarks=" They part here.")
    retold = replace(first, why=Cause.JOINING, facts=first, remarks=" It is late.")
    assert sentence(retold) == f"{sentence(unlike)} They part here. It is late."


def test_a_cause_without_words_is_warned_of_and_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sentences._SENTENCES, Cause.NUMEL)
    with pytest.warns(RuntimeWarning, match="NUMEL"):
        (found,) = findings(sketch(DRAWING), Cause.NUMEL)
    assert "another number of elements" in found.message
