"""Records backward passes run under autocast, and casts that outlive a step.

Only the first passes under autocast are looked at; of each other one a flag is read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from distdoctor.model.observations.amp import LoweredBackward, StaleCast
from distdoctor.probes.call_sites import OWN, call_site, frame_above, is_users
from distdoctor.probes.harmless import harmless
from distdoctor.probes.optimizer_step import backward_hooks, optimizers
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_TORCH = torch.__file__.rpartition("__init__")[0]

_PASSES = 16  # under autocast that are looked at

_MOST_NODES = 2_000  # of a loss's graph

_MOST_CASTS = 8  # that are remembered from one pass to the next

_INPUTS, _CREATES_GRAPH = 4, 3
"""Positions among the engine's arguments (torch 2.8 to 2.13, torch/autograd)."""


class Lowering:
    """What was seen of backward passes under autocast so far.

    Attributes:
        passes: Backward passes under autocast.
        lines: The user's lines that called them.
        casts: Casts of parameters in the last pass's graph, with the parameter and
            its version at that time.
        reported: Whether a cast that outlived a step was already recorded.
    """

    def __init__(self) -> None:
        self.passes = 0
        self.lines: set[str] = set()
        self.casts: list[tuple[Any, Tensor, int]] = []
        self.reported = False

    def begin(self, args: tuple[Any, ...]) -> None:
        """Called before each backward pass; on the hot path."""
        if self.passes < _PASSES and args and args[0]:
            loss = args[0][0]
            if isinstance(loss, Tensor) and torch.is_autocast_enabled(loss.device.type):
                self._lowered(args, loss.device.type)

    def _lowered(self, args: tuple[Any, ...], kind: str) -> None:
        if RECORDER.writer is None or not _is_for_training(args):
            return
        self.passes += 1
        if not _is_called_by_user():
            return
        site = call_site(4)
        if site not in self.lines:
            self.lines.add(site)
            dtype = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
            observation = LoweredBackward(device=kind, dtype=dtype)
            RECORDER.observe(observation, site)
        if not self.reported:
            self._look(args[0][0], site)
        if self.reported or self.passes >= _PASSES:
            self.casts = []

    def _look(self, loss: Tensor, site: str) -> None:
        """Whether the graph goes through what was made before a step."""
        now = _casts(loss)
        nodes = {node for node, _ in now}
        stale = [
            parameter
            for node, parameter, version in self.casts
            if node in nodes and parameter._version > version
        ]
        if stale:
            self.reported = True
            names = tuple(optimizers.names_of(stale))
            observation = StaleCast(passes=self.passes, names=names)
            RECORDER.observe(observation, site)
            return
        self.casts = [(node, tensor, tensor._version) for node, tensor in now]


def _is_for_training(args: tuple[Any, ...]) -> bool:
    """Whether gradients go to parameters, and not into a loss.

    Forces, penalties and inner loops ask for gradients inside of a forward pass.
    """
    return len(args) <= _INPUTS or not (args[_CREATES_GRAPH] or args[_INPUTS])


def _is_called_by_user() -> bool:
    """Whether a line of the user's called torch's backward, and no library's."""
    frame = frame_above(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_TORCH, OWN)):
            return is_users(file)
        frame = frame.f_back
    return False


def _casts(loss: Tensor) -> list[tuple[Any, Tensor]]:
    """Copies of parameters in another dtype that a loss depends on, some of them."""
    found: list[tuple[Any, Tensor]] = []
    waiting = [] if loss.grad_fn is None else [loss.grad_fn]
    seen = set(waiting)
    for node in waiting:
        before = [one for one, _ in node.next_functions if one is not None]
        if len(before) == 1 and node.name() == "ToCopyBackward0":
            leaf = getattr(before[0], "variable", None)
            if leaf is not None:
                found.append((node, leaf))
        if len(found) >= _MOST_CASTS or len(seen) >= _MOST_NODES:
            break
        new = [one for one in before if one not in seen]
        seen.update(new)
        waiting.extend(new)
    return found


_lowering = Lowering()


def install() -> None:
    """Install the probe; called at the first `init_process_group`."""

    @harmless
    def begin(args: tuple[Any, ...]) -> None:
        _lowering.begin(args)

    backward_hooks.watch(begin=begin)


def reset() -> None:
    """Forget all state: the process starts to play in another run."""
    global _lowering
    _lowering = Lowering()


PROBE = Probe(install=install, reset=reset)
