"""Counts optimizer steps, and reports each to the probes.

It does so also on ranks that never join a process group, and train on their own.
"""

from __future__ import annotations

from typing import Any

from distdoctor.probes import registry
from distdoctor.probes.data import loaders
from distdoctor.probes.harmless import harmless
from distdoctor.probes.optimizer_step.true_steps import after_steps
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER


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
    if (shortening := loaders.shortening()) is not None:
        shortening.stepped()


PROBE = Probe(install=install)
