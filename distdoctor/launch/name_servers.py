"""Whether a job stands still because one of its processes waits for a name server.

The process that keeps a TCPStore looks up the name of each one that connects, in its
only thread, and until the answer comes it serves nobody. A lost question is asked again
after 5 s, and may be lost again: then all ranks stand in `init_process_group`, use no
processor, and find each other all the same once the last name is known.

Sources: https://github.com/pytorch/pytorch/issues/159007; resolv.conf(5), `timeout` and
`attempts`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from itertools import takewhile

import psutil

_PORT = 53  # RFC 1035


def name_server_of(pids: Iterable[int]) -> str:
    """The address of a name server for which some process waits; "": none does.

    The C library's resolver has a socket to it only until its question is answered.

    Args:
        pids: Processes of ranks; who started them, below this one, is asked as well: it
            may be what keeps the store.
    """
    asked: set[int] = set()
    for pid in pids:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            for one in (process, *takewhile(_is_of_the_job, process.parents())):
                if one.pid in asked:
                    break
                asked.add(one.pid)
                if address := _asks(one):
                    return address
    return ""


def _is_of_the_job(process: psutil.Process) -> bool:
    return process.pid not in (os.getpid(), 1)


def _asks(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        for socket in process.net_connections(kind="udp"):
            match socket.raddr:
                case (str(address), port) if port == _PORT:
                    return address
    return ""
