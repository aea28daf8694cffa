"""Messages between pytest and its ranks: whole Python objects over a socket.

Objects are pickled: they are those of the user's tests, such as examples of hypothesis,
and no other form takes them all. That gives nobody a right: both ends are processes of
one session and one user, which run the same tests, and the socket between them has no
name by which another process could come to it.

Neither side ever waits for the other without an end: a rank may be stopped in the
middle of a message, or gone.
"""

from __future__ import annotations

import pickle
import select
import socket
import struct
import time
from typing import Any

_LENGTH = struct.Struct("<Q")
_PIECE_BYTES = 1 << 20
_SEND_S = 30.0  # for the other side to take a message


class NotPicklable(Exception):
    """An object that cannot be sent to another process; says what its code raised."""


def pickled(value: object) -> bytes:
    """An object as it is sent to another process.

    Raises:
        NotPicklable: It cannot be sent.
    """
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise NotPicklable(repr(error)) from error


class Wire:
    """One end of a connection between pytest and a rank.

    Attributes:
        closed: Whether the other end is gone.

    Args:
        end: A connected stream socket; it is this object's from now on.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._taken = bytearray()
        self.closed = False

    def fileno(self) -> int:
        """Descriptor of the socket, for `select`."""
        return self._end.fileno()

    def close(self) -> None:
        """Close this end."""
        self.closed = True
        self._end.close()

    def send(self, message: Any) -> None:
        """Send a message.

        Raises:
            OSError: The other end is gone, or does not take it in time.
            NotPicklable: It cannot be sent; nothing was.
        """
        data = pickled(message)
        rest = memoryview(_LENGTH.pack(len(data)) + data)
        end = time.monotonic() + _SEND_S
        while rest:
            try:
                rest = rest[self._end.send(rest) :]
            except BlockingIOError:
                left = end - time.monotonic()
                if left <= 0:
                    raise TimeoutError("a message was not taken") from None
                select.select([], [self._end], [], left)

    def receive(self) -> list[Any]:
        """The messages that have arrived whole; does not wait."""
        while not self.closed and self._fill():
            pass
        return list(self._whole())

    def wait(self) -> Any:
        """The next message, whenever it comes.

        Raises:
            EOFError: The other end is gone.
        """
        while True:
            for message in self._whole():
                return message
            if self.closed:
                raise EOFError
            select.select([self._end], [], [])
            self._fill()

    def _fill(self) -> bool:
        """Take what has arrived; whether anything had, be it the end."""
        try:
            piece = self._end.recv(_PIECE_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            piece = b""
        self.closed = not piece
        self._taken += piece
        return True

    def _whole(self) -> Any:
        while len(self._taken) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._taken)
            end = _LENGTH.size + length
            if len(self._taken) < end:
                return
            data = bytes(self._taken[_LENGTH.size : end])
            del self._taken[:end]
            yield pickle.loads(data)  # noqa: S301 - from a process of our own
