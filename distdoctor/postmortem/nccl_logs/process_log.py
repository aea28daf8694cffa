"""What the log tells of one process, put together while it is read.

Pieces of a file are read by several processes: each makes a log of its own, and
`ProcessLog.append` puts them together in the order of the file.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

MOST_KEPT = 64
"""Complaints of a kind, and lines of others, that are kept of each process."""


@dataclass(slots=True)
class Life:
    """An event in a communicator's life: a line that the expression INIT reads."""

    what: str
    comm: str
    rank: int
    size: int
    device: int
    bus: str
    ident: str
    parent: str
    count: str
    color: str
    file: str
    line: int
    stamp: float
    opens: bool = False  # a list of calls begins with it


@dataclass(slots=True)
class Complaint:
    """A message of an error, as it was read."""

    text: str
    source: str
    device: int  # CUDA's, of the thread that printed it
    thread: int
    file: str
    line: int
    stamp: float
    calls: int  # the process's calls before it
    status: int = 0


@dataclass(slots=True)
class ProcessLog:
    """The lines of one process.

    Attributes:
        host: As it prints it.
        pid: Its process id.
        launcher_ranks: Ranks that a launcher put before its lines, each with how often.
        version: Of NCCL; empty: it did not say.
        driver: CUDA version of the driver; 0: it did not say.
        network: The transport between hosts; empty: it did not say.
        interface: Name and address by which it meets the others.
        addresses: All addresses that it says are its own.
        adapters: Devices of RDMA that it found.
        no_adapter: It said that it found none.
        sockets: Interfaces that its sockets use.
        settings: Variables of the environment that it took notice of.
        traits: By what, how its lines are formed.
        edges: By communicator, two of its ranks and a transport, the channels.
        hints: By rank, how many edges it told of as that rank, before any communicator.
        device: CUDA's, of its first line that is not of a main thread's; -1: none.
        lives: Events in the lives of its communicators.
        calls: By communicator's address, a list of calls for each communicator that had
            the address, as numbers of their words; the first is of one whose beginning
            was not read. 0: torn.
        count: Its calls, all together.
        complaints: Messages of errors, the first of each kind.
        torn: Lines of it that were cut.
        lines: Lines of it.
        first: File and line of its first line.
        last_stamp: Time of its last line.
    """

    host: str
    pid: int
    launcher_ranks: dict[int, int] = field(default_factory=dict)
    version: str = ""
    driver: int = 0
    network: str = ""
    interface: tuple[str, str] = ("", "")
    addresses: set[str] = field(default_factory=set)
    adapters: str = ""
    no_adapter: bool = False
    sockets: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    where_set: dict[str, tuple[str, int]] = field(default_factory=dict)
    traits: dict[str, str] = field(default_factory=dict)
    edges: dict[tuple[str, int, int, str], int] = field(default_factory=dict)
    hints: dict[int, int] = field(default_factory=dict)
    device: int = -1
    lives: list[Life] = field(default_factory=list)
    calls: dict[str, list[array[int]]] = field(default_factory=dict)
    count: int = 0
    complaints: list[Complaint] = field(default_factory=list)
    torn: int = 0
    lines: int = 0
    first: tuple[str, int] = ("", 0)
    last_stamp: float = 0.0

    def lists_of(self, comm: str) -> list[array[int]]:
        """The lists of calls of the communicators at an address."""
        found = self.calls.get(comm)
        if found is None:
            found = self.calls[comm] = [array("I")]
        return found

    def append(self, later: ProcessLog, numbers: array[int]) -> None:
        """Add what was read of the same process behind this.

        Args:
            later: From the next piece.
            numbers: What its numbers of calls are in this log.
        """
        for rank, often in later.launcher_ranks.items():
            self.launcher_ranks[rank] = self.launcher_ranks.get(rank, 0) + often
        self.version = self.version or later.version
        self.driver = self.driver or later.driver
        self.network = self.network or later.network
        self.adapters = self.adapters or later.adapters
        self.sockets = self.sockets or later.sockets
        self.no_adapter |= later.no_adapter
        self.addresses |= later.addresses
        if not self.interface[0]:
            self.interface = later.interface
        self.settings = later.settings | self.settings
        self.where_set = later.where_set | self.where_set
        self.traits = later.traits | self.traits
        for edge, often in later.edges.items():
            self.edges[edge] = self.edges.get(edge, 0) + often
        self.hints = self.hints or later.hints
        self.device = max(self.device, later.device)
        self.lives += later.lives
        for comm, lists in later.calls.items():
            mine = self.lists_of(comm)
            renamed = [array("I", map(numbers.__getitem__, one)) for one in lists]
            mine[-1].extend(renamed[0])
            mine += renamed[1:]
        for complaint in later.complaints:
            complaint.calls += self.count
        self.complaints += later.complaints
        self.count += later.count
        self.torn += later.torn
        self.lines += later.lines
        self.first = self.first if self.first[1] else later.first
        self.last_stamp = max(self.last_stamp, later.last_stamp)
