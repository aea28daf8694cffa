"""Records the index of a `torch.multiprocessing.spawn` child, and its failure."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from distdoctor.probes.failures.uncaught import reporting
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER


def install() -> None:
    """Wrap the function that each child runs; there is no public hook."""
    # torch.multiprocessing.spawn is also a function of that name.
    torch_spawn = importlib.import_module("torch.multiprocessing.spawn")
    wrapped = torch_spawn._wrap

    @functools.wraps(wrapped)
    def _wrap(fn: Callable[..., Any], *args: Any) -> Any:
        RECORDER.spawned = args[0] if args and isinstance(args[0], int) else -1
        return wrapped(functools.partial(reporting, fn), *args)

    torch_spawn._wrap = _wrap  # type: ignore[attr-defined]


PROBE = Probe(install=install)
