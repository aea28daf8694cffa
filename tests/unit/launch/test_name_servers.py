"""Which processes wait for a name server."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from distdoctor.launch.name_servers import name_server_of

_ASKS = """
import socket, sys, subprocess
asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asking.connect(("127.0.0.1", {port}))
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"])
print(child.pid, flush=True)
child.wait()
"""


@contextmanager
def job(port: int) -> Iterator[tuple[int, int]]:
    """A process with a socket to a port, as a resolver's, and one that it started."""
    process = subprocess.Popen(
        [sys.executable, "-c", _ASKS.format(port=port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        process.stdin.close()


@pytest.mark.parametrize(("port", "server"), [(53, "127.0.0.1"), (5353, "")])
def test_who_has_a_socket_to_a_name_server_waits_for_it(port: int, server: str) -> None:
    with job(port) as (launcher, rank):
        assert name_server_of([launcher]) == server
        assert name_server_of([rank]) == server  # its launcher may keep the store


def test_who_has_ended_waits_for_nobody() -> None:
    with job(53) as (launcher, rank):
        pass
    assert name_server_of([launcher, rank]) == ""
    assert name_server_of([]) == ""
