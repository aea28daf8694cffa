"""Passes on what a job writes, as it comes, and never has the job wait for long."""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from distdoctor.launch.audience import Audience
from distdoctor.launch.horovodrun_lines import HorovodrunLines
from distdoctor.launch.last_words import LastWords
from distdoctor.launch.output_channels import STREAMS, Channel, OutputChannels
from distdoctor.launch.output_lines import MarkedStream, UnendedLine

SETTLE_S = 0.25  # of silence before the job is ended; launchers may pass on by turns
STALL_S = 15.0
"""Of one write. Then what comes is left out, and the job is not kept waiting."""

MOST_HELD = 4 * 1024 * 1024
"""Bytes that wait to be written, before the job is kept waiting."""

_READ_BYTES = 64 * 1024
_WRITTEN_BYTES = 16 * 1024  # at once: who reads 3 KiB a second has not stalled
_MOST_LEFT = 1024 * 1024  # in a channel whose writers have gone; Linux: 64 KiB
_REST_S = 1.0  # for a pseudo-terminal to tell that its other end is closed
_REDRAW_S = 0.2
_RESIZE_S = 0.5
_POLL_S = 0.05


class OutputPump:
    """Two threads: one empties the job's channels, the other one writes.

    Whatever becomes of those who hear it, the channels are emptied: a job that stands
    in `write` would stand for a fault that is not its own. Who hears it slowly slows
    the job, as in any pipeline; who stops to hear for `STALL_S` misses something.

    Args:
        channels: Where the job writes; closed by `close`.
        audience: Hears it.
        launchers: Makes the filter for each stream of the command's own, if there is
            one.

    Attributes:
        last_words: Of the job, so far.
        unread: Whether the reader of the job's output has gone.
        remarks: What could not be written, as remarks for the report.
    """

    def __init__(
        self,
        channels: OutputChannels,
        audience: Audience,
        launchers: Callable[[], HorovodrunLines] | None = None,
    ) -> None:
        self._channels, self._audience = channels, audience
        surface = audience.surface
        self._redrawn = {
            channel: surface.redrawn and channel.is_terminal for channel in channels
        }
        self._lines = {
            channel: UnendedLine(redrawn=redrawn)
            for channel, redrawn in self._redrawn.items()
        }
        self._filters = {each: launchers() for each in channels.own if launchers}
        self._streams = {name: MarkedStream() for name in STREAMS}
        self.last_words = LastWords()
        self.unread = False
        self.remarks: list[str] = []
        if channels.failed:
            self.remarks.append(
                f"lines of ranks could not be told apart ({channels.failed})"
            )
        self._failed: set[str] = set()
        self._last_read = 0.0
        # What both threads use; to be changed under the lock.
        self._turn = threading.Condition()
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._size = 0
        self._left_out = self._left_out_lately = 0
        self._unended: dict[Channel, bytes] = {}
        self._shown: dict[Channel, bytes] = {}
        self._over = False
        self._write_begun: float | None = None  # while there is nothing to write
        self._ending, self._end = os.pipe()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._reader.start()
        self._writer.start()

    def settle(self) -> None:
        """Wait until output has arrived: launchers pass it on with a delay."""
        begun = time.monotonic()
        while time.monotonic() < begun + 4 * SETTLE_S:
            if time.monotonic() > max(begun, self._last_read) + SETTLE_S:
                return
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Pass on what the job has written, once its processes have ended.

        Daemons that keep a channel open are not waited for.
        """
        self._channels.stop_writing()
        os.close(self._end)
        self._reader.join()
        with self._turn:
            self._over = True
            self._turn.notify_all()
        while self._writer.is_alive() and not self._is_stalled():
            self._writer.join(_POLL_S)
        with self._turn:
            self._left_out += self._size
        if self._left_out:
            self.remarks.append(
                f"{self._left_out} bytes of what the job wrote were left out: nobody "
                f"read them for {STALL_S:.0f} s, and the job went on"
            )
        self._channels.close()
        os.close(self._ending)

    def _is_stalled(self) -> bool:
        """Whether a write takes so long that nobody seems to read."""
        begun = self._write_begun
        return begun is not None and time.monotonic() > begun + STALL_S

    # --- the thread that reads ---

    def _read(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._ending, selectors.EVENT_READ)
            for channel in self._channels:
                selector.register(channel.reading, selectors.EVENT_READ, channel)
            timeout = _RESIZE_S if self._audience.surface.terminals else None
            ending = False
            while not ending:
                for key, _ in selector.select(timeout):
                    if key.data is None:
                        ending = True
                    else:
                        with suppress(OSError):
                            self._take(key.data)
                if timeout:
                    self._channels.resize()
        for channel in self._channels:
            self._drain(channel)
        for channel in self._channels:
            self._hear(channel, self._lines[channel].rest())
            if launcher := self._filters.get(channel):
                self._mark(channel, b"".join(launcher.rest()))

    def _take(self, channel: Channel) -> int:
        """Read once, without waiting; how many bytes: 0 if there are none.

        Raises:
            OSError: A pseudo-terminal is at its end.
        """
        text = b""
        with suppress(BlockingIOError):
            text = os.read(channel.reading, _READ_BYTES)
        if text:
            self._last_read = time.monotonic()
            self._hear(channel, self._lines[channel].take(text))
        return len(text)

    def _drain(self, channel: Channel) -> None:
        """Read what is left in a channel."""
        left, end = _MOST_LEFT, time.monotonic() + _REST_S
        with suppress(OSError):  # a pseudo-terminal ends by an error
            while left > 0:
                size = self._take(channel)
                left -= size
                if size == 0:
                    if not channel.is_terminal or time.monotonic() > end:
                        return
                    time.sleep(_POLL_S / 10)

    def _hear(self, channel: Channel, text: bytes) -> None:
        """Pass on text that a channel's line is through with; perhaps none."""
        if launcher := self._filters.get(channel):
            lines = text.splitlines(keepends=True)
            text = b"".join(part for line in lines for part in launcher.take(line))
        self._mark(channel, text)
        if self._redrawn[channel]:
            with self._turn:
                self._unended[channel] = self._lines[channel].held
                self._turn.notify_all()

    def _mark(self, channel: Channel, text: bytes) -> None:
        if not text:
            return
        self.last_words.hear(text, of_a_rank=bool(channel.mark))
        stream = self._streams[channel.stream]
        marked = stream.marked(text, channel.mark, channel)
        if self._redrawn[channel]:  # what follows below is drawn on lines of its own
            marked += stream.end(channel)
        self._put(channel.stream, marked)

    def _put(self, stream: str, text: bytes) -> None:
        """Hand text to the thread that writes, when there is room for it."""
        with self._turn:
            while self._size >= MOST_HELD:
                if self._is_stalled():
                    self._left_out += len(text)
                    self._left_out_lately += len(text)
                    return
                self._turn.wait(_POLL_S)
            if self._left_out_lately:
                gap = f"\n[distdoctor: {self._left_out_lately} bytes left out here]\n"
                self._left_out_lately = 0
                text = gap.encode() + text
            if self._write_begun is None:
                self._write_begun = time.monotonic()
            self._waiting.append((stream, text))
            self._size += len(text)
            self._turn.notify_all()

    # --- the thread that writes ---

    def _write(self) -> None:
        drawn = 0.0
        while True:
            stream, text = "", b""
            lines: list[bytes] | None = None
            with self._turn:
                while not (self._waiting or self._over or self._is_due(drawn)):
                    self._write_begun = None
                    changed = self._unended != self._shown
                    self._turn.wait(_REDRAW_S if changed else None)
                if self._waiting:
                    stream, text = self._next()
                elif self._over:
                    self._unended.clear()
                    lines = []
                if self._is_due(drawn):
                    drawn = time.monotonic()
                    lines = self._states()
                self._write_begun = time.monotonic()
            if text:
                self._pass_on(stream, text)
            if lines is not None and any(self._redrawn.values()):
                with suppress(OSError, ValueError):  # `output` is told of it as well
                    self._audience.unfinished(lines)
            with self._turn:
                self._size -= len(text)
                self._turn.notify_all()
                if not text and self._over:
                    return

    def _is_due(self, drawn: float) -> bool:
        """Whether lines that have not ended are to be shown anew."""
        changed = self._unended != self._shown
        return changed and time.monotonic() >= drawn + _REDRAW_S

    def _states(self) -> list[bytes]:
        self._shown = dict(self._unended)
        held = ((each.mark, self._shown.get(each, b"")) for each in self._channels)
        return [mark + line for mark, line in held if line.strip()]

    def _next(self) -> tuple[str, bytes]:
        """What to write at once: some of one stream, in order."""
        stream, text = self._waiting.popleft()
        while self._waiting and len(text) < _WRITTEN_BYTES:
            if self._waiting[0][0] != stream:
                break
            text += self._waiting.popleft()[1]
        if len(text) > _WRITTEN_BYTES:
            self._waiting.appendleft((stream, text[_WRITTEN_BYTES:]))
        return stream, text[:_WRITTEN_BYTES]

    def _pass_on(self, stream: str, text: bytes) -> None:
        """Let the audience hear text; of a stream that fails, it hears no more."""
        if stream in self._failed:
            return
        try:
            self._audience.output(stream, text)
        except BrokenPipeError:
            self._failed.add(stream)
            self.unread = True
        except (OSError, ValueError) as error:  # ValueError: closed under us
            self._failed.add(stream)
            why = getattr(error, "strerror", None) or error
            self.remarks.append(
                f"what the job wrote to {stream} could not be passed on ({why}): it is "
                "lost from there on, and the job went on"
            )
