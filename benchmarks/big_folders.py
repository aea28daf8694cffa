"""What very many ranks cost: dumps as columns, and the verdict from there.

    python benchmarks/big_folders.py [ranks [calls]]

Makes the dumps of a data-parallel job of so many ranks (16,384) with so many calls each
(1,000), of which rank 2/3 of the way up passes another dtype in the last one. They are
made in memory, one by one as they are read, for all together would fill a disk. Says
seconds, the size of the folder, and the most memory of any process, for writing the
columns and for `distdoctor autopsy` of the folder.
"""

from __future__ import annotations

import io
import json
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from figures import print_table
from numpy.typing import NDArray
from recorder_dumps import START_NS, Simulation, Style, ddp, dumps

from distdoctor.postmortem.columns.column_writing import write_dumps
from distdoctor.postmortem.leavings import Leaving

CALLS_OF_A_STEP = 4.5


def template(ranks: int, calls: int, dtype: str) -> bytes:
    """The dump of a rank, with times that are all `START_NS`.

    Args:
        ranks: In the job.
        calls: In the ring.
        dtype: Of the last call.
    """
    job = ddp(2, int(calls / CALLS_OF_A_STEP) + 2)
    top: dict[str, Any] = dumps(job, Simulation(job, 1), Style(ring=1 << 30))[0]
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
    return pickle.dumps(top, protocol=2)


@lru_cache
def _content(path: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """A template, and where its times lie."""
    data = Path(path).read_bytes()
    return np.frombuffer(data, np.uint8), np.array(list(_places(data)))


def _places(data: bytes) -> Iterator[int]:
    mark = b"\x8a\x08" + START_NS.to_bytes(8, "little")
    at = data.find(mark)
    while at >= 0:
        yield at + 2
        at = data.find(mark, at + len(mark))


@dataclass(frozen=True, slots=True)
class MadeDump(Leaving):
    """A dump that is made of its template when it is opened, with times of its own."""

    seed: int = 0

    def open(self) -> IO[bytes]:
        """Make it."""
        content, places = _content(self.copy)
        found = content.copy()
        steps = np.random.default_rng(self.seed).integers(
            400_000, 1_500_000, len(places)
        )
        times = (START_NS + np.cumsum(steps)).astype("<i8")
        octets: NDArray[np.uint8] = times.view(np.uint8).reshape(-1, 8)
        found[places[:, None] + np.arange(8)] = octets
        return io.BytesIO(found.tobytes())


def peak_gb() -> float:
    """The most memory of any process that this one has started so far."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20


def main() -> None:
    """Measure and print."""
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 16_384
    calls = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000
    odd = 2 * ranks // 3
    with tempfile.TemporaryDirectory() as temporary:
        columns = Path(temporary, "columns")
        paths = {}
        for dtype in ("Float", "Half"):
            paths[dtype] = Path(temporary, dtype)
            paths[dtype].write_bytes(template(ranks, calls, dtype))
        made = []
        for rank in range(ranks):
            path = paths["Half" if rank == odd else "Float"]
            name = f"/job/comm_lib_trace_rank_{rank}"
            made.append(MadeDump(name, path.stat().st_size, str(path), seed=rank))
        begun = time.perf_counter()
        written = write_dumps(made, columns)
        writing, write_peak = time.perf_counter() - begun, peak_gb()
        assert (written.files, written.calls) == (ranks, ranks * calls), written.failed
        size = sum(file.stat().st_size for file in columns.iterdir())
        command = [sys.executable, "-m", "distdoctor", "autopsy", str(columns)]
        command += ["--format", "json", "--output", str(Path(temporary, "report"))]
        begun = time.perf_counter()
        status = subprocess.run(command, check=False).returncode
        reading, peak = time.perf_counter() - begun, peak_gb()
        report = json.loads(Path(temporary, "report").read_text())
    found = [(one["code"], one["ranks"]) for one in report["findings"]]
    assert (status, found) == (1, [("DD103", [odd])]), found
    heads = (f"{ranks:,} ranks × {calls:,} calls", "seconds", "peak memory", "size")
    print_table(
        heads,
        [
            ("dumps", "", "", f"{sum(one.size for one in made) / 1e9:.1f} GB"),
            (
                "written as columns",
                f"{writing:.0f}",
                f"{write_peak:.1f} GB",
                f"{size / 1e9:.2f} GB",
            ),
            ("distdoctor autopsy", f"{reading:.0f}", f"≤ {peak:.1f} GB", ""),
        ],
    )


if __name__ == "__main__":
    main()
