"""Reads from the user's own command how many ranks a launcher will start.

Only where that is plain: one of the launchers of MPI, Slurm and Horovod that starts a
Python program, whose number of processes stands in its own options. It matters for
ranks that end before they have told anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from itertools import pairwise
from pathlib import Path

from distdoctor.launch.multi_command import BETWEEN

_MOST_RANKS = 100_000

_OF_MPI = frozenset({"-np", "--np", "-n", "--n", "-c"})

_COUNTS = {
    "horovodrun": frozenset({"-np", "--num-proc"}),
    **dict.fromkeys(("mpirun", "mpiexec", "orterun", "prterun"), _OF_MPI),
    "srun": frozenset({"-n", "--ntasks"}),
}

_UNCLEAR = {
    *("--min-np", "--min-num-proc", "--max-np", "--max-num-proc"),  # elastic
    *("--host-discovery-script", "--config-file", "--app", "-app", "-N", "--npernode"),
    *("-npernode", "--map-by", "-map-by", "--ntasks-per-node", "--multi-prog"),
    *("--het-group", "--pack-group", "--array"),
}
"""Options by which the number may be another one."""

_SHORT = re.compile(r"(-n)(\d+)$")  # srun -n4
_HOSTS = frozenset({"-H", "--host", "-host", "--hosts"})
_SLOTS = re.compile(r"[^,:\s]+:(\d+)(?:,|$)")

_PYTHON = re.compile(r"python[\d.]*$")
_LAUNCHES_MORE = re.compile(
    r"torchrun|torch\.distributed\.\w+|accelerate|deepspeed|horovod.*|ray|mpirun"
    r"|mpiexec|srun|bash|sh"
)
"""What starts ranks of its own, or may."""


def launched_ranks(command: Sequence[str]) -> int:
    """How many ranks a command starts; 0: that is not plain, or another launcher's.

    >>> launched_ranks(["mpirun", "-np", "4", "-x", "A", "python", "train.py"])
    4
    """
    if not command or BETWEEN in command:
        return 0
    launcher = Path(command[0]).name
    names = _COUNTS.get(launcher)
    if names is None:
        return 0
    program = next((n for n, word in enumerate(command) if _runs_python(word)), 0)
    options = _split(command[1:program])
    if not program or ":" in command:
        return 0
    ahead = {Path(word).name for word in options}
    behind = {Path(word).name for word in command[program : program + 3]}
    if ahead & _UNCLEAR or any(map(_LAUNCHES_MORE.fullmatch, ahead | behind)):
        return 0
    counts = _values(options, names)
    if not counts and launcher != "srun":
        counts = {_slots(hosts) for hosts in _values(options, _HOSTS)}
    (count,) = counts if len(counts) == 1 else ("0",)
    number = int(count) if count.isdecimal() and len(count) < 7 else 0
    return number if number <= _MOST_RANKS else 0


def _runs_python(word: str) -> bool:
    return word.endswith(".py") or _PYTHON.match(Path(word).name) is not None


def _split(words: Sequence[str]) -> list[str]:
    """Options and their values as words of their own."""
    found: list[str] = []
    for word in words:
        if short := _SHORT.match(word):
            found += short.groups()
        elif word.startswith("--"):
            name, equals, value = word.partition("=")
            found += [name, value] if equals else [name]
        else:
            found.append(word)
    return found


def _values(options: Sequence[str], names: Set[str]) -> set[str]:
    return {value for name, value in pairwise(options) if name in names}


def _slots(hosts: str) -> str:
    """How many ranks fit on hosts that all tell their slots."""
    slots = _SLOTS.findall(hosts)
    return str(sum(map(int, slots))) if len(slots) == hosts.count(",") + 1 else "0"
