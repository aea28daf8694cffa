"""What a piece of a log tells, as its scanner hands it on."""

from __future__ import annotations

from dataclasses import dataclass, field

from distdoctor.postmortem.nccl_logs.process_log import (
    ProcessLog,
)


@dataclass(slots=True)
class Piece:
    """What a piece of a log tells.

    Attributes:
        processes: By host and process id.
        words: By number, the words of a call; 0 is a torn one.
        others: Lines of PyTorch and of the kernel: file, line, text.
        versions: Versions told by lines without a process: by version, a launcher's
            rank or -1, and where.
        strays: Calls that stood in lines of others: by the communicator's address and
            the number of calls on each of that address before it, how many.
        lines: Lines that it has.
        nccl_lines: Those of NCCL.
        unread: Lines of NCCL that could not be read.
    """

    processes: dict[tuple[str, int], ProcessLog] = field(default_factory=dict)
    words: dict[str, int] = field(default_factory=lambda: {"?": 0})
    others: list[tuple[str, int, str]] = field(default_factory=list)
    versions: dict[str, tuple[int, str, int]] = field(default_factory=dict)
    strays: list[tuple[str, int]] = field(default_factory=list)
    lines: int = 0
    nccl_lines: int = 0
    unread: int = 0
    last_stamp: float = 0.0
    full: bool = False

    def move(self, lines: int) -> None:
        """Count lines from an earlier one of the file.

        Args:
            lines: That the file has before this piece.
        """
        if not lines:
            return
        for process in self.processes.values():
            process.first = process.first[0], process.first[1] + lines
            for life in process.lives:
                life.line += lines
            for complaint in process.complaints:
                complaint.line += lines
            for name, (file, line) in process.where_set.items():
                process.where_set[name] = file, line + lines
        self.others = [(file, line + lines, text) for file, line, text in self.others]
