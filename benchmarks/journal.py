"""What a record costs to write, and how fast a journal is read.

python benchmarks/journal.py
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from figures import print_table

from distdoctor.journal.format import RECORD_BYTES, RecordKind
from distdoctor.journal.reader import JournalReader
from distdoctor.journal.writer import JournalWriter

RECORDS = 200_000
ROUNDS = 5


def main() -> None:
    """Print CPU per record written, records per second read, and an idle look."""
    with tempfile.TemporaryDirectory() as folder:
        writer = JournalWriter(Path(folder), rank=0, world_size=1)
        put, written = writer.put, []
        for _ in range(ROUNDS):
            begun = time.process_time()
            for n in range(RECORDS):
                put(RecordKind.RETURN, 1, n)
            written.append((time.process_time() - begun) / RECORDS * 1e9)
        reader, read = JournalReader(writer.path), []
        for _ in range(ROUNDS):
            reader.position = 0
            begun = time.process_time()
            count = len(reader.poll())
            read.append(count / (time.process_time() - begun) / 1e6)
        begun = time.process_time()
        for _ in range(10_000):
            reader.poll()
        idle = (time.process_time() - begun) / 10_000 * 1e6
    print_table(
        ["what", "best of 5"],
        [
            ["bytes per record", str(RECORD_BYTES)],
            ["ns of CPU per record written", f"{min(written):.0f}"],
            ["million records read per second of CPU", f"{max(read):.1f}"],
            ["µs of CPU per look without news", f"{idle:.1f}"],
        ],
    )


if __name__ == "__main__":
    main()
