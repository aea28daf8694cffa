"""The line that calls a wrapped model without its wrapper, and which are right to."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from distdoctor.probes.call_sites import text_of
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replicas import wrapper_bypass


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Lines that were told."""
    lines: list[str] = []
    monkeypatch.setattr(RECORDER, "observe", lambda _one, site: lines.append(site))
    wrapper_bypass.reset()
    yield lines
    wrapper_bypass.reset()


def called_above() -> str:
    """The line above that which asks, in the words of the journal."""
    frame = sys._getframe(1)
    code = frame.f_code
    return text_of(code.co_filename, frame.f_lineno - 1, code.co_qualname)


def test_a_line_is_told_if_nothing_is_averaged_behind_it(observed: list[str]) -> None:
    model = nn.Linear(2, 2)
    wrappers = [SimpleNamespace(module=model)]
    wrapper_bypass.passed(wrappers, averaged=False)
    model(torch.ones(2))  # as a generator's step does, which is averaged
    wrapper_bypass.passed(wrappers, averaged=True)
    assert observed == []
    model(torch.ones(2))
    line = called_above()
    wrapper_bypass.passed(wrappers, averaged=False)
    assert observed == [line]
    model(torch.ones(2))
    wrapper_bypass.passed(wrappers, averaged=False)
    assert observed == [line]


class Scored(nn.Module):
    """A model that is asked for more than its output."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def score(self, given: Tensor) -> Tensor:
        """By a part of it."""
        found: Tensor = self.inner(given)
        return found.sum()


def test_a_method_that_calls_a_part_is_told_at_the_line_that_calls_it(
    observed: list[str],
) -> None:
    model = Scored()
    wrappers = [SimpleNamespace(module=model)]
    wrapper_bypass.passed(wrappers, averaged=False)
    model.score(torch.ones(2))
    line = called_above()
    wrapper_bypass.passed(wrappers, averaged=False)
    assert observed == [line]


def test_frozen_models_and_evaluations_are_no_bypass(observed: list[str]) -> None:
    model = nn.Linear(2, 2)
    wrappers = [SimpleNamespace(module=model)]
    wrapper_bypass.passed(wrappers, averaged=False)
    model.requires_grad_(requires_grad=False)
    model(torch.ones(2))
    model.requires_grad_(requires_grad=True)
    with torch.no_grad():
        model(torch.ones(2))
    wrapper_bypass.passed(wrappers, averaged=False)
    assert observed == []


def test_where_all_is_averaged_nobody_looks(observed: list[str]) -> None:
    model = nn.Linear(2, 2)
    wrapper_bypass.passed([SimpleNamespace(module=model)], averaged=True)
    model(torch.ones(2))
    wrapper_bypass.passed([SimpleNamespace(module=model)], averaged=False)
    assert observed == []
    assert wrapper_bypass._search.handle is not None
