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
    "horovod.common.basics": "initialisation",
    "horovod.torch.mpi_ops": "torch_operations",
    "horovod.tensorflow.mpi_ops": "tensorflow_operations",
    "tensorflow.python.eager.polymorphic_function.concrete_function": "graph_calls",
    "keras.src.optimizers.optimizer": "keras_variables",
    "keras.src.optimizers.legacy.optimizer_v2": "keras_variables",
}
"""By the full name of a module of theirs, the module here that watches it."""


def _watcher(name: str) -> Callable[[ModuleType], None]:
    def loaded(module: ModuleType) -> None:
        importlib.import_module(f"{_HERE}.{name}").watch(module)

    return loaded


def _reset() -> None:
    """Forget all state: the process starts to play in another run."""
    for name, function in (
        ("named_operations", "reset_all"),
        ("keras_variables", "forget"),
    ):
        module = sys.modules.get(f"{_HERE}.{name}")
        if module is not None:
            module.__dict__[function]()


PROBE = Probe(
    imports={name: _watcher(here) for name, here in _WATCHED.items()}, reset=_reset
)
