"""How the search for divergences grows with the ranks of a job.

Run it with

    python benchmarks/scale.py

Makes runs of 64 to 16,384 ranks with 1,000 calls each, in which one rank makes another
call than the rest at the end, and asks `divergences` what happened. Each size has a
process of its own, so that memory is that of this size alone. A size that would need
more than 8 GiB, by the one before it, is left out, and so are all after it.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from figures import print_table

from distdoctor.analysis.divergence import divergences
from distdoctor.model.events import WORLD, Place, State, Tensor
from distdoctor.model.operations import CODE_OF, REDUCE_OPS, signature
from distdoctor.model.run import CALLS, Group, Run, Spec

SIZES = (64, 256, 1024, 4096, 16384)
CALLS_PER_RANK = 1000
LIMIT_GIB = 8.0
LIMIT_S = 1200.0
GOAL_S, GOAL_GIB = 10.0, 4.0


def straying(ranks: int, calls_per_rank: int) -> Run:
    """A run in which all ranks stand in their last call, and one of them in another."""
    strays = ranks // 3
    sum_op = REDUCE_OPS.index("sum")
    specs = (Spec(), Spec((Tensor((1024,)),)), Spec((Tensor((1024,), "float16"),)))
    signatures = [
        signature(CODE_OF["all_reduce"], sum_op, -1, (dtype,), (1024,))
        for dtype in ("float32", "float16")
    ]
    sites = (None, *(Place("train.py", line, "train") for line in (10, 20, 30)))

    calls = np.zeros(ranks * calls_per_rank, CALLS)
    by_rank = calls.reshape(ranks, calls_per_rank)
    by_rank["rank"] = np.arange(ranks)[:, None]
    by_rank["ordinal"] = np.arange(1, calls_per_rank + 1)
    by_rank["site"] = 1 + np.arange(calls_per_rank) % 3
    by_rank["nodes"] = np.arange(calls_per_rank) // 3 * 50
    calls["op"], calls["reduce_op"] = CODE_OF["all_reduce"], sum_op
    calls["spec"], calls["signature"] = 1, signatures[0]
    calls["peer"], calls["state"] = -1, State.DONE
    by_rank["state"][:, -1] = State.WAITING
    by_rank["spec"][strays, -1] = 2
    by_rank["signature"][strays, -1] = signatures[1]
    return Run(
        world_size=ranks,
        groups=(Group(WORLD, tuple(range(ranks))),),
        calls=calls,
        sites=sites,
        specs=specs,
        life={rank: [] for rank in range(ranks)},
        stopped="deadlock",
    )


def measure(ranks: int, profile: bool) -> dict[str, float]:
    """Seconds and memory for one size, in this process."""
    run = straying(ranks, CALLS_PER_RANK)
    held = _memory_gib("VmRSS")
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    begun = time.perf_counter()
    found = divergences(run)
    seconds = time.perf_counter() - begun
    if profile:
        profiler.disable()
        figures = pstats.Stats(profiler, stream=sys.stderr)
        figures.sort_stats("cumulative").print_stats(25)
    assert [list(divergence.culprits) for divergence in found] == [[ranks // 3]]
    return {
        "ranks": ranks,
        "seconds": seconds,
        "run_gib": held,
        "peak_gib": _memory_gib("VmHWM"),
    }


def _memory_gib(field: str) -> float:
    """Of this process: VmRSS is now, VmHWM the most so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 2**20
    raise KeyError(field)


def _in_own_process(ranks: int, profile: bool) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", str(ranks)]
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


def _exponent(results: list[dict[str, float]]) -> float:
    """Power of the ranks that the seconds grow with."""
    if len(results) < 2:
        return 1.0
    sizes, seconds = (
        np.log([result[name] for result in results]) for name in ("ranks", "seconds")
    )
    return float(np.polyfit(sizes, seconds, 1)[0])


def main() -> None:
    """Measure all sizes, or, in a process of its own, one of them."""
    parser = argparse.ArgumentParser(description="Analysis time against ranks.")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--profile", action="store_true", help="of the last size")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measure(options.one, options.profile)))
        return

    results: list[dict[str, float]] = []
    left_out = ""
    for ranks in options.sizes:
        left_out = _too_much(ranks, results)
        if left_out:
            break
        last = ranks == options.sizes[-1]
        results.append(_in_own_process(ranks, options.profile and last))
    print(f"divergences of a run with {CALLS_PER_RANK} calls per rank, one rank astray")
    print_table(
        ("ranks", "seconds", "run GiB", "peak GiB"),
        [
            [
                f"{result['ranks']:.0f}",
                f"{result['seconds']:.3f}",
                f"{result['run_gib']:.2f}",
                f"{result['peak_gib']:.2f}",
            ]
            for result in results
        ],
    )
    if left_out:
        print(left_out)
    print(f"goal at 16384 ranks: {GOAL_S:.0f} s and {GOAL_GIB:.0f} GiB")
    print(
        f"seconds grow as ranks to the power of {_exponent(results):.2f}, "
        f"between the last two sizes {_exponent(results[-2:]):.2f}"
    )


if __name__ == "__main__":
    main()
