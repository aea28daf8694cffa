"""Puts in place what sees under which conditions a rank trains.

These are random numbers, settings, memory and files.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from distdoctor.journal import TRACE_VARIABLE
from distdoctor.probes import catching, delays, memory_seen, settings_seen
from distdoctor.probes.harmless import harmless
from distdoctor.probes.randomness import seeds, streams, workers
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.saving import computed, files_written
from distdoctor.probes.steps import rates, schedules


def install() -> None:
    """Right after `import torch`."""
    harmless(seeds.watch_torch)(torch)
    harmless(settings_seen.watch_flags)(torch)
    harmless(workers.watch_workers)()
    harmless(files_written.watch_files)()


def joined() -> None:
    """When the process has become a rank, for the first time."""
    harmless(seeds.tell_early)()
    harmless(settings_seen.tell_early)()
    harmless(streams.watch_passes)()
    harmless(memory_seen.watch_memory)()
    harmless(rates.watch)()
    harmless(schedules.watch)()
    harmless(delays.watch)()
    catching.watch()
    if TRACE_VARIABLE in os.environ:
        harmless(computed.watch)()
    RECORDER.on_turn.append(settings_seen.OPTIMIZERS.forget)


def wrapped(module: torch.nn.Module) -> None:
    """A model is about to be wrapped for data parallelism."""
    settings_seen.OPTIMIZERS.wrapped(module)
    computed.TRACE.wrapped(module)


def stepped(optimizer: Any) -> None:
    """An optimizer made a step."""
    streams.PASSES.stepped()
    settings_seen.OPTIMIZERS.stepped(optimizer)
    rates.RATES.stepped(optimizer)
    memory_seen.KEPT.stepped()
    delays.DELAYS.stepped()
