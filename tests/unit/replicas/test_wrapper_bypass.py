"""The line that calls a wrapped model without its wrapper, and which are right to."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replicas import wrapper_bypass


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Lines that were told."""
    lines: list[str] = []
    monkeypatch.setattr(RECORDER, "observe", lambda _one, site: lines.append(site))
    sites = iter(f"t.py:{n}:f" for n in range(1, 99))
    monkeypatch.setattr(wrapper_bypass, "call_site", lambda _depth: next(sites))
    wrapper_bypass.reset()
    yield lines
    wrapper_bypass.reset()


def test_a_line_is_told_if_nothing_is_averaged_behind_it(observed: list[str]) -> None:
    model = nn.Linear(2, 2)
    wrappers = [SimpleNamespace(module=model)]
    wrapper_bypass.passed(wrappers, averaged=False)
    model(torch.ones(2))  # as a generator's step does, which is averaged
    wrapper_bypass.passed(wrappers, averaged=True)
    assert observed == []
    model(torch.ones(2))
    wrapper_bypass.passed(wrappers, averaged=False)
    assert observed == ["t.py:2:f"]
    model(torch.ones(2))
    wrapper_bypass.passed(wrappers, averaged=False)
    assert observed == ["t.py:2:f"]


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
