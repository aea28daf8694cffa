"""Records which sends and receives were given to one `batch_isend_irecv`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from distdoctor.probes.patching import replace_everywhere
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER


def install() -> None:
    """Wrap `batch_isend_irecv`, wherever torch's modules hold it."""
    replace_everywhere(dist.batch_isend_irecv, _batch_isend_irecv)


def _batch_isend_irecv(made: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Its calls are one exchange: in NCCL their order among them does not count."""
    thread = RECORDER.thread()
    RECORDER.batching.add(thread)
    try:
        return made(*args, **kwargs)
    finally:
        RECORDER.batching.discard(thread)


PROBE = Probe(install=install)
