"""Records as ranks write them, made in the test's own process."""

import os
from pathlib import Path

import distdoctor
from distdoctor.journal import folder as record
from distdoctor.journal.event_text import event_text
from distdoctor.journal.folder import Manifest
from distdoctor.journal.format import RecordKind
from distdoctor.journal.packed_texts import group_text, joined
from distdoctor.journal.writer import JournalWriter
from distdoctor.model.events import Left
from distdoctor.model.operations import CODE_OF

DIRECTORY = "/job"
JOURNAL_BYTES = 256 * 1024


class WrittenRank:
    """One process of a rank, which calls what it is told."""

    def __init__(
        self, folder: Path, rank: int, world: int, size_bytes: int = JOURNAL_BYTES
    ) -> None:
        self.writer = JournalWriter(folder, rank, world, size_bytes)
        self.rank, self.world = rank, world
        self._calls = 0
        self._ordinals: dict[str, int] = {}

    def call(
        self,
        op: str = "all_reduce",
        until: str = "done",
        *,
        line: int = 7,
        file: str = f"{DIRECTORY}/train.py",
        group: str = "",
        peer: int = -1,
        signature: int = 0,
        thread: int = 0,
        flags: int = 0,
    ) -> None:
        """Make a call, up to: entered, issued, waiting, done, refused."""
        thread = thread or os.getpid()
        group = group or group_text("0", "default_pg", 0, tuple(range(self.world)))
        self._calls += 1
        ordinal = 0
        if op not in {"send", "recv"}:
            ordinal = self._ordinals[group] = self._ordinals.get(group, 0) + 1
        kind = RecordKind.REFUSE if until == "refused" else RecordKind.ENTER
        writer = self.writer
        number = writer.intern(group)
        writer.put(
            *(int(kind), thread, self._calls, ordinal, number),
            signature=signature or CODE_OF[op] + 1,
            op=CODE_OF[op],
            flags=flags,
            site=writer.intern(joined(file, str(line), "main")),
            peer=peer,
        )
        if until in {"issued", "waiting", "done"}:
            writer.mark(RecordKind.RETURN, thread, self._calls)
        if until in {"waiting", "done"}:
            writer.mark(RecordKind.WAIT, thread, self._calls, ordinal, number)
        if until == "done":
            writer.mark(RecordKind.WOKE, thread, self._calls, ordinal, number)

    def backward(self, *, ended: bool = False) -> None:
        """Wait for what was issued in a backward pass, and go on if it has ended."""
        self.writer.mark(RecordKind.BACKWARD_WAIT, os.getpid(), self._calls)
        if ended:
            self.writer.mark(RecordKind.BACKWARD_WOKE, os.getpid(), self._calls)

    def leave(self) -> None:
        """Destroy the process group."""
        spec = self.writer.intern(event_text(Left(rank=self.rank)))
        self.writer.put(RecordKind.LIFE, os.getpid(), spec=spec)


def manifest(**fields: object) -> Manifest:
    """A manifest of a job that was started as `train.py`."""
    told: dict[str, object] = {
        "distdoctor": distdoctor.__version__,
        "launch": ["train.py"],
        "script": "train.py",
        "directory": DIRECTORY,
        **fields,
    }
    return Manifest(**told)  # type: ignore[arg-type]


def written(folder: Path, ranks: int, **fields: object) -> list[WrittenRank]:
    """A record with so many ranks that have made no call yet."""
    folder.mkdir(exist_ok=True)
    record.write(folder, record.MANIFEST, manifest(ranks=ranks, **fields))
    return [WrittenRank(folder, rank, ranks) for rank in range(ranks)]
