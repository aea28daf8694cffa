"""Where a job is to be ended after some steps, ranks wait for that, and not long."""

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from distdoctor.journal.environment import STEPS_VARIABLE
from distdoctor.probes import registry
from distdoctor.probes.optimizer_step import steps_done
from distdoctor.probes.recorder import RECORDER

Waited = list[float]

LONGEST_S = 2.0  # that a rank which is needed by others may be held up in all


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> Iterator[Waited]:
    """The seconds waited, by number of the step, from 1."""
    seconds: Waited = []

    class Never:
        def wait(self, timeout: float) -> None:
            seconds[-1] += timeout

    def step() -> None:
        seconds.append(0.0)
        writer.steps += 1

    writer = SimpleNamespace(steps=0, step=step)
    monkeypatch.setattr(RECORDER, "writer", writer)
    monkeypatch.setattr(threading, "Event", Never)
    monkeypatch.setattr(registry, "stepped", lambda _: None)
    yield seconds
    monkeypatch.undo()
    steps_done.PROBE.reset()


@pytest.fixture
def make_steps(
    waited: Waited, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, int], Waited]:
    def make(limit: str, count: int) -> Waited:
        monkeypatch.setenv(STEPS_VARIABLE, limit)
        steps_done.PROBE.reset()
        for _ in range(count):
            steps_done._step(None)
        return waited

    return make


def test_a_rank_waits_from_the_last_step_on(
    make_steps: Callable[[str, int], Waited],
) -> None:
    seconds = make_steps("3", 5)
    assert seconds[:2] == [0, 0]
    assert all(one > 0 for one in seconds[2:])


def test_a_rank_that_others_need_goes_on_soon(
    make_steps: Callable[[str, int], Waited],
) -> None:
    assert sum(make_steps("3", 1000)) < LONGEST_S


@pytest.mark.parametrize("limit", ["", "0", "many"])
def test_without_a_limit_nobody_waits(
    limit: str, make_steps: Callable[[str, int], Waited]
) -> None:
    assert sum(make_steps(limit, 20)) == 0
