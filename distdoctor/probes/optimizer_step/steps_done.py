"""Counts optimizer steps, and reports each to the probes.

It does so also on ranks that never join a process group, and train on their own. Where
the job is to be ended after some steps, a rank that has made them waits a little behind
each further one: a fast job makes hundreds until the supervisor has seen that.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from distdoctor.journal.environment import STEPS_VARIABLE
from distdoctor.probes import registry
from distdoctor.probes.data import loaders
from distdoctor.probes.harmless import harmless
from distdoctor.probes.optimizer_step.true_steps import after_steps
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_WAITS_S = (0.05, 0.1, 0.2, 0.4, 0.8)
"""At the last step, and at those behind it.

The supervisor looks many times a second, and takes longer on a busy machine. Then a
rank goes on: others may still have steps to make, and need it for that.
"""


class _StepLimit:
    """The number of steps after which the job is ended."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Take the number from the environment; 0: there is no limit."""
        steps = os.environ.get(STEPS_VARIABLE, "")
        self.steps = int(steps) if steps.isdigit() else 0
        self._waits_s = iter(_WAITS_S)

    def reached(self) -> None:
        """Called behind a step, when the rank has made so many: wait to be ended."""
        # Not by `time.sleep`, which probes take for the user's.
        threading.Event().wait(next(self._waits_s, 0.0))


_limit = _StepLimit()


def install() -> None:
    """Register a hook for the steps of all optimizers."""

    def stepped(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        _step(optimizer)

    after_steps(stepped)


@harmless
def _step(optimizer: Any) -> None:
    if RECORDER.writer is not None:
        RECORDER.writer.step()
        registry.stepped(optimizer)
        if 0 < _limit.steps <= RECORDER.writer.steps:
            _limit.reached()
    if (shortening := loaders.shortening()) is not None:
        shortening.stepped()


PROBE = Probe(install=install, reset=_limit.begin)
