"""Puts in place what sees under which conditions a rank trains.

These are random numbers, settings, memory and files.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from distdoctor.journal.environment import TRACE_VARIABLE
from distdoctor.probes.checkpoints import files_written
from distdoctor.probes.comparison import computed_values
from distdoctor.probes.environment import processor_delays, settings
from distdoctor.probes.failures import handler_marks
from distdoctor.probes.harmless import harmless
from distdoctor.probes.learning_rate import rising_rates, schedulers
from distdoctor.probes.memory import memory_growth
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.rng import seeds, stream_draws, worker_draws


def install() -> None:
    """Right after `import torch`."""
    harmless(seeds.watch_torch)(torch)
    harmless(settings.watch_flags)(torch)
    harmless(worker_draws.watch_workers)()
    harmless(files_written.watch_files)()


def joined() -> None:
    """When the process has become a rank, for the first time."""
    harmless(seeds.tell_early)()
    harmless(settings.tell_early)()
    harmless(stream_draws.watch_passes)()
    harmless(memory_growth.watch_memory)()
    harmless(rising_rates.watch)()
    harmless(schedulers.watch)()
    harmless(processor_delays.watch)()
    handler_marks.watch()
    if TRACE_VARIABLE in os.environ:
        harmless(computed_values.watch)()
    RECORDER.on_turn.append(settings.OPTIMIZERS.forget)


def wrapped(module: torch.nn.Module) -> None:
    """A model is about to be wrapped for data parallelism."""
    settings.OPTIMIZERS.wrapped(module)
    computed_values.TRACE.wrapped(module)


def stepped(optimizer: Any) -> None:
    """An optimizer made a step."""
    stream_draws.PASSES.stepped()
    settings.OPTIMIZERS.stepped(optimizer)
    rising_rates.RATES.stepped(optimizer)
    memory_growth.MEMORY_GROWTH.stepped()
    processor_delays.DELAYS.stepped()
