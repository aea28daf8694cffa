"""Tells the stages of a pipeline apart, of which a rank may have several.

They are made of the same layers, so that the names of their parameters are the same.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from distdoctor.probes.live_objects import living

_MODULE, _BASE = "torch.distributed.pipelining.stage", "_PipelineStageBase"


def prefixes() -> dict[int, str]:
    """By the `id` of a stage's module, what its names begin with.

    Empty where this process has one stage at the most.
    """
    kind: type | None = getattr(sys.modules.get(_MODULE), _BASE, None)
    if kind is None:
        return {}
    found: dict[int, str] = {}
    stages: list[Any] = living(kind)
    for stage in stages:
        module = getattr(stage, "submod", None)
        if isinstance(module, nn.Module):
            found[id(module)] = f"stage{getattr(stage, 'stage_index', '')}."
    return found if len(found) > 1 else {}
