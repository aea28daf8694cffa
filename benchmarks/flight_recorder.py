"""How quick autopsy is on dumps of flight recorders, beside torch's own analyzer.

    python benchmarks/flight_recorder.py [ranks...]

Makes the dumps of a data-parallel job of so many ranks (64, 256, 1,024), with 201 calls
each and one of them of another dtype, and asks `distdoctor autopsy` and torchfrtrace
(`torch.distributed.flight_recorder`) in turn: without start-up, in a process that has
imported everything, and as whole commands. Says the best of three of each.
"""

from __future__ import annotations

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


def main() -> None:
    """Measure and print."""
    rows = []
    for ranks in [int(one) for one in sys.argv[1:]] or [64, 256, 1024]:
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
