"""RAS reports as text: what `ncclras` prints, and all that NCCL 2.24 to 2.28.3 have.

The wording is that of `src/ras/client_support.cc` (NVIDIA/nccl), `rasClientRunComms`. A
text names only ranks that are few among the others, with their process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from distdoctor.model.events import MOST_RANKS
from distdoctor.model.observations.communicators import MemberState
from distdoctor.postmortem.nccl_ras.ras_report import (
    RasAilment,
    RasCommunicator,
    RasProcess,
    RasReport,
)

START = re.compile(rb"^NCCL version [^\n]{1,80} compiled with CUDA", re.MULTILINE)

_VERSION = re.compile(r"NCCL version (\S{1,40}) compiled with CUDA")
_GROUP = re.compile(
    r"\s{0,5}(\d{1,5})  \s{0,8}(\d{1,9})  \s{0,8}\d{1,9}  \s{0,16}[\d-]{1,12}  "
    r"\s{0,8}(\d{1,9})  \s{0,8}\d{1,9}  \s{0,8}([A-Z]{2,10})  ([A-Z,]{2,40})\s*$"
)
_COMM = re.compile(
    r"#(\d{1,5})-\d{1,9} \(([0-9a-f]{1,16})\) (INCOMPLETE|ERROR|MISMATCH)\s*$"
)
_RANK = re.compile(
    r"  Rank (\d{1,7})(?: (has status|has launched up to operation|reported|"
    r"has not launched any operations) ?(.{0,60}?))? -- (.{0,200})$"
)
_PROCESS = re.compile(
    r"GPU (\d{1,4})(?: \(NVML \d+\))? managed by process (\d{1,9}) on node (\S{1,64})"
)
_SEVERAL = re.compile(
    r"  (\d{1,7}) ranks (?:have status (\S{1,12})|have launched up to operation "
    r"(\d{1,19})|have (not) launched any operations|reported (.{1,60}))\s*$"
)
_COUNTS = re.compile(
    r"  Communicator ranks have different (?:(\w{1,40}) )?operation counts"
)
_DEAD = re.compile(r"  Process (\d{1,9}) on node (\S{1,64}) managing GPU")
_TIMEOUTS = re.compile(r"  Encountered (\d{1,9}) communication timeout")

_STATES = {
    "NOCOMM": MemberState.LEFT,
    "FINALIZE": MemberState.FINALIZED,
    "ABORT": MemberState.ABORTED,
}


def texts_of(text: bytes) -> list[bytes]:
    """The reports that stand behind each other in a file.

    Args:
        text: One or several.

    Returns:
        Each by itself.
    """
    starts = [found.start() for found in START.finditer(text)]
    ends = [*starts[1:], len(text)]
    return [text[start:end] for start, end in zip(starts, ends, strict=True)]


def read_text(text: bytes) -> RasReport | None:
    """One report.

    Args:
        text: As NCCL writes it.

    Returns:
        The report; None: it has no communicators, or breaks off before its end.
    """
    reading = _Reading()
    for line in text.decode("utf-8", "replace").splitlines():
        reading.take(line)
    return reading.end()


class _Reading:
    """What is known after the lines read so far."""

    def __init__(self) -> None:
        self.report = RasReport()
        self._sizes: dict[int, int] = {}  # by group in the table
        self._ending: set[int] = set()  # groups
        self._dead: set[tuple[str, int]] = set()
        self._comm: RasCommunicator | None = None
        self._section = ""  # INCOMPLETE, DEAD, ERROR, MISMATCH
        self._op = ""  # whose counts are told; empty: states are
        self._launched: int | None = None  # by the ranks that the next lines name
        self._state: MemberState | None = None
        self._error = ""
        self._warned = False

    def take(self, line: str) -> None:
        """Read the next line."""
        if found := _VERSION.match(line):
            self.report.version = found[1]
        elif found := _GROUP.match(line):
            self._sizes[int(found[1])] = int(found[3])
            if _STATES.get(found[4]) in {MemberState.ABORTED, MemberState.FINALIZED}:
                self._ending.add(int(found[1]))
        elif line.rstrip() in {"INCOMPLETE", "DEAD", "TIMEOUT"}:
            self._section, self._comm = line.rstrip(), None
        elif line.startswith("Warnings"):
            self._warned = True
        elif found := _COMM.match(line):
            self._begin(found)
        elif found := _TIMEOUTS.match(line):
            self.report.timeouts = int(found[1])
        elif found := _DEAD.match(line):
            if self._section == "DEAD":
                self._dead.add((found[2], int(found[1])))
        elif self._comm is not None:
            self._of_communicator(self._comm, line)

    def _begin(self, found: re.Match[str]) -> None:
        comm = found[2].zfill(16)
        size = min(self._sizes.get(int(found[1]), 0), MOST_RANKS)
        known = self.report.communicators
        self._comm = known.setdefault(comm, RasCommunicator(comm, size, size))
        self._comm.ending = int(found[1]) in self._ending
        self._section, self._op = found[3], ""
        self._launched = self._state = None
        self._error = ""

    def _of_communicator(self, comm: RasCommunicator, line: str) -> None:
        if found := _COUNTS.match(line):
            self._op = found[1] or "collective"
            self._launched = None
        elif found := _SEVERAL.match(line):
            count, state, launched, none, error = found.groups()
            self._state, self._error = _STATES.get(state or ""), error or ""
            self._launched = 0 if none else int(launched) if launched else None
            if self._launched is not None and self._op:
                self._count(comm, self._launched, (), int(count))
        elif (found := _RANK.match(line)) and int(found[1]) < max(comm.size, 1):
            self._rank(comm, found)

    def _rank(self, comm: RasCommunicator, found: re.Match[str]) -> None:
        member, verb, what = int(found[1]), found[2] or "", (found[3] or "").strip()
        if process := _PROCESS.match(found[4]):
            device, pid, host = process.groups()
            comm.processes[member] = RasProcess(host, int(pid), int(device))
        state, error = self._state, self._error
        if verb == "has status":
            state = _STATES.get(what)
        elif verb == "reported":
            error = what
        elif verb and self._op:
            if not what or (what.isascii() and what.isdigit()):
                self._count(comm, int(what or 0), (member,), 1)
            return
        elif not verb and self._op and self._launched is not None:
            self._count(comm, self._launched, (member,), 0)
            return
        if self._section == "INCOMPLETE":
            state, error = MemberState.SILENT, ""
            comm.answered -= 1
        elif self._section == "ERROR":
            state = MemberState.FAILED
        if state is not None and all(one.member != member for one in comm.ailments):
            comm.ailments.append(RasAilment(member, state, error.lower()))
            comm.answered -= state is MemberState.LEFT

    def _count(
        self, comm: RasCommunicator, launched: int, members: tuple[int, ...], more: int
    ) -> None:
        """Some more are known to have launched so many; `more` are not counted yet."""
        by_count = comm.counts.setdefault(self._op, {})
        known, count = by_count.get(launched, ((), 0))
        by_count[launched] = (*known, *members), count + more

    def end(self) -> RasReport | None:
        """The report, if it is whole."""
        if not self._sizes or not self._warned:
            return None
        for comm in self.report.communicators.values():
            comm.ailments = list(self._with_dead(comm))
            comm.counts = {op: of for op, of in comm.counts.items() if len(of) > 1}
            for of in comm.counts.values():
                for launched, (members, count) in of.items():
                    if len(set(members)) != count:  # they are not named one by one
                        of[launched] = (), count
            comm.answered = max(comm.answered, 0)
        return self.report

    def _with_dead(self, comm: RasCommunicator) -> Iterator[RasAilment]:
        for one in comm.ailments:
            process = comm.processes.get(one.member, RasProcess())
            if (
                one.state is MemberState.SILENT
                and (process.host, process.pid) in self._dead
            ):
                yield RasAilment(one.member, MemberState.DEAD)
            else:
                yield one
