"""Records which models DeepSpeed trains on several ranks, each with its own samples.

Its engine averages gradients by itself, into shards, from which nobody else could tell
that ranks train one model.

Source: DeepSpeed 0.19.8, runtime/engine.py; `data_parallel_group` is set in `__init__`.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch.distributed as dist

from distdoctor.model.events import Wrapped
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_MOST_NAMES = 500


def _watch(module: ModuleType) -> None:
    """Right after `import deepspeed.runtime.engine`."""
    engine = module.DeepSpeedEngine
    made = engine.__init__

    @functools.wraps(made)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        made(self, *args, **kwargs)
        _tell(self)

    engine.__init__ = __init__


@harmless
def _tell(engine: Any) -> None:
    ranks = tuple(dist.get_process_group_ranks(engine.data_parallel_group))
    everyone = ranks == tuple(range(dist.get_world_size()))
    named = engine.module.named_parameters()
    names = [name for name, one in named if one.requires_grad][:_MOST_NAMES]
    event = Wrapped(
        how="deepspeed", parameters=tuple(names), ranks=() if everyone else ranks
    )
    RECORDER.tell(event, call_site(3))


PROBE = Probe(imports={"deepspeed.runtime.engine": _watch})
