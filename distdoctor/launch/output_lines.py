"""Cuts what a process writes into what can be passed on: lines, and states of bars."""

from __future__ import annotations

LONGEST_HELD = 64 * 1024
"""Bytes of a line that are waited for; what is longer is passed on in pieces."""


class UnendedLine:
    """Holds back a line of one channel until it has ended.

    A carriage return begins the line anew, as bars do. On a screen that is redrawn only
    the last state counts, and else each state is passed on.

    Args:
        redrawn: Whether states of a line that has not ended are shown otherwise.

    Attributes:
        held: The line that has not ended, or its present state.
    """

    def __init__(self, *, redrawn: bool) -> None:
        self._redrawn = redrawn
        self.held = b""

    def take(self, text: bytes) -> bytes:
        """What can be passed on, now that this has come."""
        text = self.held + text
        cut = text.rfind(b"\n") + 1
        if not self._redrawn:
            cut = max(cut, text.rfind(b"\r"))
        done, held = text[:cut], text[cut:]
        if self._redrawn and b"\r" in text:
            done = b"\n".join(map(_last_state, done.split(b"\n")))
            held = _last_state(held)
        if len(held) > LONGEST_HELD:
            done, held = done + held, b""
        self.held = held
        return done

    def rest(self) -> bytes:
        """What was held back, and does not end any more."""
        held, self.held = self.held, b""
        return held


def _last_state(line: bytes) -> bytes:
    return line[line.rstrip(b"\r").rfind(b"\r") + 1 :]


class MarkedStream:
    """Puts marks of ranks before lines that come from several channels.

    A line that another channel interrupts is ended there, and goes on as a new one.
    """

    def __init__(self) -> None:
        self._open: object = None  # whose line has begun

    def marked(self, text: bytes, mark: bytes, source: object) -> bytes:
        """The bytes to write for a text.

        Args:
            text: What one channel has written, not empty.
            mark: What is put before its lines.
            source: The channel, by identity.
        """
        begin = mark
        if self._open is source:
            begin = b""
        elif self._open is not None:
            begin = b"\n" + mark
        ended = text.endswith(b"\n")
        self._open = None if ended else source
        if not mark:
            return begin + text
        body = text[:-1] if ended else text
        return begin + body.replace(b"\n", b"\n" + mark) + text[len(body) :]

    def end(self, source: object) -> bytes:
        """The end of the line that a channel has begun; empty: it has not."""
        if self._open is not source:
            return b""
        self._open = None
        return b"\n"
