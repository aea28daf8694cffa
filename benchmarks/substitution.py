"""What it costs to run a script for GPUs on the CPU, against one written for the CPU.

Run it with

    python benchmarks/substitution.py

Two processes train the same small model, one as written for the CPU, and one as written
for GPUs, with the stand-ins in place. They take turns, a block of steps each, and pairs
that follow each other are compared; the result is the median of their ratios with its
standard error. A third process does what the first does: that two processes differ by
as much as it shows is no cost of the stand-ins. Then single operations, in the same
way. Time is that of the processor: each process has one thread, and the clock on the
wall tells of neighbours.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from ddp_step import NEVER_TRIM
from figures import print_table, quartiles, uncertainty
from torch import nn

from distdoctor.journal.environment import DEVICE_VARIABLE
from distdoctor.probes import gpu_emulation
from distdoctor.probes.recorder import RECORDER

GOAL_PERCENT = 2.0  # of a step

BLOCK_STEPS = 10
BLOCK_CALLS = 2_000

Work = Callable[[], object]


def works(device: str) -> dict[str, tuple[Work, int]]:
    """What is measured on a device, and how often in a block."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(8):
        layers += [nn.Linear(256, 256), nn.ReLU()]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    data = torch.randn(64, 256)

    def step() -> None:
        optimizer.zero_grad()
        points = data.to(device, non_blocking=True) + torch.zeros(1, device=device)
        loss = model(points).square().mean()
        loss.backward()
        optimizer.step()

    there = torch.zeros(4, device=device)
    return {
        "training step": (step, BLOCK_STEPS),
        "x.to(device)": (lambda: there.to(device), BLOCK_CALLS),
        "x.to(dtype)": (lambda: there.to(torch.float32), BLOCK_CALLS),
        "x.device": (lambda: there.device, BLOCK_CALLS),
        "torch.zeros": (lambda: torch.zeros(4, device=device), BLOCK_CALLS),
        "x + x": (lambda: there + there, BLOCK_CALLS),
    }


def serve(pipe: Connection, device: str, folder: Path) -> None:
    """Measure what is asked for, until nothing is."""
    torch.set_num_threads(1)
    if device != "cpu":
        RECORDER.folder = folder
        os.environ[DEVICE_VARIABLE] = "cpu"
        gpu_emulation.install()
    measured = works(device)
    while name := pipe.recv():
        work, times = measured[name]
        begun = time.process_time()
        for _ in range(times):
            work()
        pipe.send((time.process_time() - begun) / times)


def in_turn(name: str, pipes: list[Connection], rounds: int) -> list[list[float]]:
    """Seconds of each process, by round."""
    taken: list[list[float]] = [[] for _ in pipes]
    order = list(range(len(pipes)))
    for n in range(-1, rounds):  # the first round only warms up
        for which in order:
            pipes[which].send(name)
            seconds = pipes[which].recv()
            if n >= 0:
                taken[which].append(seconds)
        order.append(order.pop(0))
    return taken


def row(name: str, plain: list[float], other: list[float], goal: str) -> list[str]:
    """How much longer one of two takes."""
    pairs = list(zip(plain, other, strict=True))
    more = [(b / a - 1) * 100 for a, b in pairs]
    low, middle, high = quartiles(more)
    return [
        name,
        f"{quartiles(plain)[1] * 1e6:.1f}",
        f"{quartiles([(b - a) * 1e6 for a, b in pairs])[1]:+.2f}",
        f"{middle:+.1f}",
        f"± {uncertainty(more):.1f}",
        f"{low:+.1f} to {high:+.1f}",
        goal,
    ]


def main() -> None:
    """Print a row for each kind of work."""
    parser = argparse.ArgumentParser(description="Cost of running CUDA code on the CPU")
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    os.environ.update(NEVER_TRIM)  # read by the processes when they start
    context = multiprocessing.get_context("spawn")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        pipes = []
        for device in ("cpu", "cuda", "cpu"):
            ours, theirs = context.Pipe()
            given = theirs, device, Path(folder)
            context.Process(target=serve, args=given, daemon=True).start()
            pipes.append(ours)
        for name, (_, times) in works("cpu").items():
            plain, substituted, again = in_turn(name, pipes, options.rounds)
            whole = times == BLOCK_STEPS
            goal = f"at most {GOAL_PERCENT:.0f}" if whole else ""
            rows.append(row(name, plain, substituted, goal))
            if whole:
                rows.append(row("the same, CPU both", plain, again, ""))
        for pipe in pipes:
            pipe.send("")
    print(f"{options.rounds} rounds in turn; one thread each\n")
    heads = ("", "CPU µs", "µs added", "% more", "error", "quartiles", "goal")
    print_table(heads, rows)


if __name__ == "__main__":
    main()
