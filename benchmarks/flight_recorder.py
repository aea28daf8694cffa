"""How quick autopsy is on dumps of flight recorders, beside torch's own analyzer.

    python benchmarks/flight_recorder.py [ranks...]
    python benchmarks/flight_recorder.py --files [ranks...]

Makes the dumps of a data-parallel job of so many ranks (64, 256, 1,024), with 201 calls
each and one of them of another dtype, and asks `distdoctor autopsy` and torchfrtrace
(`torch.distributed.flight_recorder`) in turn: without start-up, in a process that has
imported everything, and as whole commands. Says the best of three of each.

With --files it asks `distdoctor autopsy` alone, once each, for 1,024, 4,096 and 10,000
dumps, and says the seconds and the peak memory of the command; its start takes some
60 MiB of that. What a file adds is the calls as the checks read them (80 bytes each)
and what these make of them; of files that are alike, all but the times is shared.
"""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import print_table
from recorder_dumps import START_NS, Simulation, Style, ddp, dumps

CALLS = 201
TURNS = 3

_OURS = """
import sys, time
from pathlib import Path
from distdoctor.catalogue import every_check
from distdoctor.judging import judge_run
from distdoctor.postmortem.evidence_run import manifest_of, run_of
from distdoctor.postmortem.recognising import gather
every_check()
begun = time.perf_counter()
evidence = gather([sys.argv[1]])
manifest = manifest_of(evidence, [sys.argv[1]], str(Path.cwd()))
report = judge_run(run_of(evidence), manifest).report
print(time.perf_counter() - begun)
assert [one.code for one in report.findings] == ["DD103"], report.findings
"""

_THEIRS = """
import contextlib, io, sys, time
from torch.distributed.flight_recorder import fr_trace
sys.argv = ["torchfrtrace", sys.argv[1]]
begun = time.perf_counter()
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    fr_trace.main()
print(time.perf_counter() - begun)
"""

_COMMANDS = {
    "autopsy": ["-m", "distdoctor", "autopsy"],
    "torchfrtrace": ["-m", "torch.distributed.flight_recorder.fr_trace"],
}


def make(folder: Path, ranks: int) -> None:
    """Write the dumps of a job.

    Args:
        folder: Where.
        ranks: How many.
    """
    rng = random.Random(1)
    job = ddp(4, 50)
    top = dumps(job, Simulation(job, 1), Style(frames=False))[0]
    top["pg_config"]["0"]["ranks"] = str([*range(ranks)])
    top["entries"] = top["entries"][:CALLS]
    top["entries"][-1] |= {
        "state": "scheduled",
        "retired": False,
        "time_discovered_completed_ns": None,
    }
    for rank in range(ranks):
        when = START_NS
        thread = str(139_000_000_000_000 + rng.randrange(10**12))
        for entry in top["entries"]:
            when += rng.randrange(1_000_000, 4_000_000)
            entry["time_created_ns"], entry["thread_id"] = when, thread
            if entry["retired"]:
                entry["time_discovered_completed_ns"] = when + rng.randrange(5_000_000)
        other = "Half" if rank == ranks // 2 else "Float"
        top["entries"][-1]["input_dtypes"] = [other]
        path = folder / f"comm_lib_trace_rank_{rank}"
        path.write_bytes(pickle.dumps(top, protocol=2))


def seconds_inside(program: str, folder: Path) -> float:
    """Seconds that a program says it took, without its start."""
    command = [sys.executable, "-c", program, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return float(done.stdout.split()[-1])


def seconds_in_all(command: list[str], folder: Path) -> float:
    """Seconds from the start of a command to its end."""
    begun = time.perf_counter()
    subprocess.run(
        [sys.executable, *command, str(folder)], capture_output=True, check=False
    )
    return time.perf_counter() - begun


def peak_of(command: list[str], folder: Path) -> tuple[float, float]:
    """Seconds that a command took, and the most memory it had, MiB."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *command, str(folder)], stdout=subprocess.DEVNULL
    )
    _, _, usage = os.wait4(process.pid, 0)
    return time.perf_counter() - begun, usage.ru_maxrss / 1024


def measure_memory(sizes: list[int]) -> None:
    """Measure the command on very many files, and print."""
    rows = []
    before = 0.0
    for ranks in [2, *sizes]:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            make(folder, ranks)
            size = sum(file.stat().st_size for file in folder.iterdir())
            seconds, peak = peak_of(_COMMANDS["autopsy"], folder)
        before = before or peak
        rows.append(
            (
                f"{ranks:,} files, {size / 2**20:,.1f} MiB",
                f"{seconds:.1f} s",
                f"{peak:,.0f} MiB",
                f"{(peak - before) * 1024 / ranks:.1f} KiB",
            )
        )
    print_table(("dumps", "whole command", "peak memory", "more per file"), rows)


def main() -> None:
    """Measure and print."""
    given = sys.argv[1:]
    if "--files" in given:
        given.remove("--files")
        measure_memory([int(one) for one in given] or [1024, 4096, 10_000])
        return
    rows = []
    for ranks in [int(one) for one in given] or [64, 256, 1024]:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            make(folder, ranks)
            size = sum(file.stat().st_size for file in folder.iterdir())
            ours, theirs, our_all, their_all = [], [], [], []
            for _ in range(TURNS):
                theirs.append(seconds_inside(_THEIRS, folder))
                ours.append(seconds_inside(_OURS, folder))
                their_all.append(seconds_in_all(_COMMANDS["torchfrtrace"], folder))
                our_all.append(seconds_in_all(_COMMANDS["autopsy"], folder))
        rows.append(
            (
                f"{ranks:,} ranks, {size / 2**20:.1f} MiB",
                f"{min(theirs):.2f} s",
                f"{min(ours):.2f} s",
                f"{min(theirs) / min(ours):.1f} ×",
                f"{min(their_all):.2f} s",
                f"{min(our_all):.2f} s",
                f"{min(their_all) / min(our_all):.1f} ×",
            )
        )
    heads = ("dumps", "torchfrtrace", "autopsy", "faster")
    print_table((*heads, "whole command", "whole command", "faster"), rows)


if __name__ == "__main__":
    main()
