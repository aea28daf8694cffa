"""Opens the servers of horovodrun on the loopback interface alone.

horovodrun tells its ranks by a server without a password where they meet, and opens it
on all interfaces of the machine, whatever `--network-interface` says.

Source: Horovod 0.28.1, runner/util/network.py (`find_port`).
"""

from __future__ import annotations

import functools
import os
import sys
from types import ModuleType
from typing import Any

from distdoctor.journal.environment import LOOPBACK_VARIABLE
from distdoctor.probes.probe import Probe

_LOOPBACK = "127.0.0.1"
_HOROVODRUN = "horovod.runner.launch"
_SERVERS = ("RendezvousHTTPServer", "KVStoreHTTPServer")


def _close_off(module: ModuleType) -> None:
    """Bind a module's servers to loopback, in the launcher that distdoctor started."""
    if LOOPBACK_VARIABLE not in os.environ or _HOROVODRUN not in sys.orig_argv[:4]:
        return
    for name in _SERVERS:
        _bind_to_loopback(getattr(module, name))


def _bind_to_loopback(server: Any) -> None:
    made = server.__init__

    @functools.wraps(made)
    def __init__(  # noqa: N807
        self: Any, addr: tuple[str, int], *args: Any, **kwargs: Any
    ) -> None:
        host, port = addr
        made(self, (host or _LOOPBACK, port), *args, **kwargs)

    server.__init__ = __init__


PROBE = Probe(imports={"horovod.runner.http.http_server": _close_off})
