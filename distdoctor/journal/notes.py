"""Notes: what is too long for a record of the journal, in a file beside it.

A note is an observation, in the form of `event_text`. The file grows only at its
end, by one write for each note, so that notes stay whole when their writer is killed.
Its place is taken before it is written: what interrupts a writer costs that note alone.
Where a note lies, and how long it is, stands in a record of kind NOTE. They are read by
`notes_reader`; here, inside the job, only the standard library is used.
"""

from __future__ import annotations

import os
from pathlib import Path

from distdoctor.journal.event_text import event_text
from distdoctor.journal.own_file import OwnFile
from distdoctor.model.events import Observation

MOST_BYTES = 256 * 1024 * 1024
"""Of one process's notes; what comes after is lost, and counted as lost."""


def notes_of(journal: Path) -> Path:
    """The file of a journal's notes.

    Args:
        journal: The journal's file; it need not exist.

    Returns:
        The same name with the suffix `.notes`.
    """
    return journal.with_suffix(".notes")


class NotesWriter:
    """One process's notes.

    Args:
        journal: The journal they belong to.

    Raises:
        OSError: The file cannot be made.
    """

    def __init__(self, journal: Path) -> None:
        self._file = OwnFile(notes_of(journal), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self._end = 0

    def add(self, observation: Observation) -> tuple[int, int]:
        """Write a note; to be called under a lock.

        Args:
            observation: What to tell; its rank and place are left out, for a record has
                them.

        Returns:
            Where it begins, and how many bytes it has.

        Raises:
            OSError: There is no space left, or too much was written.
            ValueError: A number is not finite.
        """
        data = event_text(observation).encode()
        begin, size = self._end, len(data)
        if begin + size > MOST_BYTES:
            raise OSError(f"more than {MOST_BYTES} bytes of notes")
        self._end = begin + size
        written = os.pwrite(self._file.number(), data, begin)
        if written < size:
            raise OSError(f"{written} of {size} bytes of a note were written")
        return begin, size

    def close(self) -> None:
        """Close the file."""
        self._file.close()
