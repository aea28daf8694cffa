"""Ranks of a test that meet by Horovod instead of torch.distributed.

They are the forked processes that other tests have, too: each is told its place by the
variables that horovodrun sets, and they meet at the rendezvous server that Horovod
brings, in the pytest process. `hvd.init` takes a fraction of a second then, and
horovodrun seconds.

Source: Horovod 0.28.1, runner/gloo_run.py and runner/http/http_server.py.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

_HERE = "127.0.0.1"
_HOST = "localhost"
_LOOK_S = 0.05  # of the server, whether it is to end

_OF_TORCH = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


class Rendezvous:
    """A rendezvous server for one test, on the loopback interface.

    Attributes:
        port: Where it listens.

    Args:
        ranks: How many are to meet.
    """

    def __init__(self, ranks: int) -> None:
        from horovod.runner.http.http_server import (
            RendezvousHandler,
            RendezvousHTTPServer,
        )

        self._server = RendezvousHTTPServer((_HERE, 0), RendezvousHandler, 0)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        slots = [
            SimpleNamespace(
                hostname=_HOST,
                size=ranks,
                local_size=ranks,
                local_rank=rank,
                cross_size=1,
            )
            for rank in range(ranks)
        ]
        self._server.init(slots)
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            args=(_LOOK_S,),
            name="distdoctor-rendezvous",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Let it end."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def horovod_variables(rank: int, ranks: int, port: int) -> dict[str, str]:
    """The variables that horovodrun sets for a rank, on one machine.

    Args:
        rank: The rank.
        ranks: How many there are.
        port: Of the rendezvous server on this machine.
    """
    place = {
        **dict.fromkeys(("HOROVOD_RANK", "HOROVOD_LOCAL_RANK"), str(rank)),
        **dict.fromkeys(("HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE"), str(ranks)),
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
    }
    return {
        **place,
        "HOROVOD_HOSTNAME": _HOST,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": "lo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": _HERE,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
    }


def tell_place(rank: int, ranks: int, port: int) -> None:
    """Tell this process which rank it is, in its environment.

    Args:
        rank: The rank.
        ranks: How many there are.
        port: Of the rendezvous server; 0: they meet by torch.distributed.
    """
    if not port:
        for name in horovod_variables(rank, ranks, port):
            os.environ.pop(name, None)
        numbers = (rank, rank, ranks, ranks)
        os.environ.update(zip(_OF_TORCH, map(str, numbers), strict=True))
        return
    for name in _OF_TORCH:
        os.environ.pop(name, None)
    os.environ.update(horovod_variables(rank, ranks, port))


def join_by_horovod() -> None:
    """Join the job of the environment by `hvd.init`."""
    import horovod.torch as hvd

    hvd.init()


def leave_horovod() -> None:
    """Leave Horovod's job, if this process is in one; all of its ranks must."""
    hvd: Any = sys.modules.get("horovod.torch")
    with suppress(AttributeError):  # its import has failed half-way
        if hvd is not None and hvd.is_initialized():
            hvd.shutdown()
