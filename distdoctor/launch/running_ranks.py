"""Processes of this user that are ranks of a job, or start some."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import psutil

_LAUNCHERS = {"torchrun", "torch.distributed.run", "horovodrun", "mpirun"}


def running_ranks() -> Iterator[tuple[int, list[str]]]:
    """Number and command line of each, as far as they may be read."""
    for process in psutil.process_iter():
        try:
            if process.uids().real != os.getuid() or process.pid == os.getpid():
                continue
            words = process.cmdline()
            if _starts_ranks(words) or "RANK" in process.environ():
                yield process.pid, words
        except psutil.Error:
            continue


def _starts_ranks(words: Sequence[str]) -> bool:
    """Whether a command line is that of a launcher."""
    return bool({word.rpartition("/")[2] for word in words[:4]} & _LAUNCHERS)
