"""How the examination of a run grows with the ranks of a job.

Run it with

    python benchmarks/scale.py

Makes runs of 64 to 16,384 ranks with 1,000 calls each that end in three ways: a rank
makes another call than the rest, a rank dies while the rest wait for it, and four ranks
of a mesh close a circle across its groups. A fourth ends as the first, and its ranks
also tell what they read, their weights, gradients and steps, as those of a recorded job
did; in a fifth they also exchange what they compute in forward passes. Each run is
examined by all checks and told as text and as JSON. Each has a process of its own, so
that its memory is its own. A size that would need too much, by the one
before it, is left out with all after it.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from figures import print_table
from generated import Mesh, Step, Tail, died, generate
from generated_notes import recorded_notes, with_notes

from distdoctor.catalogue import every_check
from distdoctor.journal.folder import Manifest
from distdoctor.judging import judge_run
from distdoctor.model.events import WORLD
from distdoctor.model.observations.gradients import Within
from distdoctor.model.run import Run
from distdoctor.report import json as machine
from distdoctor.report import text
from distdoctor.report.schema import Report

SIZES = (64, 256, 1024, 4096, 16384)
CALLS_PER_RANK = 1000
LIMIT_GIB = 8.0
LIMIT_S = 1200.0
GOAL_S, GOAL_GIB = 10.0, 4.0

_TENSOR_RANKS, _STAGES = 8, 4  # of the mesh; the rest is data parallel
_ON_WORLD = [Step(WORLD, line) for line in (10, 20, 30)]
_ON_MESH = [Step("dp", 10), Step("tp", 20), Step("pp", 30)]


def mismatch(ranks: int) -> tuple[Run, str, list[int]]:
    """One rank's last call has another dtype."""
    strays = ranks // 3
    tails: dict[int, Tail] = {strays: [Step(WORLD, 10, "float16")]}
    run = generate(Mesh({"all": ranks}), _ON_WORLD, CALLS_PER_RANK, tails)
    return run, "DD103", [strays]


def absent(ranks: int) -> tuple[Run, str, list[int]]:
    """One rank dies."""
    missed = ranks // 3
    tails: dict[int, Tail] = {missed: died(missed, 12)}
    run = generate(Mesh({"all": ranks}), _ON_WORLD, CALLS_PER_RANK, tails)
    return run, "DD202", [missed]


def circle(ranks: int) -> tuple[Run, str, list[int]]:
    """Two ranks use two of their groups in the opposite order."""
    sizes = {"tp": _TENSOR_RANKS, "pp": _STAGES}
    mesh = Mesh({"dp": ranks // (_TENSOR_RANKS * _STAGES), **sizes})
    turned = [Step("tp", 20), Step("dp", 10)]
    tails: dict[int, Tail] = {mesh.rank(dp=1): turned, mesh.rank(tp=1): turned}
    return generate(mesh, _ON_MESH, CALLS_PER_RANK, tails), "DD203", []


def trained(ranks: int) -> tuple[Run, str, list[int]]:
    """As `mismatch`, with samples, weights and steps beside the calls."""
    run, code, culprits = mismatch(ranks)
    return with_notes(run, recorded_notes()), code, culprits


def shared(ranks: int) -> tuple[Run, str, list[int]]:
    """As `trained`, of ranks that all share the work of each forward pass."""
    run, code, culprits = trained(ranks)
    life = {
        rank: [events[0], (1, Within(rank=rank)), *events[1:]]
        for rank, events in run.life.items()
    }
    return replace(run, life=life), code, culprits


CASES = {
    "mismatch": mismatch,
    "absent": absent,
    "circle": circle,
    "trained": trained,
    "shared": shared,
}


def report_of(run: Run) -> Report:
    """The report of a run, which is rendered in both ways."""
    manifest = Manifest(distdoctor="0", launch=[], directory=".", stopped="deadlock")
    report = judge_run(run, manifest).report
    text.render(report, run)
    machine.render(report, run)
    return report


def measure(case: str, ranks: int, profile: bool) -> dict[str, float]:
    """Seconds and memory for one run, in this process."""
    run, code, culprits = CASES[case](ranks)
    every_check()
    held = _memory_gib("VmRSS")
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    begun, used = time.perf_counter(), time.process_time()
    report = report_of(run)
    seconds, cpu_s = time.perf_counter() - begun, time.process_time() - used
    if profile:
        profiler.disable()
        figures = pstats.Stats(profiler, stream=sys.stderr)
        figures.sort_stats("cumulative").print_stats(40)
    errors = [one for one in report.findings if one.severity == "error"]
    found = [(finding.code, finding.ranks) for finding in errors]
    assert found == [(code, culprits)], found
    return {
        "ranks": ranks,
        "seconds": seconds,
        "cpu_s": cpu_s,
        "run_gib": held,
        "peak_gib": _memory_gib("VmHWM"),
    }


def _memory_gib(field: str) -> float:
    """Of this process: VmRSS is now, VmHWM the most so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 2**20
    raise KeyError(field)


def _in_own_process(case: str, ranks: int, profile: bool) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", case, "--sizes", str(ranks)]
    command += ["--profile"] if profile else []
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    result: dict[str, float] = json.loads(output)
    return result


def _too_much(ranks: int, results: list[dict[str, float]]) -> str:
    """Why a size is left out, by the growth so far; empty if it is not."""
    if not results:
        return ""
    before = results[-1]
    gib = before["peak_gib"] * ranks / before["ranks"]
    if gib > LIMIT_GIB:
        return f"{ranks} ranks left out: they would need about {gib:.1f} GiB"
    seconds = before["seconds"] * (ranks / before["ranks"]) ** _exponent(results[-2:])
    if seconds > LIMIT_S:
        return f"{ranks} ranks left out: they would take about {seconds:.0f} s"
    return ""


def _exponent(results: list[dict[str, float]], figure: str = "seconds") -> float:
    """Power of the ranks that a figure grows with."""
    if len(results) < 2:
        return 1.0
    sizes, figures = (
        np.log([result[name] for result in results]) for name in ("ranks", figure)
    )
    return float(np.polyfit(sizes, figures, 1)[0])


def _measure_all(case: str, sizes: list[int], profile: bool) -> None:
    results: list[dict[str, float]] = []
    left_out = ""
    for ranks in sizes:
        left_out = _too_much(ranks, results)
        if left_out:
            break
        last = ranks == sizes[-1]
        results.append(_in_own_process(case, ranks, profile and last))
    print(f"{case}, {CALLS_PER_RANK} calls per rank")
    print_table(
        ("ranks", "seconds", "CPU s", "run GiB", "peak GiB"),
        [
            [
                f"{result['ranks']:.0f}",
                f"{result['seconds']:.3f}",
                f"{result['cpu_s']:.3f}",
                f"{result['run_gib']:.2f}",
                f"{result['peak_gib']:.2f}",
            ]
            for result in results
        ],
    )
    if left_out:
        print(left_out)
    print(
        f"seconds grow as ranks to the power of {_exponent(results):.2f}, "
        f"between the last two sizes {_exponent(results[-2:]):.2f}; peak GiB "
        f"{_exponent(results[-2:], 'peak_gib'):.2f}\n"
    )


def main() -> None:
    """Measure all sizes of all cases, or, in a process of its own, one of them."""
    parser = argparse.ArgumentParser(description="Examination against ranks.")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--profile", action="store_true", help="of the last size")
    parser.add_argument("--one", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measure(options.one, options.sizes[0], options.profile)))
        return
    for case in options.cases:
        _measure_all(case, options.sizes, options.profile)
    print(f"goal at 16384 ranks: {GOAL_S:.0f} s and {GOAL_GIB:.0f} GiB")


if __name__ == "__main__":
    main()
