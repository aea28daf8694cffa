"""How much longer a training step takes with the probes, and under the supervisor.

Run it with

    python benchmarks/step_overhead.py

The step is that of a small DDP model on two gloo ranks, sized by a calibration to
about 100 ms. First the probes alone: they are put in place and taken away in the same
two processes, for a few steps each, in turn. Then all of distdoctor: the same training
under `distdoctor check` and under plain torchrun, both at one time, so that what else
the machine does meets both alike. Such pairs are compared; the result is the median of
their ratios with its standard error, because two steps in a row differ by far more than
the goal on any machine that is not idle.

The C library is told not to give memory back to the system between steps. Else a few
small objects that live longer, ours or anybody's, decide whether the heap shrinks and
grows in every step; that alone moved a step of 100 ms by up to 5 % (measured: glibc,
torch 2.13, some 450 page faults a step more). `--trim` leaves the allocator as it is.

`--recorded` compares with `distdoctor record`, whose probes are those of the first
part, and whose goal is stricter.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from ddp_step import NEVER_TRIM, Step, step_of
from figures import print_table, quartiles, uncertainty
from ranks import RANKS, on_two_ranks
from switch import Switch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

GOAL_PERCENT = 5.0  # all observers together
GOAL_RECORDED_PERCENT = 0.5

STEP_S = 0.1
LAYERS, WIDTH = 8, 256
BLOCK_STEPS = 5


def training_step(batch: int) -> Step:
    """Forward, backward, optimizer and a look at the mean loss, as loops have it."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    # Small buckets: several all_reduces a step, as large models have them.
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=1)
    return step_of(model, torch.randn(batch, WIDTH))


def calibrated_batch() -> int:
    """Batch size with which a step takes about `STEP_S`; the same on all ranks."""
    batch = 64
    while True:
        step = training_step(batch)
        step()
        begun = time.perf_counter()
        for _ in range(3):
            step()
        taken = torch.tensor((time.perf_counter() - begun) / 3)
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        if taken > 0.7 * STEP_S:
            return max(1, int(batch * STEP_S / float(taken)))
        batch *= 2


def measured(step: Step, steps: int) -> tuple[float, float]:
    """Wall and CPU seconds of a step of this rank."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return wall / steps, cpu / steps


def in_turn(rank: int, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Wall and CPU seconds a step, with and without the probes, of each round."""
    batch = calibrated_batch()
    step = training_step(batch)
    switch = Switch(folder, rank, RANKS)
    found: dict[str, list[tuple[float, float]]] = {"off": [], "on": []}
    places: dict[str, Callable[[], AbstractContextManager[None]]]
    places = {"off": nullcontext, "on": switch.on}
    for n in range(options["rounds"]):
        for name in ("off", "on") if n % 2 else ("on", "off"):
            with places[name]():
                step()  # the first one after a switch works out specs and sites
                found[name].append(measured(step, BLOCK_STEPS))
    return {"batch": batch, **found}


def ratio_row(
    name: str, pairs: list[tuple[float, float]], goal: float = GOAL_PERCENT
) -> list[str]:
    """Median and spread of with / without, in percent more."""
    more = [(with_it / without - 1) * 100 for with_it, without in pairs]
    low, middle, high = quartiles(more)
    plain = statistics.median(without for _, without in pairs)
    return [
        name,
        f"{plain * 1e3:.0f}",
        f"{middle:+.2f}",
        f"± {uncertainty(more):.2f}",
        f"{low:+.1f} to {high:+.1f}",
        f"at most {goal:g}",
    ]


def train(batch: int, steps: int, result: Path) -> None:
    """The job of the second part: train under torchrun and tell how it went."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    step = training_step(batch)
    for _ in range(3):
        step()
    if dist.get_rank() == 0:
        result.with_suffix(".begun").touch()
    samples = [measured(step, 1) for _ in range(steps)]
    if dist.get_rank() == 0:
        result.write_text(json.dumps(samples))
    dist.barrier()
    dist.destroy_process_group()


def start_job(
    watched: bool, batch: int, steps: int, folder: Path, *, recorded: bool = False
) -> tuple[subprocess.Popen[str], Path]:
    """A job under `distdoctor check` or under torchrun, and where its steps will be."""
    result = folder / f"steps-{watched}.json"
    result.unlink(missing_ok=True)
    result.with_suffix(".begun").unlink(missing_ok=True)
    own = [str(Path(__file__)), "--train", str(result)]
    own += ["--batch", str(batch), "--steps", str(steps)]
    plain = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    plain += ["--nproc-per-node", str(RANKS), *own]
    if watched and recorded:
        to = tempfile.mkdtemp(dir=folder)
        command = [sys.executable, "-m", "distdoctor", "record", "--to", to]
        command += ["--", *plain]
    elif watched:
        command = [sys.executable, "-m", "distdoctor", "check", own[0], "-n"]
        command += [str(RANKS), "--launcher", "torchrun", "--", *own[1:]]
    else:
        command = plain
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return process, result


def step_seconds(process: subprocess.Popen[str], result: Path) -> tuple[float, float]:
    """Median wall and CPU seconds a step of a job, when it has ended."""
    output, _ = process.communicate(timeout=600)
    if not result.exists():
        raise SystemExit(f"the job failed:\n{output}")
    samples = json.loads(result.read_text())
    wall, cpu = (statistics.median(column) for column in zip(*samples, strict=True))
    return wall, cpu


def _share(process: psutil.Process, result: Path) -> float:
    """CPU seconds the command itself uses for a second of training."""
    begun: tuple[float, float] | None = None
    last = (0.0, 0.0)
    while process.is_running() and not result.exists():
        try:
            times = process.cpu_times()
        except psutil.Error:
            break
        last = time.monotonic(), times.user + times.system
        if begun is None and result.with_suffix(".begun").exists():
            begun = last
        time.sleep(0.1)
    if begun is None or last[0] <= begun[0]:
        return 0.0
    return (last[1] - begun[1]) / (last[0] - begun[0])


def main() -> None:
    """Both figures, or, started as a job, the training."""
    parser = argparse.ArgumentParser(description="Cost of distdoctor per step.")
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--runs", type=int, default=8, help="pairs of whole jobs")
    parser.add_argument("--steps", type=int, default=100, help="in each job")
    parser.add_argument("--trim", action="store_true", help="leave malloc as it is")
    parser.add_argument("--recorded", action="store_true", help="of `record`")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rounds < 2 or options.runs < 2:
        parser.error("a median and its error need at least two rounds and two runs")
    if options.train is not None:
        train(options.batch, options.steps, options.train)
        return

    goal = GOAL_RECORDED_PERCENT if options.recorded else GOAL_PERCENT
    if not options.trim:
        os.environ.update(NEVER_TRIM)
    ranks = on_two_ranks(in_turn, {"rounds": options.rounds})
    batch = ranks[0]["batch"]
    rows = []
    for clock, name in enumerate(("probes, wall", "probes, CPU")):
        on, off = (
            [
                statistics.mean(sample[clock] for sample in same_round)
                for same_round in zip(*(rank[place] for rank in ranks), strict=True)
            ]
            for place in ("on", "off")
        )
        rows.append(ratio_row(name, list(zip(on, off, strict=True)), goal))

    jobs: list[tuple[tuple[float, float], tuple[float, float]]] = []
    shares = []
    with tempfile.TemporaryDirectory() as folder:
        for n in range(options.runs):
            both = {
                watched: start_job(
                    watched,
                    batch,
                    options.steps,
                    Path(folder),
                    recorded=options.recorded,
                )
                for watched in ((False, True) if n % 2 else (True, False))
            }
            process, result = both[True]
            shares.append(_share(psutil.Process(process.pid), result) * 100)
            jobs.append((step_seconds(*both[True]), step_seconds(*both[False])))
    what = "record" if options.recorded else "check"
    for clock, name in enumerate(
        (f"{what} / torchrun, wall", f"{what} / torchrun, CPU")
    ):
        pairs = [(watched[clock], plain[clock]) for watched, plain in jobs]
        rows.append(ratio_row(name, pairs, goal))

    print(
        f"{options.rounds} rounds of {BLOCK_STEPS} steps each way on {RANKS} ranks; "
        f"{options.runs} pairs of jobs of {options.steps} steps; batch {batch}\n"
    )
    heads = ("", "step ms", "% more", "error", "quartiles", "goal")
    print_table(heads, rows)
    print(f"\nthe supervisor used {statistics.median(shares):.1f} % of one core")


if __name__ == "__main__":
    main()
