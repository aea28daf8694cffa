"""Records how a rank joins a Horovod job, by `hvd.init`, and how it leaves.

`init` and `shutdown` of every framework end in methods of one class, which are
replaced. `init` returns when all ranks have come.

Source: Horovod 0.28.1, common/basics.py.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

from distdoctor.model.launcher_variables import rank_of
from distdoctor.probes import membership
from distdoctor.probes.harmless import harmless
from distdoctor.probes.horovod import named_operations
from distdoctor.probes.interruptions import is_interruption
from distdoctor.probes.recorder import RECORDER, blinded
from distdoctor.probes.rendezvous import meetings

_OPERATION = "hvd_init"

_sizes: list[int] = []
"""Number of ranks of the job that this process has joined, until it leaves."""


def watch(module: ModuleType) -> None:
    """Replace the methods, right after `horovod.common.basics` was loaded."""
    kind = module.__dict__["HorovodBasics"]
    made_init, made_shutdown = kind.init, kind.shutdown

    @functools.wraps(made_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.is_initialized():
            return made_init(self, *args, **kwargs)  # which does nothing then
        members: tuple[int, ...] = ()
        try:
            rank, size = rank_of(os.environ)
            if size > 1:
                membership.joins(rank, size)
                members = tuple(range(size))
        except Exception as error:  # Horovod will say what is wrong
            if is_interruption(error):
                raise
            blinded("hvd.init", error)
        result = meetings.around(
            _OPERATION, lambda: made_init(self, *args, **kwargs), members, ()
        )
        _joined(self)
        return result

    @functools.wraps(made_shutdown)
    def shutdown(self: Any, *args: Any, **kwargs: Any) -> Any:
        _leaving(self)
        return made_shutdown(self, *args, **kwargs)

    kind.init, kind.shutdown = init, shutdown


@harmless
def _joined(basics: Any) -> None:
    """The process is a rank. One that is alone is one if it was to be alone.

    Else its launcher's ranks were to meet, or torch makes it a rank of others.
    """
    if not basics.is_initialized():
        return
    is_anothers = rank_of(os.environ)[1] > 1 or RECORDER.writer is not None
    if basics.size() < 2 and is_anothers:
        return
    named_operations.join_all()
    _sizes[:] = [basics.size()]
    backend = "mpi" if basics.mpi_enabled() else "gloo"
    membership.become(basics.rank(), basics.size(), f"horovod ({backend})")


@harmless
def _leaving(basics: Any) -> None:
    """Before: peers notice at once. It is called again when Python ends."""
    if basics.is_initialized() and _sizes:
        membership.leave(_sizes.pop())
