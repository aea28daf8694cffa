"""What very many ranks cost: dumps as columns, and the verdict from there.

    python benchmarks/big_folders.py [ranks [calls]]

Makes the dumps of a data-parallel job of so many ranks (16,384) with so many calls each
(1,000), of which rank 2/3 of the way up passes another dtype in the last one. They are
made in slices, each given to `distdoctor columns` and deleted, as if each lay on
another machine; then `distdoctor autopsy` judges the folder. Says seconds, the size of
the folder, and the most memory that each of the two commands took.
"""

from __future__ import annotations

import json
import pickle
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from figures import print_table
from numpy.typing import NDArray
from recorder_dumps import START_NS, Simulation, Style, ddp, dumps

SLICE = 512  # ranks whose dumps lie on the disk at a time
CALLS_OF_A_STEP = 4.5


def template(ranks: int, calls: int, dtype: str) -> dict[str, Any]:
    """The dump of a rank, with times that are all `START_NS`.

    Args:
        ranks: In the job.
        calls: In the ring.
        dtype: Of the last call.
    """
    job = ddp(2, int(calls / CALLS_OF_A_STEP) + 2)
    top = dumps(job, Simulation(job, 1), Style())[0]
    top["pg_config"]["0"]["ranks"] = str([*range(ranks)])
    top["entries"] = top["entries"][:calls]
    for entry in top["entries"]:
        entry["time_created_ns"] = START_NS
        entry["time_discovered_completed_ns"] = START_NS
    top["entries"][-1] |= {
        "state": "scheduled",
        "retired": False,
        "time_discovered_completed_ns": None,
        "input_dtypes": [dtype],
    }
    return top


def timed(data: bytes, seed: int) -> bytes:
    """A dump with other times in it.

    Args:
        data: A pickle of `template`.
        seed: Of the times.
    """
    mark = b"\x8a\x08" + START_NS.to_bytes(8, "little")
    content = np.frombuffer(data, np.uint8).copy()
    at = np.array(list(_places(data, mark))) + 2
    steps = np.random.default_rng(seed).integers(400_000, 1_500_000, len(at))
    numbers = START_NS + np.cumsum(steps)
    octets: NDArray[np.uint8] = numbers.astype("<i8").view(np.uint8).reshape(-1, 8)
    content[at[:, None] + np.arange(8)] = octets
    return content.tobytes()


def _places(data: bytes, mark: bytes) -> Iterator[int]:
    at = data.find(mark)
    while at >= 0:
        yield at
        at = data.find(mark, at + len(mark))


def run(*arguments: str) -> tuple[float, float, subprocess.CompletedProcess[str]]:
    """Run distdoctor.

    Returns:
        Seconds, the most memory of it and its children so far in GB, and its output.
    """
    begun = time.perf_counter()
    command = [sys.executable, "-m", "distdoctor", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    return seconds, peak, done


def main() -> None:
    """Measure and print."""
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 16_384
    calls = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000
    odd = 2 * ranks // 3
    usual = pickle.dumps(template(ranks, calls, "Float"), protocol=2)
    other = pickle.dumps(template(ranks, calls, "Half"), protocol=2)
    with tempfile.TemporaryDirectory() as temporary:
        columns, dumped = Path(temporary, "columns"), Path(temporary, "dumps")
        writing, bytes_read = 0.0, 0
        for start in range(0, ranks, SLICE):
            dumped.mkdir()
            for rank in range(start, min(start + SLICE, ranks)):
                data = timed(other if rank == odd else usual, rank)
                bytes_read += len(data)
                (dumped / f"comm_lib_trace_rank_{rank}").write_bytes(data)
            seconds, write_peak, done = run(
                "columns", str(dumped), "--into", str(columns)
            )
            assert done.returncode == 0, done.stderr
            writing += seconds
            shutil.rmtree(dumped)
        size = sum(file.stat().st_size for file in columns.iterdir())
        seconds, peak, done = run("autopsy", str(columns), "--format", "json")
        assert done.returncode == 1, done.stderr
        report = json.loads(done.stdout)
        found = [(one["code"], one["ranks"]) for one in report["findings"]]
        assert found == [("DD103", [odd])], found
    heads = (f"{ranks:,} ranks × {calls:,} calls", "seconds", "peak memory", "size")
    print_table(
        heads,
        [
            ("dumps", "", "", f"{bytes_read / 1e9:.1f} GB"),
            (
                "distdoctor columns",
                f"{writing:.0f}",
                f"{write_peak:.1f} GB",
                f"{size / 1e9:.2f} GB",
            ),
            ("distdoctor autopsy", f"{seconds:.0f}", f"≤ {peak:.1f} GB", ""),
        ],
    )


if __name__ == "__main__":
    main()
