"""Has a process that trains with DataParallel watched as the only rank of its job.

It joins nobody: its replicas are threads, each with a device. Without this, a script
that calls no `init_process_group` would have no journal.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch.distributed as dist
from torch.nn import DataParallel

from distdoctor.model.events import DATA_PARALLEL
from distdoctor.model.launcher_variables import rank_of
from distdoctor.probes import membership
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER


def install() -> None:
    """Wrap the constructor, right after `import torch`."""
    made = DataParallel.__init__

    @functools.wraps(made)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        _join()

    DataParallel.__init__ = initialise  # type: ignore[method-assign]


@harmless
def _join() -> None:
    """The process is a job of its own, unless it is a rank, or is to become one."""
    is_anothers = rank_of(os.environ)[1] > 1 or RECORDER.writer is not None
    if not is_anothers and not (dist.is_available() and dist.is_initialized()):
        membership.become(0, 1, DATA_PARALLEL)


PROBE = Probe(install=install)
