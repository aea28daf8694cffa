"""The connection between the head of a job and its nodes: whoever has the token is in.

Both sides make the same keys of the token, so that what goes over the network is
encrypted, and nobody else is heard. What is larger than any message is not taken.
"""

from __future__ import annotations

import hashlib
import secrets
from contextlib import suppress

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85

from distdoctor.errors import LaunchRefused

LEAST_TOKEN = 32
"""Letters of a token; fewer could be guessed by who has listened."""

_LARGEST_BYTES = 1 << 27
_WAITING = 10_000  # messages for one peer


def new_token() -> str:
    """A token that nobody can guess."""
    return secrets.token_hex(32)


def require_token(token: str) -> None:
    """Raise unless a token is long enough.

    Raises:
        LaunchRefused: It is not.
    """
    if len(token) < LEAST_TOKEN:
        raise LaunchRefused(
            f"DISTDOCTOR_TOKEN has {len(token)} letters: set it to the token that the "
            f"head prints, or on all nodes to the same {LEAST_TOKEN} random letters or "
            "more (openssl rand -hex 32)"
        )


def _keys(token: str, side: str) -> tuple[bytes, bytes]:
    """The public and the secret key of one side."""
    data = hashlib.blake2b(token.encode(), digest_size=32, person=side.encode())
    secret = z85.encode(data.digest())
    return zmq.curve_public(secret), secret


class HeadSocket:
    """The head's end, which all nodes are connected to.

    Args:
        host: The address to listen at, and no other.
        port: The port; 0: any that is free.
        token: What nodes have to know.

    Attributes:
        port: The port.

    Raises:
        LaunchRefused: It cannot listen there.
    """

    def __init__(self, host: str, port: int, token: str) -> None:
        require_token(token)
        self._context = zmq.Context()
        self._guard = ThreadAuthenticator(self._context)
        self._guard.start()
        self._guard.configure_curve_callback(credentials_provider=_Nodes(token))
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.curve_server = True
        self._socket.curve_publickey, self._socket.curve_secretkey = _keys(
            token, "head"
        )
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a node that comes again
        self._socket.setsockopt(zmq.MAXMSGSIZE, _LARGEST_BYTES)
        self._socket.setsockopt(zmq.SNDHWM, _WAITING)
        self._socket.setsockopt(zmq.LINGER, 0)
        try:
            self._socket.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            self.close()
            raise LaunchRefused(
                f"cannot listen at {host}:{port}: {error.strerror}; give an address of "
                "this machine with --listen"
            ) from error
        name = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(name, bytes)
        self.port = int(name.rstrip(b"\0").rpartition(b":")[2])

    def receive(self, wait_s: float) -> tuple[bytes, bytes] | None:
        """Who said something, and what; None if nobody did in time."""
        if not self._socket.poll(round(wait_s * 1000)):
            return None
        frames = self._socket.recv_multipart()
        return (frames[0], frames[1]) if len(frames) == 2 else None

    def send(self, node: bytes, data: bytes) -> None:
        """Say something to a node; what it has no room for, or who is gone, is lost."""
        with suppress(zmq.ZMQError):
            self._socket.send_multipart([node, data], zmq.DONTWAIT)

    def close(self, linger_s: float = 0.0) -> None:
        """Close it; what was said last has so long to get out."""
        self._socket.close(round(linger_s * 1000))
        self._guard.stop()
        self._context.term()


class NodeSocket:
    """A node's end.

    Args:
        address: Of the head, as HOST:PORT.
        token: The token.

    Raises:
        LaunchRefused: That is no address, or no token.
    """

    def __init__(self, address: str, token: str) -> None:
        require_token(token)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.identity = secrets.token_bytes(8).replace(b"\0", b"\1")
        self._socket.curve_serverkey = _keys(token, "head")[0]
        self._socket.curve_publickey, self._socket.curve_secretkey = _keys(
            token, "node"
        )
        self._socket.setsockopt(zmq.MAXMSGSIZE, _LARGEST_BYTES)
        self._socket.setsockopt(zmq.SNDHWM, _WAITING)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IPV6, 1)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        try:
            self._socket.connect(f"tcp://{address}")
        except zmq.ZMQError as error:
            self.close()
            raise LaunchRefused(
                f"{address!r} is no address: give the HOST:PORT that the head prints"
            ) from error

    def receive(self, wait_s: float) -> bytes | None:
        """What the head said; None if it said nothing in time."""
        if not self._socket.poll(round(wait_s * 1000)):
            return None
        frames = self._socket.recv_multipart()
        return frames[0] if len(frames) == 1 else None

    def send(self, data: bytes) -> None:
        """Say something to the head; if too much is waiting, it is lost."""
        with suppress(zmq.ZMQError):
            self._socket.send(data, zmq.DONTWAIT)

    def close(self, linger_s: float = 0.0) -> None:
        """Close it; what was said last has so long to get out."""
        self._socket.close(round(linger_s * 1000))
        self._context.term()


class _Nodes:
    """Tells the library who is let in."""

    def __init__(self, token: str) -> None:
        self._public = _keys(token, "node")[0]

    def callback(self, _domain: str, key: bytes) -> bool:
        """Whether a key is the nodes'."""
        return key == self._public
