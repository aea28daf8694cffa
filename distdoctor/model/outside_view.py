"""What was seen of ranks from outside: stacks, processes, and files they left."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StackBranch:
    """A line of the merged stacks of all ranks, and what it called.

    Attributes:
        file: As the reader of a report knows it.
        line: From 1; 0: not known.
        function: Its name.
        ranks: Whose stacks have this line here, ascending.
        is_users: The line is the user's own, and no library's.
        branches: The lines that it called, those of the most ranks first.
        ending: Where stacks end here, what those ranks do, in words, each with its
            ranks.
    """

    file: str
    line: int
    function: str
    ranks: tuple[int, ...]
    is_users: bool = False
    branches: tuple[StackBranch, ...] = ()
    ending: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class LeftFile:
    """A file that was found where a job left things, or what else was read.

    Attributes:
        path: Where it lies.
        kind: What it is, in words, such as "flight recorder dump"; empty: not known.
        evidence: "dump", "log" or "stack"; empty: it was not read.
        ranks: The ranks it is about, ascending; none: all, or not known.
        why: Why it was not read, or what is special about it.
        is_broken: Its kind is known, and it could not be read.
    """

    path: str
    kind: str = ""
    evidence: str = ""
    ranks: tuple[int, ...] = ()
    why: str = ""
    is_broken: bool = False

    @property
    def is_read(self) -> bool:
        """Whether it was read, and tells something of the job."""
        return bool(self.evidence)


@dataclass(frozen=True, slots=True)
class ProcessView:
    """A rank's process as the machine tells of it.

    Attributes:
        rank: Global rank.
        pid: Number of its process.
        condition: In one word: "waiting" in a call, "stuck" elsewhere, "moving",
            "standing" (not moving, and not known why), "stopped", "ended".
        doing: What it was seen to do, in words.
        kernel: What its main thread waits for in the kernel; empty: not known.
        cpu: Share of one core that it used while it was looked at.
        memory_bytes: In use; 0: not known.
        peers: Hosts and ports that it is connected to, the first few.
        helpers: Processes that it has started, in words.
        remark: Why its stacks are not known; empty: they are.
        host: The machine it runs on; empty: that which looked.
    """

    rank: int
    pid: int
    condition: str
    doing: str = ""
    kernel: str = ""
    cpu: float = 0.0
    memory_bytes: int = 0
    peers: tuple[str, ...] = ()
    helpers: tuple[str, ...] = ()
    remark: str = ""
    host: str = ""
