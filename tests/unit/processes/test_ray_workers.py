"""What workers of Ray Train do beside torch: how they meet, and how they end."""

import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from distdoctor.journal.format import RecordKind
from distdoctor.model.events import Left
from distdoctor.probes.groups import world
from distdoctor.probes.processes import ray_workers
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.rendezvous import meetings

EXECUTION = "ray.train.v2._internal.execution"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Events, ended threads, and exceptions with whether they are fatal."""
    kept: list[Any] = []
    put = SimpleNamespace(put=lambda kind, thread: kept.append((kind, thread)))
    monkeypatch.setattr(RECORDER, "writer", put)
    monkeypatch.setattr(RECORDER, "finish", lambda: None)
    monkeypatch.setattr(RECORDER, "tell", lambda event, _site="": kept.append(event))

    def failure(error: BaseException, _traceback: object, fatal: bool) -> None:
        kept.append((error, fatal))

    monkeypatch.setattr(RECORDER, "failure", failure)
    return kept


def runner() -> Any:
    """Ray's way to run a function in a thread, under the probe."""
    module = ModuleType("thread_runner")
    module.__dict__["construct_user_exception_with_traceback"] = (
        lambda error, exclude_frames=0: (error, exclude_frames)
    )

    class ThreadRunner:
        result: object = None

        def run(self, target: Callable[[], object]) -> None:
            def run_target() -> None:
                try:
                    self.result = target()
                except BaseException as error:  # noqa: BLE001 - as Ray does
                    make = module.__dict__["construct_user_exception_with_traceback"]
                    self.result = make(error, exclude_frames=3)

            thread = threading.Thread(target=run_target)
            thread.start()
            thread.join()

    module.__dict__["ThreadRunner"] = ThreadRunner
    ray_workers.PROBE.imports[f"{EXECUTION}.worker_group.thread_runner"](module)
    return ThreadRunner()


def test_a_worker_that_has_trained_makes_no_further_call(told: list[Any]) -> None:
    ray = runner()
    ray.run(lambda: 7)
    assert ray.result == 7
    assert told[1:] == [Left()]


def test_the_thread_that_joined_leaves_the_job_to_another(told: list[Any]) -> None:
    runner().run(int)
    assert told[0] == (RecordKind.THREAD_END, threading.get_native_id())


def test_what_the_training_raised_is_told_and_the_worker_has_not_left(
    told: list[Any],
) -> None:
    error = ValueError("bad sample")

    def train() -> None:
        raise error

    ray = runner()
    ray.run(train)
    assert ray.result == (error, 3)
    assert told[1:] == [(error, True)]
    frames, link = [], error.__traceback__
    while link is not None:
        frames.append(link.tb_frame.f_code.co_name)
        link = link.tb_next
    assert frames == ["run_target", "train"]  # Ray leaves out so many of them


@pytest.mark.parametrize("name", ["report", "barrier", "broadcast_from_rank_zero"])
def test_all_that_meets_at_rays_barrier_is_one_operation(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[object, ...]] = []

    def around(op: str, call: Callable[[], object], *whom: object) -> object:
        made.append((op, *whom))
        return call()

    module = ModuleType("train_fn_utils")

    class DistributedTrainFnUtils:
        def report(self, metrics: int) -> int:
            return metrics

        barrier = broadcast_from_rank_zero = report

    module.__dict__["DistributedTrainFnUtils"] = DistributedTrainFnUtils
    monkeypatch.setattr(meetings, "around", around)
    monkeypatch.setattr(world, "size", lambda: 3)
    ray_workers.PROBE.imports[f"{EXECUTION}.train_fn_utils"](module)
    assert getattr(DistributedTrainFnUtils(), name)(5) == 5
    assert made == [("ray_report", (0, 1, 2), ())]
