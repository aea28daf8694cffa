"""Records what workers of Ray Train do outside of torch: how they meet, and end.

A worker trains in a thread of its own, and its process lives on when that is over. The
thread that joined the process group does no more then than what Ray asks of it.

`report`, `barrier` and others of `ray.train` meet at one barrier, whichever of them a
worker calls: all wait until the last worker has called one.

Source: Ray 2.60, train/v2/_internal/execution (`worker_group/thread_runner.py`,
`checkpoint/sync_actor.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from distdoctor.journal.format import RecordKind
from distdoctor.model.events import Left
from distdoctor.probes.failures.tracebacks import clean
from distdoctor.probes.groups import world
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.rendezvous import meetings

_EXECUTION = "ray.train.v2._internal.execution"
_MEETING = "ray_report"
_MEET = ("report", "barrier", "broadcast_from_rank_zero", "get_preemption_info")


def _watch_threads(module: ModuleType) -> None:
    kind = module.__dict__["ThreadRunner"]
    made, told = kind.run, module.__dict__["construct_user_exception_with_traceback"]

    @functools.wraps(made)
    def run(self: Any, target: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        @functools.wraps(target)
        def training() -> Any:
            result = target()
            _done()
            return result

        _handed_over()
        return made(self, training, *args, **kwargs)

    @functools.wraps(told)
    def failed(error: BaseException, *args: Any, **kwargs: Any) -> Any:
        _failed(error)
        return told(error, *args, **kwargs)

    kind.run = run
    module.__dict__["construct_user_exception_with_traceback"] = failed


@harmless
def _handed_over() -> None:
    """This thread has joined the job, and leaves all else to another."""
    if RECORDER.writer is not None:
        RECORDER.writer.put(RecordKind.THREAD_END, RECORDER.thread())


@harmless
def _failed(error: BaseException) -> None:
    """The training function has raised this; Ray keeps it, and tells of it later."""
    clean(error)
    RECORDER.failure(error, error.__traceback__, fatal=True)


@harmless
def _done() -> None:
    """The training is over: this rank makes no further call."""
    RECORDER.finish()
    RECORDER.tell(Left())


def _watch_barrier(module: ModuleType) -> None:
    kind = module.__dict__["DistributedTrainFnUtils"]
    for name in _MEET:
        if (made := kind.__dict__.get(name)) is not None:
            setattr(kind, name, _meeting(made))


def _meeting(made: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(made)
    def call(*args: Any, **kwargs: Any) -> Any:
        members = tuple(range(world.size()))
        return meetings.around(_MEETING, lambda: made(*args, **kwargs), members, ())

    return call


PROBE = Probe(
    imports={
        f"{_EXECUTION}.worker_group.thread_runner": _watch_threads,
        f"{_EXECUTION}.train_fn_utils": _watch_barrier,
    }
)
