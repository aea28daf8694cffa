"""Who printed a line: the marks that launchers put before it.

Marks that also begin ordinary lines (`3: …`) count only where nearly all lines of a
file have them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple


class Line(NamedTuple):
    """A line without its marks.

    Attributes:
        text: What was printed.
        stream: Equal for lines of one process, as far as marks and files tell it.
        rank: The global rank; -1: not known.
        local: The rank among those of its machine; -1: not known.
        by_torch: The rank stands in torch's own mark, `[rank3]:`, which C++ logs have,
            and tracebacks that ended a process.
        of_task: The rank is the number of a task of srun: a launcher may be its task.
    """

    text: str
    stream: str = ""
    rank: int = -1
    local: int = -1
    by_torch: bool = False
    of_task: bool = False


_TIME = (
    r"(?:\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
    r"|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})"
)
_STAMP = re.compile(rf"{_TIME} ?(?:std(?:out|err) [FP] )?(?=\S| {{4}}|$)")

_RANKED = re.compile(
    r"\[(?:\d+,|[\w.-]+@\d+,)?(?P<rank>\d{1,6})\]<std(?:out|err)>: ?"  # mpirun, horovod
)
_TORCHS = re.compile(r"\[rank(?P<rank>\d{1,6})\]: ?")
_LOCAL = re.compile(r"\[(?P<role>[A-Za-z_]\w*?)(?P<local>\d{1,4})\]:")  # torchrun
_NAMED = re.compile(  # Ray, kubectl
    r"\((?P<actor>[\w.]+ pid=\d+(?:, ip=[\d.]+)?)\) |\[(?P<pod>pod/[\w./-]+)\] "
)
_TASK = re.compile(r" *(?P<rank>\d{1,6}): ")  # srun -l
_MPICH = re.compile(r"\[(?P<rank>\d{1,6})\] ?")
_HOST = re.compile(r"(?P<host>(?=\S*\d)[A-Za-z0-9][\w.-]*): ")  # pdsh

_MOST_MARKS = 5
_MOSTLY = 0.6  # launchers print lines of their own, too
_ASKED = 400  # lines by which the marks of a file are told


class Marks:
    """The marks of one file."""

    def __init__(self, head: Sequence[str], rank: int = -1, local: int = -1) -> None:
        """Tell the marks by the first lines.

        Args:
            head: The first lines of the file.
            rank: The rank whose output the file is, by its name; -1: not known.
            local: Likewise, among those of its machine.
        """
        self._rank, self._local = rank, local
        self._usual = next(
            (one for one in (_TASK, _MPICH, _HOST) if _are_mostly(head, one)), None
        )
        torchs = [line for line in head[:_ASKED] if _TORCHS.match(line)]
        plain = [one for one in torchs if not _is_torchs_own(one)]
        self._is_template = len(plain) > len(torchs) / 2 and len(torchs) > 1

    def line(self, text: str) -> Line:
        """Take the marks off a line.

        Args:
            text: The line.

        Returns:
            What is left, and what the marks tell.
        """
        stream, rank, local = "", self._rank, self._local
        by_torch = of_task = is_marked = False
        for _ in range(_MOST_MARKS):
            if not text or (text[0] == " " and self._usual is None):
                break  # nothing to take off, and no time to lose
            if found := _STAMP.match(text):
                pass
            elif found := _RANKED.match(text):
                rank = int(found["rank"])
                stream += f"<{rank}>"
                mark = found[0].rstrip()
                if mark in text[found.end() :]:  # put before each piece of the line
                    text = found[0] + text[found.end() :].replace(mark, "")
            elif found := _TORCHS.match(text):
                rank, of_task = int(found["rank"]), False
                stream += f"[{rank}]"
                # Behind the mark of a template, torch's own is a second one.
                by_torch, is_marked = is_marked or not self._is_template, True
            elif found := _LOCAL.match(text):
                local = int(found["local"])
                if of_task:
                    rank, of_task = -1, False
                stream += found[0]
            elif found := _NAMED.match(text):
                stream += found[0]
            elif self._usual is not None and (found := self._usual.match(text)):
                if "rank" in found.re.groupindex and rank < 0:
                    rank, of_task = int(found["rank"]), True
                stream += found[0]
            else:
                break
            if found.end() == 0:
                break
            text = text[found.end() :]
        return Line(text, stream, rank, local, by_torch, of_task)


_OF_STALL = re.compile(r"\d{1,6}!?: \[[A-Za-z]{3,60}[._/][^\]]{1,2000}\]\s*$")
"""A line of a list of Horovod's, by rank: it is not the rank that prints it."""


def _are_mostly(head: Sequence[str], mark: re.Pattern[str]) -> bool:
    asked = [
        _STAMP.sub("", line, count=1)
        for line in head[:_ASKED]
        if line.strip() and not _OF_STALL.match(line)
    ]
    return len(asked) > 1 and (
        sum(mark.match(line) is not None for line in asked) >= _MOSTLY * len(asked)
    )


_OWN = re.compile(
    r"\[rank\d+\]: ?(?:\[[EWIFC]\d{4} |Traceback \(most|  |[\w.]+(?:Error|Exception)\b"
    r"|\s*$|The above exc|During handl)"
)


def _is_torchs_own(line: str) -> bool:
    """Whether it looks like a log of torch's C++ or a part of a traceback."""
    return _OWN.match(line) is not None


_IN_NAME = re.compile(
    r"(?:^|[._/-])(?:global[_-]?)?rank[_-]?(?P<rank>\d{1,6})(?=\D|$)", re.IGNORECASE
)
_SLURM_TASK = re.compile(r"slurm-\d+(?:\.\d+)?_(?P<rank>\d{1,6})\.(?:out|err)$")
_ATTEMPT = re.compile(
    r"attempt_(?P<attempt>\d+)/(?P<local>\d{1,4})/(?:stdout\.log|stderr\.log|error\.json)$"
)
_HOROVODS = re.compile(r"rank\.(?P<rank>\d{1,6})/std(?:out|err)$")


class Whose(NamedTuple):
    """Whose output a file is, by its path; -1: it does not tell.

    Attributes:
        rank: The global rank.
        local: The rank among those of its machine.
        attempt: Which start of the ranks, from 0.
    """

    rank: int = -1
    local: int = -1
    attempt: int = -1


def whose(path: str) -> Whose:
    """Whose output a file is.

    Args:
        path: Where it lies; an ending of a packer does no harm.
    """
    path = re.sub(r"\.(?:gz|bz2|xz)$", "", path)
    if found := _ATTEMPT.search(path):
        return Whose(-1, int(found["local"]), int(found["attempt"]))
    for pattern in (_SLURM_TASK, _HOROVODS):
        if found := pattern.search(path):
            return Whose(int(found["rank"]))
    if found := _IN_NAME.search(path.rpartition("/")[2]):
        return Whose(int(found["rank"]))
    return Whose()
