"""Tells whether a launcher would restart the ranks after a failure."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import psutil


def restarts_left(pids: Iterable[int]) -> int:
    """How many more times the launcher of these ranks would restart them.

    Ray does so as often as the program says, which cannot be seen here, and ends the
    others where it does not: there is one more, for all that is known.

    Source: torchrun tells its workers by these variables (torch 2.8 to 2.13,
    torch/distributed/elastic/agent/server/local_elastic_agent.py); Ray's have that of
    the process that starts them (Ray 2.60, as seen).
    """
    for pid in pids:
        with suppress(psutil.Error, KeyError, ValueError):
            environment = psutil.Process(pid).environ()
            if "RAY_RAYLET_PID" in environment:
                return 1
            allowed = int(environment["TORCHELASTIC_MAX_RESTARTS"])
            return max(allowed - int(environment["TORCHELASTIC_RESTART_COUNT"]), 0)
    return 0
