"""Writes fingerprints of all computed values, so that two runs can be compared.

Only where that is asked for: all is read at each step, which costs accordingly. Before
each step of an optimizer it is told where the rank stood (random states, learning rate,
weights, the optimizer's state) and what was computed since the step before (what models
were given, what their modules gave, gradients).
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from distdoctor.journal.environment import PAUSE_VARIABLE
from distdoctor.model.observations.comparison import Traced
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.checkpoints import restored_state
from distdoctor.probes.checkpoints.checkpoint_contents import number_of
from distdoctor.probes.collectives.parking import park
from distdoctor.probes.comparison.forward_hooks import tell, tensors_in
from distdoctor.probes.fingerprints import exact
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replicas import trained_models
from distdoctor.probes.rng.stream_states import states

_MOST_TENSORS = 5_000  # of one step
_MOST_PRINTS = 500_000  # of a process; then only joint fingerprints are told
_MOST_STEPS = 100_000

_Parts = dict[str, int]


class Trace:
    """Collects fingerprints of inputs, outputs and gradients between two steps."""

    def __init__(self) -> None:
        self._on = False
        self._pause = 0
        self._modules: weakref.WeakKeyDictionary[nn.Module, str] = (
            weakref.WeakKeyDictionary()
        )
        self._roots: list[weakref.ref[nn.Module]] = []
        self._depth = 0  # of modules that are inside `forward`
        self._fed = False  # the outermost of them was seen to be given tensors
        self._step = self._reported = 0
        self._before: _Parts = {}  # where the rank stood
        self._since: _Parts = {}  # what was computed

    def begin(self) -> None:
        """Start tracing, because two runs are to be compared."""
        self._on = True
        pause = os.environ.get(PAUSE_VARIABLE, "")
        self._pause = int(pause) if pause.isdigit() else 0

    def wrapped(self, model: nn.Module) -> None:
        """Called before a model is wrapped: its module names are the user's."""
        if self._on:
            self._know(model)

    # --- forward passes ---

    def entering(self, module: nn.Module, given: Any) -> None:
        """Called before the forward pass of a module."""
        self._depth += 1
        if self._depth == 1:
            self._fed = False
        if not self._fed and torch.is_grad_enabled():
            self._given(module, given)

    def leaving(self, module: nn.Module, output: Any) -> None:
        """Called after the forward pass of a module, also if it raised."""
        self._depth = max(0, self._depth - 1)
        if torch.is_grad_enabled():
            self._computed(module, output)

    @harmless
    def _given(self, module: nn.Module, given: Any) -> None:
        if not self._before:
            self._before = {f"random {name}": n for name, n in states({}).items()}
        if trained_models.bare(module) not in self._modules:
            self._know(trained_models.bare(module))
        for tensor in tensors_in(given):  # none if they are given by keyword
            self._fed = True
            self._add(f"input {type(trained_models.bare(module)).__name__}", tensor)

    @harmless
    def _computed(self, module: nn.Module, output: Any) -> None:
        name = self._modules.get(module)
        if name is not None:
            for tensor in tensors_in(output):
                self._add(f"output {name}", tensor)
                break

    def _know(self, root: nn.Module) -> None:
        """Name all modules of a model; those of the first have no prefix."""
        prefix = type(root).__name__ if self._roots else ""
        self._roots.append(weakref.ref(root))
        for name, module in root.named_modules():
            words = filter(None, (prefix, name))
            self._modules.setdefault(module, ".".join(words) or type(root).__name__)

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        if len(self._since) < _MOST_TENSORS:
            self._since[_free(self._since, name)] = exact.of_tensor(tensor)

    # --- steps ---

    def stepping(self, optimizer: Any) -> None:
        """Called before an optimizer step: write the trace since the last one."""
        if self._pause and self._step >= self._pause:
            if RECORDER.writer is not None:
                RECORDER.writer.step()
            park()
        if self._on and self._step < _MOST_STEPS:
            self._tell(optimizer)
        self._step += 1
        self._before, self._since = {}, {}

    @harmless
    def _tell(self, optimizer: Any) -> None:
        prints = self._standing(optimizer) | self._since
        joint = _joined(prints)
        self._reported += len(prints)
        prints = joint if self._reported > _MOST_PRINTS else joint | prints
        groups = optimizer.param_groups
        traced = Traced(
            step=self._step + 1,
            names=tuple(prints),
            prints=tuple(prints.values()),
            lr=_finite(groups[0].get("lr", -1.0)) if groups else -1.0,
            scale=_finite(restored_state.scale()),
        )
        RECORDER.observe(traced, call_site(3))

    def _standing(self, optimizer: Any) -> _Parts:
        """Where the rank stands; gradients are added to what was computed."""
        prints = self._before or {f"random {name}": n for name, n in states({}).items()}
        groups = optimizer.param_groups
        prints["rate"] = exact.of_value([str(group.get("lr")) for group in groups])
        prints["scale"] = exact.of_value(restored_state.scale())
        held = [one for group in groups for one in group["params"]]
        names = self._names(held)
        of_state: _Parts = {}
        for name, one in list(zip(names, held, strict=True))[:_MOST_TENSORS]:
            prints[_free(prints, f"weights {name}")] = exact.of_tensor(one)
            if one.grad is not None:
                self._add(f"gradient {name}", one.grad)
            if one in optimizer.state:
                parts = list(_printed(optimizer.state[one]))
                of_state[_free(of_state, f"state {name}")] = exact.joined(parts)
        for name, buffer in self._buffers():
            prints[_free(prints, f"buffer {name}")] = exact.of_tensor(buffer)
        return prints | of_state

    def _names(self, held: list[torch.Tensor]) -> list[str]:
        names: dict[int, str] = {}
        for root in self._alive():
            prefix = f"{self._modules[root]}." if names else ""
            for name, one in root.named_parameters():
                names.setdefault(id(one), prefix + name)
        return [names.get(id(one), str(at)) for at, one in enumerate(held)]

    def _buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        for root in self._alive():
            yield from root.named_buffers()

    def _alive(self) -> list[nn.Module]:
        return [one for root in self._roots if (one := root()) is not None]


def _free(known: Mapping[str, int], name: str) -> str:
    """A name that is not taken: the second of them is `name #2`."""
    key, n = name, 1
    while key in known:
        n += 1
        key = f"{name} #{n}"
    return key


def _joined(prints: _Parts) -> _Parts:
    """One fingerprint for all of a sort; random streams stay apart."""
    together: dict[str, list[int]] = {}
    for name, value in prints.items():
        what = name if name.startswith("random ") else name.partition(" ")[0]
        together.setdefault(what, []).append(value)
    return {what: exact.joined(values) for what, values in together.items()}


def _finite(value: Any) -> float:
    number = number_of(value)
    return number if abs(number) < float("inf") else -1.0


def _printed(state: Mapping[str, Any]) -> Iterable[int]:
    for name in sorted(state, key=str):
        value = state[name]
        if isinstance(value, torch.Tensor):
            yield exact.of_tensor(value)
        else:
            yield exact.of_value([str(name), str(value)])


TRACE = Trace()


def install() -> None:
    """Start tracing when the rank joins, where two runs are to be compared."""
    TRACE.begin()
    tell(TRACE)


PROBE = Probe(install=install)
