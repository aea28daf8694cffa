"""Records fingerprints of what models are called with, at a few steps.

A hook for every forward pass costs; this one is there only from the end of a step to
the first call of a model that is trained.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from distdoctor.model.observations.data import Fed
from distdoctor.probes.call_sites import call_site, frame_above
from distdoctor.probes.data import sample_fingerprints
from distdoctor.probes.harmless import harmless
from distdoctor.probes.optimizer_step import optimizers
from distdoctor.probes.patching import unseen_by_compilers
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replicas import trained_models

_MOST_CALLS = 1000  # of modules, until one is a model that is trained


class _Look:
    """A step whose first forward pass of a model is awaited."""

    def __init__(self) -> None:
        self.handle: Any = None
        self.step = self.calls = 0
        self.wanted: set[int] = set()

    def begin(self, step: int) -> None:
        self.end()
        wrappers = [id(wrapper) for wrapper in optimizers.wrappers()]
        bare = [id(model.module) for model in trained_models.models()]
        self.wanted = {*wrappers, *bare}
        self.step, self.calls = step, 0
        self.handle = register_module_forward_pre_hook(
            unseen_by_compilers(_called, torch.nn.Module._call_impl)
        )

    def end(self) -> None:
        if self.handle is not None:
            self.handle.remove()
            self.handle = None


_look = _Look()


def watch(step: int) -> None:
    """Record the inputs of the next model that is called.

    Args:
        step: Number of the optimizer's step that it is for.
    """
    _look.begin(step)


def reset() -> None:
    """Forget all state: the process starts to play in another run."""
    _look.end()


@harmless
def _called(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
    look = _look
    look.calls += 1
    found = id(module) in look.wanted
    if found and torch.is_grad_enabled() and module.training:
        print_ = sample_fingerprints.of_whole([*args, *_named()])
        observation = Fed(step=look.step, inputs=print_ or 0)
        RECORDER.observe(observation, call_site(3))
    if found or look.calls >= _MOST_CALLS:
        look.end()


def _named() -> list[Any]:
    """What the module is called with by name, which such hooks are not told."""
    frame = frame_above(4)
    named = None if frame is None else frame.f_locals.get("kwargs")
    return list(named.values()) if isinstance(named, dict) else []


PROBE = Probe(reset=reset)
