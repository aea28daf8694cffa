"""Pipes and pseudo-terminals that a job writes to, one for each rank.

They are open in this process all the time. So nothing of them lies on a disk, a rank
that is started again finds them, and when this process is gone, whoever writes is told
so by the operating system.
"""

from __future__ import annotations

import os
import pty
import termios
from collections.abc import Iterator, Sequence
from contextlib import suppress

from distdoctor.launch.audience import Surface
from distdoctor.probes.rank_output import ANY, identity

STREAMS = ("stdout", "stderr")

_LEAST_COLUMNS = 20


class Channel:
    """A pipe or pseudo-terminal between processes of the job and this one.

    Args:
        mark: What is put before its lines, such as `[rank1]:`.
        stream: The stream of ours that its lines go to.
        terminal: Descriptor of the terminal on which that ends; None: no terminal.

    Attributes:
        reading: Descriptor of our end; it does not wait.
        writing: Descriptor of the other end; None: closed here.
    """

    def __init__(self, mark: str, stream: str, terminal: int | None) -> None:
        self.mark, self.stream = mark.encode(), stream
        self._terminal: int | None = None
        self.writing: int | None
        if terminal is not None:
            with suppress(OSError):  # a container may have none
                self.reading, self.writing = pty.openpty()
                self._terminal = terminal
        if self._terminal is None:
            self.reading, self.writing = os.pipe()
        else:
            _pass_unchanged(self.writing)
            self.resize()
        os.set_blocking(self.reading, False)

    def resize(self) -> None:
        """Give it the size of the terminal, less what the mark takes."""
        if self._terminal is None:
            return
        with suppress(termios.error):  # it is gone
            rows, columns = termios.tcgetwinsize(self._terminal)
            room = max(columns - len(self.mark), min(columns, _LEAST_COLUMNS))
            if termios.tcgetwinsize(self.reading) != (rows, room):
                termios.tcsetwinsize(self.reading, (rows, room))

    @property
    def name(self) -> str:
        """How `probes.rank_output` finds it, in this process."""
        assert self.writing is not None
        return f"{self.writing}:{identity(self.writing)}"

    @property
    def is_terminal(self) -> bool:
        """Whether it is a pseudo-terminal."""
        return self._terminal is not None

    def stop_writing(self) -> None:
        """Close the other end here: only the job may have it open from now on."""
        if self.writing is not None:
            os.close(self.writing)
            self.writing = None

    def close(self) -> None:
        """Close both ends."""
        self.stop_writing()
        os.close(self.reading)


class OutputChannels:
    """The channels of a job: those of its command, and those of its ranks.

    Args:
        surface: What the output ends on.
        own_mark: What is put before lines that belong to no rank.
        rank_marks: The same for each rank.
        launcher_pipes: The command is a launcher that reads what its ranks write, and
            has two streams to be told apart.

    Attributes:
        own: The channels of the command's stdout and stderr, perhaps one for both.
        ranks: Those of each rank.
        failed: Why the ranks have none of their own, if they were to have; or empty.

    Raises:
        OSError: There are too many open files for the command's own.
    """

    def __init__(
        self,
        surface: Surface,
        own_mark: str = "",
        rank_marks: Sequence[str] = (),
        *,
        launcher_pipes: bool = False,
    ) -> None:
        self._surface, self._launcher_pipes = surface, launcher_pipes
        self.own = self._pair(own_mark, surface.joined and not launcher_pipes)
        self.ranks: list[tuple[Channel, Channel]] = []
        self.failed = ""
        try:
            for mark in rank_marks:
                self.ranks.append(self._pair(mark, surface.joined))
        except OSError as error:
            self.failed = os.strerror(error.errno or 0)
            for channel in {each for pair in self.ranks for each in pair}:
                channel.close()
            self.ranks = []

    def _pair(self, mark: str, joined: bool) -> tuple[Channel, Channel]:
        terminals = self._surface.terminals
        first = Channel(mark, STREAMS[0], terminals.get(STREAMS[0]))
        if joined:
            return first, first
        try:
            return first, Channel(mark, STREAMS[1], terminals.get(STREAMS[1]))
        except OSError:
            first.close()
            raise

    def __iter__(self) -> Iterator[Channel]:
        """Each channel once; those of the ranks first."""
        pairs = [*self.ranks, self.own]
        return iter(dict.fromkeys(each for pair in pairs for each in pair))

    @property
    def variable(self) -> str:
        """The value of `OUTPUT_VARIABLE`; empty: ranks have no channels."""
        if not self.ranks:
            return ""
        own = [channel.name.partition(":")[2] for channel in self.own]
        if self._launcher_pipes:
            own = [ANY, ANY]
        names = [channel.name for pair in self.ranks for channel in pair]
        return " ".join([str(os.getpid()), *own, *names])

    def resize(self) -> None:
        """Have the pseudo-terminals follow the size of the terminal."""
        for channel in self:
            channel.resize()

    def stop_writing(self) -> None:
        """Close the ends that the job writes to, here."""
        for channel in self:
            channel.stop_writing()

    def close(self) -> None:
        """Close all ends."""
        for channel in self:
            channel.close()


def _pass_unchanged(terminal: int) -> None:
    """Set a pseudo-terminal to add no carriage returns, and to echo nothing."""
    attributes = termios.tcgetattr(terminal)
    attributes[1] &= ~termios.OPOST
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)
