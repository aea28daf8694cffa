"""Files of a job's output → what was heard of each rank, in the order of the lines."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO

from distdoctor.postmortem.job_output import job_words as says
from distdoctor.postmortem.job_output.line_meanings import (
    is_of_stall,
    meaning_of,
    stalled_rank,
)
from distdoctor.postmortem.job_output.lines import lines
from distdoctor.postmortem.job_output.prefixes import Line, Marks, Whose
from distdoctor.postmortem.job_output.printed_tracebacks import (
    BEGINS,
    PrintedException,
    TracebackParser,
    is_chained,
)
from distdoctor.postmortem.job_output.torchrun_summaries import (
    SummaryParser,
    WorkerEnd,
)

_MOST_STREAMS = 70_000  # of a file; ranks have one each
_MOST_HEARD = 200_000  # of each kind: logs of jobs that fail for days are cut

_PATIENCE = 50_000
"""Lines of others behind those of a process, until it counts as one that goes on."""

_FEW = 64  # of earlier starts

_LOGGED = re.compile(
    r"\b(?:ERROR|CRITICAL|WARN(?:ING)?|INFO|DEBUG)\b|Exception (?:ignored in|in thread)"
)
"""In the line before a traceback behind which a program lives on."""

_NOISE = re.compile(
    r"\s|$|\[?[EWIFC]\d{4} |terminate called|Fatal Python error|Extension modules"
    r"|(?:Current t|T)hread 0x|.{0,200}(?:Warning\b|resource_tracker)|[=*-]{6,}"
    r"|srun: |slurmstepd: |mpirun|Exception raised from|frame #\d+|wandb: "
)
"""What comes after a process has ended, or says nothing of whether it goes on."""

_AGENT = re.compile(r"(?P<pid>\d{1,10}) torch/distributed/elastic/")

_LAUNCHERS = {"ChildFailedError", "ProcessRaisedException", "ProcessExitedException"}
_LAUNCHERS |= {"CalledProcessError", "SignalException", "RendezvousConnectionError"}
"""By these a launcher or a parent tells that a rank of its has failed."""


@dataclass(slots=True, eq=False)
class Heard:
    """Something that was heard, and where.

    Attributes:
        what: What: an exception, the end of a rank, or what a line says.
        rank: Whose it is; -1: not known.
        local: Likewise, among the ranks of its machine.
        file: Number of the file.
        at: Number of the line.
        ends: It says of itself that it ended its process.
        logged: A program has logged it.
        last: Nothing that the process printed came behind it.
        own_stream: Lines of other processes do not stand among those of this one.
        of_task: `rank` is the number of a task of srun.
        agent: The launcher that tells it.
    """

    what: PrintedException | WorkerEnd | says.Said
    rank: int = -1
    local: int = -1
    file: int = 0
    at: int = 0
    ends: bool = False
    logged: bool = False
    last: bool = True
    own_stream: bool = False
    of_task: bool = False
    agent: str = ""


@dataclass(slots=True)
class Hearing:
    """What was heard in all files.

    Attributes:
        heard: In the order of files and lines.
        ranks: Ranks whose output was seen.
        tasks: Tasks of srun whose output was seen; ranks, if no launcher starts these.
        of_local: By rank within a machine, its global rank, where a line told both.
        before: Exceptions of earlier starts of the ranks.
    """

    heard: list[Heard] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    tasks: set[int] = field(default_factory=set)
    of_local: dict[int, int] = field(default_factory=dict)
    before: list[Heard] = field(default_factory=list)
    _files: int = 0

    def listen(
        self,
        file: IO[bytes],
        whose: Whose,
        head: list[str],
        may_say: Callable[[bytes], bool],
    ) -> bool:
        """Read a file.

        Args:
            file: Open for reading.
            whose: Whose output it is.
            head: The first lines, by which its marks are told.
            may_say: Whether a block may have anything in it.

        Returns:
            Whether it said anything.

        Raises:
            OSError: It cannot be read further.
            EOFError: What it is packed with ends too early.
        """
        self._files += 1
        before = len(self.heard)
        one = _FileHearing(self, self._files, Marks(head, whose.rank, whose.local))
        one.own = whose.rank >= 0 or whose.local >= 0
        # Behind a traceback, what follows tells whether its process went on.
        for block in lines(file, lambda block: may_say(block) or one.listens()):
            if block is None:
                one.passed_over()
            else:
                for text in block:
                    one.line(text)
        return len(self.heard) > before

    def add(self, heard: Heard) -> None:
        """Keep what was heard; of too much, the first.

        Args:
            heard: It.
        """
        if len(self.heard) < _MOST_HEARD:
            self.heard.append(heard)

    def forget(self, file: int, up_to: int) -> None:
        """Forget what a file said so far: the ranks were started anew behind it.

        Args:
            file: Number of the file.
            up_to: Number of the last line that belongs to the start before.
        """
        kept = []
        for one in self.heard:
            if one.file != file or one.at > up_to:
                kept.append(one)
            elif isinstance(one.what, PrintedException) and len(self.before) < _FEW:
                self.before.append(one)
        self.heard = kept


@dataclass(slots=True)
class _Stream:
    """The lines of one process, or of several that nothing tells apart."""

    tracebacks: TracebackParser = field(default_factory=TracebackParser)
    summary: SummaryParser = field(default_factory=SummaryParser)
    last: Heard | None = None  # exception
    previous: str = ""
    logged: bool = False
    chained: bool = False
    at: int = 0  # line
    spawned: int = -1
    stalled: bool = False


class _FileHearing:
    """Listens to one file."""

    def __init__(self, all_: Hearing, file: int, marks: Marks) -> None:
        self.own = False
        self._all, self._file, self._marks = all_, file, marks
        self._streams: dict[str, _Stream] = {}
        self._number = 0
        self._failed_at: dict[str, int] = {}  # by launcher
        self._stalls: list[Heard] = []  # behind which nothing was printed yet

    def listens(self) -> bool:
        """Whether the next lines matter, whatever they are."""
        return bool(self._stalls) or any(
            stream.last is not None or stream.tracebacks.open or stream.summary.inside
            for stream in self._streams.values()
            if self._number - stream.at < _PATIENCE
        )

    def passed_over(self) -> None:
        """Lines were passed over, because nothing in them is read here."""
        for stream in self._streams.values():
            if stream.last is not None:
                stream.last.last = False
                stream.last = None
        self._go_on_after_stalls()

    def line(self, text: str) -> None:
        self._number += 1
        if not text:
            return
        line = self._marks.line(text)
        if line.of_task:
            self._all.tasks.add(line.rank)
        elif line.rank >= 0:
            self._all.ranks.add(line.rank)
            if line.local >= 0:
                self._all.of_local.setdefault(line.local, line.rank)
        stream = self._streams.get(line.stream)
        if stream is None:
            if len(self._streams) >= _MOST_STREAMS:
                return
            stream = self._streams[line.stream] = _Stream()
        stream.at = self._number
        self._read(stream, line)
        stream.previous = line.text

    def _read(self, stream: _Stream, line: Line) -> None:
        text = line.text
        if (stream.stalled or self._stalls) and self._goes_on(text):
            stream.stalled = False
            self._go_on_after_stalls()
        if (end := stream.summary.feed(text, self._number)) is not None:
            self._add(line, end, rank=end.rank)
            self._all.ranks.add(end.rank)
        if stream.summary.inside:
            return
        if BEGINS in text[:200]:
            before = stream.previous if text.startswith("Traceback") else text
            stream.logged = _LOGGED.search(before) is not None
        torn = line.by_torch and not stream.chained
        raised = stream.tracebacks.feed(text, self._number, is_torn=torn)
        if raised is not None:
            self._raised(stream, line, raised)
        elif stream.tracebacks.open:
            return
        elif is_chained(text):
            stream.chained = True
        elif stream.tracebacks.last is not None and line.by_torch:
            longer = stream.tracebacks.go_on(text)
            if longer is not None and stream.last is not None:
                stream.last.what = longer
        elif (reported := meaning_of(text)) is not None:
            self._stated(stream, line, reported)
        elif stream.stalled and (absent := stalled_rank(text)) is not None:
            self._stalls.append(self._add(line, absent))
        elif stream.last is not None and not _NOISE.match(text):
            stream.last.last = False
            stream.last = None

    @staticmethod
    def _goes_on(text: str) -> bool:
        return not is_of_stall(text) and not _NOISE.match(text)

    def _go_on_after_stalls(self) -> None:
        """The job went on: what it had waited for has come."""
        for heard in self._stalls:
            heard.last = False
        self._stalls = []

    def _raised(self, stream: _Stream, line: Line, raised: PrintedException) -> None:
        if raised.error in _LAUNCHERS:
            return
        if stream.chained and stream.last is not None:
            stream.last.what = raised
            stream.chained = False
            return
        heard = self._add(line, raised)
        heard.logged = stream.logged
        heard.ends = line.by_torch or raised.of_process
        heard.own_stream = self.own or bool(line.stream)
        if stream.spawned >= 0:
            heard.rank, heard.ends, heard.logged = stream.spawned, True, False
            heard.of_task = False
            self._all.ranks.add(stream.spawned)
            stream.spawned = -1
        stream.last = heard

    def _stated(self, stream: _Stream, line: Line, reported: says.Said) -> None:
        if isinstance(reported, says.Restarted):
            self._all.forget(self._file, self._number)
            self._failed_at.clear()
            return
        if isinstance(reported, says.Spawned):
            stream.spawned = reported.number
            return
        if isinstance(reported, says.StallWarning):
            stream.stalled = True
            return
        agent = ""
        if isinstance(reported, says.WorkerFailed | says.WorkerStopped):
            found = _AGENT.search(line.text)
            agent = found["pid"] if found else ""
        if isinstance(reported, says.WorkerFailed) and agent:
            # A launcher tells of the first end of each start of the ranks, and no more.
            if (before := self._failed_at.get(agent)) is not None:
                self._all.forget(self._file, before)
            self._failed_at[agent] = self._number
        self._add(line, reported).agent = agent

    def _add(
        self, line: Line, what: PrintedException | WorkerEnd | says.Said, rank: int = -1
    ) -> Heard:
        heard = Heard(
            what,
            rank=rank if rank >= 0 else line.rank,
            local=line.local,
            file=self._file,
            at=what.at if isinstance(what, PrintedException) else self._number,
            of_task=line.of_task and rank < 0,
        )
        self._all.add(heard)
        return heard
