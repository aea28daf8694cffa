"""Lets ranks of one machine agree on a decision through a shared file.

They share one file that each only appends to. Whoever has to decide something first
looks whether it is decided; if not, it appends a proposal and looks again: of all
proposals for one question the first in the file counts, for everybody. An append is
whole or not at all, and each sees all that stands before its own, so that all read the
same answer, whoever was first. Nobody waits, and no lock is held.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from distdoctor.journal.own_file import OwnFile
from distdoctor.probes.harmless import harmless

_PIECE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Begun:
    """A rank's note that it has begun a pass over a DataLoader."""

    length: int | None  # batches the loader has; None: it does not say
    prefetch: int  # batches its workers load ahead


class Agreement:
    """The notes and decisions that ranks share in one file.

    Args:
        file: The shared file; it is made if it does not exist.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, file: Path) -> None:
        self._file = OwnFile(file, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        self._read_to = 0
        self._rest = b""
        self._begun: dict[str, dict[int, Begun]] = {}
        self._decided: dict[tuple[str, int], int] = {}

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def begin(self, key: str, rank: int, begun: Begun) -> None:
        """Tell the others that this rank has begun a pass.

        Raises:
            OSError: The file cannot be written.
        """
        length = -1 if begun.length is None else begun.length
        self._append(f"B {key} {rank} {length} {begun.prefetch}\n")

    def settle(
        self, key: str, gate: int, propose: Callable[[Mapping[int, Begun]], int]
    ) -> int:
        """The ranks' decision for a pass at a gate; the first to ask makes it.

        Args:
            key: The pass; the same on all ranks.
            gate: How many batches were given.
            propose: Decides, given the ranks that have begun the pass; if it goes wrong
                nothing is left out, on no rank.

        Raises:
            OSError: The file cannot be read or written, and nothing is decided.
        """
        self._read()
        if (key, gate) not in self._decided:
            proposal = harmless(propose)(self._begun.get(key, {})) or 0
            try:
                self._append(f"G {key} {gate} {proposal}\n")
            except OSError:
                self._read()
                if (key, gate) not in self._decided:
                    raise
            self._read()
        return self._decided[key, gate]

    def forget(self, key: str) -> None:
        """Forget what was noted of a pass that is long over."""
        self._begun.pop(key, None)
        for known in [known for known in self._decided if known[0] == key]:
            del self._decided[known]

    def _append(self, line: str) -> None:
        text = line.encode()
        if os.write(self._file.number(), text) != len(text):
            raise OSError("a note on the passes was cut short")

    def _read(self) -> None:
        """Take in what stands in the file since the last look."""
        number = self._file.number()
        while piece := os.pread(number, _PIECE_BYTES, self._read_to):
            self._read_to += len(piece)
            *lines, self._rest = (self._rest + piece).split(b"\n")
            for line in lines:
                self._take_in(line.decode().split(" "))

    def _take_in(self, words: list[str]) -> None:
        match words:
            case ["B", key, rank, length, prefetch]:
                known = None if length == "-1" else int(length)
                by_rank = self._begun.setdefault(key, {})
                by_rank[int(rank)] = Begun(known, int(prefetch))
            case ["G", key, gate, decided]:
                self._decided.setdefault((key, int(gate)), int(decided))
