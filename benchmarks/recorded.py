"""How long it takes to read the journals of many ranks into one run.

python benchmarks/recorded.py --ranks 64 1024
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

from figures import print_table

from distdoctor.journal.assembly import assemble
from distdoctor.journal.folder import Manifest
from distdoctor.journal.format import RECORD_BYTES, RecordKind
from distdoctor.journal.packed_texts import group_text
from distdoctor.journal.writer import JournalWriter
from distdoctor.model.operations import CODE_OF, signature

CALLS = 1000
RECORDS_PER_CALL = 4


def write(folder: Path, rank: int, ranks: int) -> None:
    """The journal of a rank that made its calls and waited for each."""
    size = 64 * 1024 + CALLS * RECORDS_PER_CALL * RECORD_BYTES * 4 // 3
    writer = JournalWriter(folder, rank, ranks, size)
    group = writer.intern(group_text("0", "default_pg", 0, tuple(range(ranks))))
    spec = writer.intern("float32 1024")
    op = CODE_OF["all_reduce"]
    alike = signature(op, 0, -1, ("float32",), (1024,))
    sites = [writer.intern(f"/job/train.py\n{line}\ntrain") for line in (10, 20, 30)]
    for n in range(1, CALLS + 1):
        site = sites[n % 3]
        writer.put(RecordKind.ENTER, 1, n, n, group, alike, op, 0, 0, site, spec)
        writer.put(RecordKind.RETURN, 1, n)
        writer.put(RecordKind.WAIT, 1, n, n, group)
        writer.put(RecordKind.WOKE, 1, n, n, group)
    writer.end()


def measure(ranks: int) -> list[str]:
    """A row of the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for rank in range(ranks):
            write(folder, rank, ranks)
        manifest = Manifest(distdoctor="0", launch=[], directory="/job")
        begun, used = time.perf_counter(), time.process_time()
        run = assemble(folder, manifest)
        seconds, cpu_s = time.perf_counter() - begun, time.process_time() - used
        assert len(run.calls) == ranks * CALLS
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        return [
            *(str(ranks), str(ranks * CALLS * RECORDS_PER_CALL)),
            *(f"{seconds:.2f}", f"{cpu_s:.2f}", f"{peak:.2f}"),
        ]


def main() -> None:
    """Measure each number of ranks in a process of its own."""
    parser = argparse.ArgumentParser(description="Reading journals against ranks.")
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024])
    options = parser.parse_args()
    rows = []
    for ranks in options.ranks:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            rows.append(pool.apply(measure, (ranks,)))
    print_table(["ranks", "records", "seconds", "CPU s", "peak GiB"], rows)


if __name__ == "__main__":
    main()
