"""Puts in place what sees under which conditions a rank trains.

These are random numbers, settings, memory and files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from distdoctor.probes import seeds, streams, workers
from distdoctor.probes.harmless import harmless

if TYPE_CHECKING:
    from torch import nn


def install() -> None:
    """Right after `import torch`."""
    harmless(seeds.watch_torch)(torch)
    harmless(workers.watch_workers)()


def joined() -> None:
    """When the process has become a rank, for the first time."""
    harmless(seeds.tell_early)()
    harmless(streams.watch_passes)()


def wrapped(module: nn.Module) -> None:
    """A model is about to be wrapped for data parallelism."""


def stepped() -> None:
    """An optimizer made a step."""
    streams.PASSES.stepped()
