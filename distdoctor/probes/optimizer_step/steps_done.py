"""Counts the steps of optimizers, and tells the probes of each.

Also on ranks that never join, and train for themselves.
"""

from __future__ import annotations

from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from distdoctor.probes import registry
from distdoctor.probes.data import loaders
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER


def install() -> None:
    """Have each optimizer tell."""

    def stepped(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        _step(optimizer)

    register_optimizer_step_post_hook(stepped)


@harmless
def _step(optimizer: Any) -> None:
    if RECORDER.writer is not None:
        RECORDER.writer.step()
        registry.stepped(optimizer)
    if (shortening := loaders.shortening()) is not None:
        shortening.stepped()


PROBE = Probe(install=install)
