"""Loads the probes of Horovod as soon as a job loads what they watch, and no earlier.

Every Python process of the job passes through here, most without Horovod, and a job may
have torch, or TensorFlow, or both.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType

from distdoctor.probes.probe import Probe

_HERE = "distdoctor.probes.horovod"

_WATCHED = {
    "horovod.common.basics": "initialisation.watch",
    "horovod.torch.mpi_ops": "torch_operations.watch",
    "horovod.tensorflow.mpi_ops": "tensorflow_operations.watch",
    "tensorflow.python.eager.polymorphic_function.concrete_function": (
        "graph_calls.watch"
    ),
    "tensorflow.python.data.ops.iterator_ops": "tensorflow_pipelines.watch_iterators",
    "tensorflow.python.data.ops.dataset_ops": "tensorflow_pipelines.watch_datasets",
    "keras.src.optimizers.optimizer": "keras_variables.watch",
    "keras.src.optimizers.legacy.optimizer_v2": "keras_variables.watch",
}
"""By the full name of a module of theirs, the function here that watches it."""


def _watcher(name: str) -> Callable[[ModuleType], None]:
    module_name, _, function = name.rpartition(".")

    def loaded(module: ModuleType) -> None:
        importlib.import_module(f"{_HERE}.{module_name}").__dict__[function](module)

    return loaded


def _reset() -> None:
    """Forget all state: the process starts to play in another run."""
    _call("named_operations", "reset_all")
    _call("keras_variables", "forget")
    _call("tensorflow_pipelines", "forget")


def _flush() -> None:
    """Write what was kept back."""
    _call("tensorflow_pipelines", "flush")


def _call(name: str, function: str) -> None:
    """Call a function of a module here, if that was loaded."""
    module = sys.modules.get(f"{_HERE}.{name}")
    if module is not None:
        module.__dict__[function]()


PROBE = Probe(
    imports={name: _watcher(here) for name, here in _WATCHED.items()},
    flush=_flush,
    reset=_reset,
)
