"""A process that trains with DataParallel is the only rank of its job."""

from dataclasses import replace

import pytest
from torch import nn

from distdoctor.examination.gaps import gaps_of
from distdoctor.model.drawing import sketch
from distdoctor.model.events import DATA_PARALLEL, Started
from distdoctor.probes import membership
from distdoctor.probes.replicas import single_process


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, str]]:
    became: list[tuple[int, int, str]] = []
    monkeypatch.setattr(membership, "become", lambda *whom: became.append(whom))
    monkeypatch.setattr(nn.DataParallel, "__init__", nn.DataParallel.__init__)
    single_process.install()
    return became


def test_a_process_by_itself_becomes_a_rank(
    joined: list[tuple[int, int, str]],
) -> None:
    nn.DataParallel(nn.Linear(2, 2))
    assert joined == [(0, 1, DATA_PARALLEL)]


def test_one_that_a_launcher_started_with_others_does_not(
    joined: list[tuple[int, int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    nn.DataParallel(nn.Linear(2, 2))
    assert joined == []


@pytest.mark.parametrize(("backend", "hides"), [("gloo", True), (DATA_PARALLEL, False)])
def test_that_there_is_nothing_between_ranks_hides_nothing_of_it(
    backend: str, *, hides: bool
) -> None:
    run = sketch("rank 0 | start=1  exit=0")
    ((position, start), *rest) = run.life[0]
    assert isinstance(start, Started)
    began = (position, replace(start, backend=backend))
    (gap,) = gaps_of(replace(run, life={0: (began, *rest)}), ())
    assert gap.hides == hides
