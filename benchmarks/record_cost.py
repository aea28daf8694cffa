"""What `distdoctor record` costs a training step, as a part of 100 ms.

Run it with

    python benchmarks/record_cost.py

Jobs of two gloo ranks are run one after the other, with and without `record`, in turns
(A B B A …), each with everything that `record` puts in place. In each job two loops
take turns: steps of about 100 ms, and the same step with layers so narrow that next to
nothing but its calls is left. A step has one all_reduce for each layer of a DDP model,
one for the loss, and a step of the optimizer.

What `record` adds to a step of 100 ms is lost in the noise of 100 ms of computing: two
such steps differ by some percent on any machine that others use. It is the same calls
that it adds to in the narrow step, where it shows: the figure that is compared with the
goal is what is added there, as a part of 100 ms. The whole steps are told beside it.

The clock is that of the ranks' processor use (getrusage), all threads; waiting costs
none of it. Each figure is a median over the jobs of medians over blocks of steps.

The C library is told not to give memory back between steps, see step_overhead.py.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from ddp_step import NEVER_TRIM, Step, step_of
from figures import print_table, quartiles, spread, uncertainty
from torch import nn
from torch.nn.parallel import DistributedDataParallel

GOAL_PERCENT = 0.5
STEP_S = 0.1
RANKS = 2

LAYERS = 9
WIDE, NARROW = 256, 4
_BUCKET_MB = 1e-5  # smaller than a layer: each has an all_reduce of its own
_BLOCK_STEPS = {"whole": 3, "calls": 40}

Sample = tuple[float, float]
"""CPU and wall seconds of a step."""


def training_step(width: int, batch: int) -> Step:
    """Forward, backward, optimizer and the mean loss of all ranks."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(width, width, bias=False), nn.ReLU()]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=_BUCKET_MB)
    return step_of(model, torch.randn(batch, width))


def measured(step: Step, steps: int) -> Sample:
    """What a step of this rank takes."""
    wall, cpu = time.perf_counter(), _cpu_s()
    for _ in range(steps):
        step()
    return (_cpu_s() - cpu) / steps, (time.perf_counter() - wall) / steps


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def calibrated_batch() -> int:
    """Batch size with which a wide step takes about `STEP_S` of a processor."""
    step = training_step(WIDE, 256)
    step()
    taken, _ = measured(step, 4)
    return max(1, int(256 * STEP_S / taken))


def train(batch: int, blocks: int, result: Path, profile: bool) -> None:
    """The job: both loops in turns; each rank writes what its steps took."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    steps = {"whole": training_step(WIDE, batch), "calls": training_step(NARROW, 1)}
    for step in steps.values():
        for _ in range(5):
            step()
    found: dict[str, list[Sample]] = {name: [] for name in steps}
    for _ in range(blocks):
        for name, step in steps.items():
            found[name].append(measured(step, _BLOCK_STEPS[name]))
    rank = dist.get_rank()
    if profile and rank == 0:
        _profile(steps["calls"])
    elif profile:
        for _ in range(_PROFILED):
            steps["calls"]()
    result.with_suffix(f".{rank}").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


_PROFILED = 1000


def _profile(step: Step) -> None:
    profiler = cProfile.Profile(time.process_time)
    profiler.enable()
    for _ in range(_PROFILED):
        step()
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats("distdoctor", 30)


def run_job(
    recorded: bool, batch: int, blocks: int, folder: Path, *, profile: bool = False
) -> dict[str, Sample]:
    """Medians of a job's steps, mean of both ranks; of a step alone, the batch."""
    result = Path(tempfile.mkdtemp(dir=folder)) / "steps"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(RANKS), __file__, "--train", str(result)]
    command += ["--batch", str(batch), "--blocks", str(blocks)]
    command += ["--profile"] * profile
    if recorded:
        to = ["--to", str(result.parent / "record")]
        command = [sys.executable, "-m", "distdoctor", "record", *to, "--", *command]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        raise SystemExit(f"the job failed:\n{done.stdout}{done.stderr}")
    if profile:
        print(done.stdout)
    each = [json.loads(path.read_text()) for path in result.parent.glob("steps.*")]
    assert len(each) == RANKS
    return {
        name: (
            statistics.mean(_middle(one[name], 0) for one in each),
            statistics.mean(_middle(one[name], 1) for one in each),
        )
        for name in _BLOCK_STEPS
    }


def _middle(samples: list[Sample], clock: int) -> float:
    return statistics.median(sample[clock] for sample in samples)


def _alone(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=1
    )
    Path(folder, "batch").write_text(str(calibrated_batch()))
    dist.destroy_process_group()


def main() -> None:
    """Both figures, or, started as a job, the training."""
    parser = argparse.ArgumentParser(description="Cost of `record` per step.")
    parser.add_argument("--pairs", type=int, default=8, help="of jobs")
    parser.add_argument("--blocks", type=int, default=40, help="in each job")
    parser.add_argument("--profile", action="store_true", help="of the probes, once")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train is not None:
        train(options.batch, options.blocks, options.train, options.profile)
        return
    if options.pairs < 2:
        parser.error("a median and its spread need at least two pairs")
    os.environ.update(NEVER_TRIM)
    with tempfile.TemporaryDirectory() as folder:
        _alone(0, folder)
        batch = int(Path(folder, "batch").read_text())
        if options.profile:
            run_job(True, batch, 1, Path(folder), profile=True)
            return
        plain: list[dict[str, Sample]] = []
        watched: list[dict[str, Sample]] = []
        for n in range(options.pairs):
            for recorded in (False, True) if n % 2 else (True, False):
                found = run_job(recorded, batch, options.blocks, Path(folder))
                (watched if recorded else plain).append(found)
    _show(plain, watched, options)


def _show(
    plain: list[dict[str, Sample]],
    watched: list[dict[str, Sample]],
    options: argparse.Namespace,
) -> None:
    print(
        f"{options.pairs} pairs of jobs on {RANKS} gloo ranks, {options.blocks} blocks "
        f"each; {LAYERS + 1} collectives and an optimizer step a step; medians, "
        "quartiles in brackets\n"
    )
    rows = []
    for name, what in (("calls", "its calls alone"), ("whole", "the whole step")):
        for clock, of in ((0, "CPU"), (1, "wall")):
            without = [one[name][clock] * 1e3 for one in plain]
            more = [
                (one[name][clock] - other[name][clock]) * 1e3
                for one, other in zip(watched, plain, strict=True)
            ]
            percent = [ms / (STEP_S * 1e3) * 100 for ms in more]
            rows.append(
                [
                    f"{what}, {of}",
                    spread(without, 2),
                    spread(more, 3),
                    f"{quartiles(percent)[1]:+.3f} ± {uncertainty(percent):.3f}",
                ]
            )
    print_table(("", "plain ms", "added ms", "added % of 100 ms"), rows)
    added = quartiles(
        [
            one["calls"][0] - other["calls"][0]
            for one, other in zip(watched, plain, strict=True)
        ]
    )[1]
    print(
        f"\nCPU added to the calls of a step: {added / STEP_S:.2%} of 100 ms, "
        f"goal at most {GOAL_PERCENT:g} %"
    )


if __name__ == "__main__":
    main()
