"""Tells the stages of a pipeline apart, of which a rank may have several.

They are made of the same layers, so that the names of their parameters are the same.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from torch import nn

from distdoctor.probes.live_objects import living
from distdoctor.probes.probe import Probe

_MODULE, _BASE = "torch.distributed.pipelining.stage", "_PipelineStageBase"

_MOST_LOOKS = 24  # at all objects: there may be an optimizer for each parameter

_looks = 0
_found: list[weakref.ref[Any]] = []


def prefixes() -> dict[int, str]:
    """By the `id` of a stage's module, what its names begin with.

    Empty where this process has one stage at the most.
    """
    found: dict[int, str] = {}
    for stage in _stages():
        module = getattr(stage, "submod", None)
        if isinstance(module, nn.Module):
            found[id(module)] = f"stage{getattr(stage, 'stage_index', '')}."
    return found if len(found) > 1 else {}


def _stages() -> list[Any]:
    global _looks
    kind: type | None = getattr(sys.modules.get(_MODULE), _BASE, None)
    if kind is None:
        return []
    if _looks < _MOST_LOOKS:
        _looks += 1
        _found[:] = map(weakref.ref, living(kind))
    return [stage for one in _found if (stage := one()) is not None]


def reset() -> None:
    """Forget all state: the process starts to play in another run."""
    global _looks
    _looks = 0
    _found.clear()


PROBE = Probe(reset=reset)
