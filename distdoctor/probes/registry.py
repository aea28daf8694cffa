"""The list of all probes, in the order in which they are called; see `probe`.

This is the one place that knows all of them. They are loaded when their stage comes,
because every Python process of the job passes through here, most without torch.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from enum import Enum, IntEnum
from types import ModuleType
from typing import Any, NamedTuple

from distdoctor.journal.environment import (
    LAUNCHER_VARIABLE,
    RECORD_VARIABLE,
    SIMULATION_VARIABLE,
    TRACE_VARIABLE,
    VALUES_VARIABLE,
)
from distdoctor.probes import own_imports
from distdoctor.probes.harmless import harmless
from distdoctor.probes.import_hooks import AroundImports, Load
from distdoctor.probes.probe import Probe


class Stage(IntEnum):
    """When a probe is installed."""

    PROGRAM = 0  # before the program's first line; torch must not be imported for it
    TORCH = 1  # right after `import torch`: only what is cheap, or must be there early
    JOINED = 2  # at the first `init_process_group`: all that costs something


class Where(Enum):
    """In which processes a probe is installed."""

    EVERYWHERE = "everywhere"
    AMONG_RANKS = "among ranks"  # not where one rank of a large job is played alone
    ALONE = "alone"  # only there
    COMPARED = "compared"  # only where the run will be compared with another
    REFERENCE = "reference"  # only where it will be with a run of fewer ranks


class Entry(NamedTuple):
    """One probe in the list, and when and where it is installed.

    Attributes:
        module: Its module, below `distdoctor.probes`.
        stage: When it is installed.
        where: In which processes it is installed.
    """

    module: str
    stage: Stage
    where: Where = Where.EVERYWHERE

    @property
    def name(self) -> str:
        """Full name of the probe's module."""
        return f"distdoctor.probes.{self.module}"

    def is_wanted(self) -> bool:
        """Whether the probe is to be installed in this process."""
        if RECORD_VARIABLE in os.environ and self.module not in RECORDING:
            return False
        if _launches and self.stage and self.module not in LAUNCHING:
            return False
        match self.where:
            case Where.AMONG_RANKS:
                return not is_simulated()
            case Where.ALONE:
                return is_simulated()
            case Where.COMPARED:
                return TRACE_VARIABLE in os.environ and not is_simulated()
            case Where.REFERENCE:
                return VALUES_VARIABLE in os.environ and not is_simulated()
        return True


PROGRAM, TORCH, JOINED = Stage
AMONG_RANKS, ALONE = Where.AMONG_RANKS, Where.ALONE
COMPARED, REFERENCE = Where.COMPARED, Where.REFERENCE

ENTRIES = (
    # How processes begin and end, and what is changed on the way.
    Entry("processes.child_exits", PROGRAM),
    Entry("processes.exit_lines", PROGRAM),
    Entry("failures.uncaught", PROGRAM),
    Entry("failures.tracebacks", PROGRAM),
    Entry("comparison.file_backup", PROGRAM),
    Entry("rendezvous.address_variables", PROGRAM),
    Entry("rendezvous.loopback_servers", PROGRAM),
    Entry("horovod.frameworks", PROGRAM, AMONG_RANKS),
    Entry("processes.ray_workers", PROGRAM, AMONG_RANKS),
    Entry("processes.ray_clusters", PROGRAM, AMONG_RANKS),
    # All others go around what it puts in place.
    Entry("gpu_emulation", TORCH),
    Entry("compiled_code", TORCH),
    Entry("collectives.fake_backend", TORCH, ALONE),
    Entry("rendezvous.own_ports", TORCH, AMONG_RANKS),
    # What is there before a rank joins: data, optimizers, models, files.
    Entry("data.creation_sites", TORCH),
    Entry("data.samples", TORCH),
    Entry("optimizer_step.optimizers", TORCH),
    Entry("replicas.live_modules", TORCH),
    Entry("replicas.pipeline_stages", TORCH),
    Entry("replicas.module_origins", TORCH),
    Entry("replicas.registrations", TORCH),
    Entry("replicas.batch_norm_use", TORCH),
    Entry("replicas.weight_fingerprints", TORCH),
    Entry("data.numbered_names", TORCH),
    Entry("checkpoints.checkpoint_io", TORCH),
    Entry("checkpoints.restored_state", TORCH),
    Entry("amp.grad_scalers", TORCH),
    Entry("gradients.clip_hooks", TORCH),  # users' files import them by name
    Entry("processes.spawned", TORCH),
    Entry("rendezvous.setup_calls", TORCH),
    Entry("collectives.batched_messages", TORCH),
    Entry("optimizer_step.steps_done", TORCH),
    Entry("comparison.written_values", TORCH, REFERENCE),  # one rank may join nobody
    Entry("lifecycle", TORCH),
    Entry("replicas.single_process", TORCH, AMONG_RANKS),
    Entry("horovod.optimizer_wrapping", TORCH, AMONG_RANKS),
    Entry("environment.software", PROGRAM, AMONG_RANKS),
    Entry("environment.variables", TORCH, AMONG_RANKS),  # before we set NCCL's own
    Entry("environment.nccl_debug", JOINED, AMONG_RANKS),
    # Communication; what follows asks it.
    Entry("collectives.interception", JOINED, AMONG_RANKS),
    Entry("collectives.waits", JOINED),
    Entry("collectives.gpu_waits", JOINED, AMONG_RANKS),
    Entry("collectives.reduce_ops", JOINED),
    Entry("replicas.wrapping", TORCH),
    Entry("replicas.deepspeed_engines", TORCH, AMONG_RANKS),
    Entry("replicas.ddp_reducers", JOINED),
    Entry("metrics.evaluations", JOINED),
    Entry("metrics.printed_figures", JOINED),
    Entry("metrics.half_precision_sums", JOINED),
    Entry("data.loaders", JOINED),
    # Training steps: what goes around calls, then who is told of them.
    Entry("optimizer_step.call_hooks", JOINED, AMONG_RANKS),
    Entry("accumulation.accumulation_windows", JOINED, AMONG_RANKS),
    Entry("accumulation.microbatch_weighting", JOINED, AMONG_RANKS),
    Entry("amp.skipped_steps", JOINED, AMONG_RANKS),
    Entry("optimizer_step.step_protocol", JOINED, AMONG_RANKS),
    Entry("amp.scaled_gradients", JOINED, AMONG_RANKS),
    Entry("optimizer_step.step_listeners", JOINED, AMONG_RANKS),
    Entry("optimizer_step.step_hooks", JOINED, AMONG_RANKS),
    Entry("amp.autocast_backward", JOINED, AMONG_RANKS),
    Entry("gradients.gradient_reduction", JOINED, AMONG_RANKS),
    Entry("gradients.clipped_norms", JOINED, AMONG_RANKS),
    Entry("gradients.scaled_shards", JOINED, AMONG_RANKS),
    # What the listeners among them remember.
    Entry("replicas.late_parameters", JOINED, AMONG_RANKS),
    Entry("replicas.trained_models", JOINED, AMONG_RANKS),
    Entry("replicas.weight_averages", JOINED, AMONG_RANKS),
    Entry("replicas.running_buffers", JOINED, AMONG_RANKS),
    Entry("replicas.wrapper_bypass", JOINED, AMONG_RANKS),
    Entry("optimizer_step.unheld_parameters", JOINED, AMONG_RANKS),
    Entry("optimizer_step.piled_hooks", JOINED, AMONG_RANKS),
    Entry("amp.non_finite_weights", JOINED, AMONG_RANKS),
    Entry("amp.low_precision_steps", JOINED, AMONG_RANKS),
    Entry("gradients.gradient_samples", JOINED, AMONG_RANKS),
    Entry("data.model_inputs", JOINED, AMONG_RANKS),
    # Under which conditions a rank trains.
    Entry("rng.seeds", PROGRAM),
    Entry("rng.torch_seeds", TORCH, AMONG_RANKS),
    Entry("environment.settings", PROGRAM),
    Entry("environment.torch_flags", TORCH, AMONG_RANKS),
    Entry("rng.worker_draws", TORCH, AMONG_RANKS),
    Entry("rng.dropout_masks", TORCH, AMONG_RANKS),
    Entry("checkpoints.files_written", TORCH, AMONG_RANKS),
    Entry("rng.stream_draws", TORCH, AMONG_RANKS),
    Entry("memory.memory_growth", TORCH, AMONG_RANKS),
    Entry("learning_rate.rising_rates", TORCH),
    Entry("learning_rate.schedulers", JOINED, AMONG_RANKS),
    Entry("environment.processor_delays", TORCH, AMONG_RANKS),
    Entry("failures.handler_marks", JOINED, AMONG_RANKS),
    Entry("comparison.computed_values", JOINED, COMPARED),
)

RECORDING = frozenset(
    {
        *("processes.child_exits", "processes.exit_lines", "processes.spawned"),
        *("failures.uncaught", "failures.tracebacks", "compiled_code", "lifecycle"),
        *("rendezvous.setup_calls", "optimizer_step.steps_done"),
        *("collectives.interception", "collectives.waits", "collectives.reduce_ops"),
        *("collectives.gpu_waits", "processes.ray_workers"),
        *("collectives.batched_messages", "horovod.frameworks"),
    }
)
"""The probes of a job that is only recorded: of calls, and of how processes end."""

LAUNCHING = frozenset({"rendezvous.own_ports"})
"""What needs torch and is to be in a launcher, too: it opens the ranks' first store."""

LATE_IMPORTS = (
    "ray",
    "safetensors.torch",
    "torch._dynamo.trace_rules",
    "deepspeed.runtime.engine",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "horovod.torch.optimizer",
)
"""Modules of which probes of later stages are told, too."""

_active: dict[Entry, Probe] = {}
"""Those that were put in place."""

_launches = False
"""Whether this process only starts the others of the job, and trains nothing."""

_early: list[Entry] = []
"""Those that were told that the process is a rank, if it has no torch yet."""

_stepped: list[Callable[[Any], object]] = []


def is_simulated() -> bool:
    """Whether this process simulates one rank of a job, alone."""
    return SIMULATION_VARIABLE in os.environ


def start() -> None:
    """Install the probes of the first stage; called once, before the program runs."""
    global _launches
    _launches = bool(os.environ.pop(LAUNCHER_VARIABLE, ""))
    for _ in _reached(Stage.PROGRAM):
        pass
    names = {name for probe in _active.values() for name in probe.imports}
    AroundImports(
        {
            name: _after(name)
            for name in ("torch", *LATE_IMPORTS, *sorted(names - set(sys.modules)))
        }
    )


def _after(name: str) -> Callable[[Load, ModuleType], None]:
    """Tell of a module right after it was loaded."""

    def around(load: Load, module: ModuleType) -> None:
        load(module)
        if name == "torch":
            harmless(_torch_loaded)(module)
        else:
            _imported(name, module)

    return around


def _torch_loaded(torch: ModuleType) -> None:
    """Put in place what needs torch, and tell those of it that were there before."""
    for entry in _reached(Stage.TORCH):
        _tell_import(_active[entry], "torch", torch)
    if _early:
        for entry in _reached(Stage.JOINED):
            if entry not in _early:
                harmless(_active[entry].joined)()


def _imported(name: str, module: ModuleType) -> None:
    for probe in _in_order():
        _tell_import(probe, name, module)


def _tell_import(probe: Probe, name: str, module: ModuleType) -> None:
    if (callback := probe.imports.get(name)) is not None:
        harmless(callback)(module)


def joined() -> None:
    """Install the last stage; called when the process has become a rank.

    All of it needs torch: in a job without, it waits until that is imported.
    """
    if "torch" in sys.modules:
        for entry in _reached(Stage.JOINED):
            harmless(_active[entry].joined)()
        return
    _early.extend(entry for entry in ENTRIES if entry in _active)
    for entry in _early:
        harmless(_active[entry].joined)()


def _reached(stage: Stage) -> Iterator[Entry]:
    """Entries of a stage, once each is in place, and those of earlier stages between.

    Their order is that of `ENTRIES`.
    """
    for entry in ENTRIES:
        if entry.stage is stage and entry not in _active and entry.is_wanted():
            _bring_in(entry)
        if entry in _active:
            yield entry


@harmless
def _bring_in(entry: Entry) -> None:
    with own_imports.later():
        probe: Probe = importlib.import_module(entry.name).PROBE
    _active[entry] = probe
    if probe.stepped is not None:
        _stepped.append(probe.stepped)
    harmless(probe.install)()
    for name, callback in probe.imports.items():
        module = sys.modules.get(name)
        # What is being loaded, and has imported torch for that, is told of afterwards.
        loading = getattr(getattr(module, "__spec__", None), "_initializing", False)
        if module is not None and name != "torch" and not loading:
            harmless(callback)(module)


def _in_order() -> list[Probe]:
    return [_active[entry] for entry in ENTRIES if entry in _active]


def stepped(optimizer: object) -> None:
    """Call all probes' `stepped` after an optimizer step."""
    for tell in _stepped:
        tell(optimizer)


def flush() -> None:
    """Call all probes' `flush`, so that they write what they kept back."""
    for probe in _in_order():
        harmless(probe.flush)()


def reset() -> None:
    """Call all loaded probes' `reset`, so that they forget all state."""
    for entry in ENTRIES:
        if (module := sys.modules.get(entry.name)) is not None:
            harmless(module.PROBE.reset)()
