"""What a look of `distdoctor watch` costs beside a job of very many ranks.

Run it with

    python benchmarks/watching.py

Writes journals as ranks do, of 64, 256 and 1,024 ranks, and looks at them: while each
rank writes some thousand records from one look to the next, while nobody writes, and
while all but one rank wait. Tells how long a look takes in parts of the second that
lies between two looks, and how long it takes to draw it on a screen.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import msgspec
from figures import print_table

import distdoctor
from distdoctor.journal import folder as record
from distdoctor.journal.folder import Manifest
from distdoctor.journal.format import RecordKind
from distdoctor.journal.packed_texts import group_text, joined
from distdoctor.journal.writer import JournalWriter
from distdoctor.model.operations import CODE_OF
from distdoctor.watching.plain_snapshot import as_plain
from distdoctor.watching.record_watch import RecordWatch
from distdoctor.watching.snapshot import Snapshot
from distdoctor.watching.watch_screen import WatchApp

_JOURNAL_BYTES = 512 * 1024
_CALLS = 1000  # of each rank from one look to the next; three records each
_LOOKS = 5


class Ranks:
    """Ranks of a job that make calls and compute nothing."""

    def __init__(self, folder: Path, count: int) -> None:
        manifest = Manifest(
            distdoctor=distdoctor.__version__,
            launch=["train.py"],
            script="train.py",
            directory="/job",
            ranks=count,
        )
        record.write(folder, record.MANIFEST, manifest)
        group = group_text("0", "default_pg", 0, tuple(range(count)))
        self._writers = [
            JournalWriter(folder, rank, count, _JOURNAL_BYTES) for rank in range(count)
        ]
        self._texts = [
            (one.intern(group), one.intern(joined("/job/train.py", "7", "train")))
            for one in self._writers
        ]
        self._made = 0

    def call(self, times: int) -> None:
        """Each rank makes some calls, and ends each."""
        for writer, (group, site) in zip(self._writers, self._texts, strict=True):
            for n in range(self._made + 1, self._made + times + 1):
                writer.put(
                    *(RecordKind.ENTER, 1, n, n, group),
                    op=CODE_OF["all_reduce"],
                    site=site,
                    signature=1,
                )
                writer.mark(RecordKind.RETURN, 1, n)
                writer.mark(RecordKind.WAIT, 1, n, n, group)
                writer.mark(RecordKind.WOKE, 1, n, n, group)
            writer.step()
        self._made += times

    def wait(self) -> None:
        """All but one make a call, and wait in it."""
        n = self._made + 1
        both = zip(self._writers, self._texts, strict=True)
        for writer, (group, site) in list(both)[1:]:
            op = CODE_OF["all_reduce"]
            writer.put(RecordKind.ENTER, 1, n, n, group, 1, op, site=site)
            writer.mark(RecordKind.RETURN, 1, n)
            writer.mark(RecordKind.WAIT, 1, n, n, group)


def _timed(watch: RecordWatch) -> float:
    begun = time.process_time()
    as_plain(watch.look())
    return time.process_time() - begun


class _Still:
    """A job of which one look is shown again and again."""

    every_s = 3600.0
    title = "a job"

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def look(self) -> Snapshot:
        return self._snapshot

    def last_calls(self, rank: int) -> list[str]:  # noqa: ARG002
        return []


async def _drawn(snapshot: Snapshot) -> float:
    """Seconds in which a screen of 80 × 24 shows a look."""
    app = WatchApp([_Still(snapshot)])
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause(0.5)
        times = []
        for number in range(_LOOKS):
            job = msgspec.structs.replace(snapshot.job, elapsed_s=float(number))
            app.snapshot = msgspec.structs.replace(snapshot, job=job)
            begun = time.process_time()
            app.draw()
            await pilot.pause()
            times.append(time.process_time() - begun)
    return statistics.median(times)


def measure(count: int) -> tuple[float, float, float, float, float]:
    """Seconds: the first look; while all write; while nobody does; waits; drawing."""
    with tempfile.TemporaryDirectory() as name:
        ranks = Ranks(Path(name), count)
        ranks.call(_CALLS)
        watch = RecordWatch(Path(name))
        first = _timed(watch)
        writing = []
        for _ in range(_LOOKS):
            ranks.call(_CALLS)
            writing.append(_timed(watch))
        quiet = statistics.median(_timed(watch) for _ in range(_LOOKS))
        ranks.wait()
        time.sleep(1.0)
        _timed(watch)
        waiting = statistics.median(_timed(watch) for _ in range(_LOOKS))
        drawn = asyncio.run(_drawn(watch.look()))
    return first, statistics.median(writing), quiet, waiting, drawn


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="*", default=[64, 256, 1024])
    rows = [
        (str(count), *(f"{100 * part:.1f}" for part in measure(count)))
        for count in parser.parse_args().ranks
    ]
    head = ("ranks", "first look", "all write", "nobody writes", "all wait", "drawing")
    print("processor time, in hundredths of the second between two looks")
    print_table(head, rows)


if __name__ == "__main__":
    main()
