"""What fingerprints cost: against a plain read, for small tensors, and in each step.

    python benchmarks/fingerprints.py [--mib 256] [--rounds 5]

All on one core, in processor time, best of interleaved rounds, so that other load does
not count. The last table is the share that observing weights has in steps of a model
of few and of many tensors, with a batch as small as any: larger ones only make the
share smaller.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from figures import print_table
from torch import nn

from distdoctor.probes import registry
from distdoctor.probes.fingerprints import exact
from distdoctor.probes.fingerprints.on_device import sums
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replicas import weight_fingerprints

SMALL, WIDTH = 4000, 768
STEPS = 40
GOAL = 5.0  # per cent of a step, for all observers together


def best(tasks: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds of processor time that each task takes at its best."""
    found = dict.fromkeys(tasks, float("inf"))
    for task in tasks.values():
        task()
    for _ in range(rounds):
        for name, task in tasks.items():
            begin = time.process_time()
            task()
            found[name] = min(found[name], time.process_time() - begin)
    return found


def of_one(mib: int, rounds: int) -> list[list[str]]:
    """One large tensor."""
    large = torch.randn(mib * 2**20 // 4)
    took = best(
        {
            "plain read (sum)": large.sum,
            "fingerprint": lambda: exact.of_tensor(large),
            "fingerprint by torch's sums": lambda: sums([large]),
        },
        rounds,
    )
    plain = took["plain read (sum)"]
    return [
        [name, f"{large.nbytes / one / 1e9:.1f}", f"{one / plain:.2f}"]
        for name, one in took.items()
    ]


def of_many(rounds: int) -> list[list[str]]:
    """Thousands of small tensors."""
    small = [torch.randn(WIDTH) for _ in range(SMALL)]
    heads = exact.Heads(256)
    took = best(
        {
            "plain read (sum)": lambda: [one.sum() for one in small],
            "fingerprints": lambda: exact.of_tensors(small),
            "fingerprints by torch's sums": lambda: sums(small),
            "first bytes of 16, as at each step": lambda: heads.print_of(small[:16]),
        },
        rounds,
    )
    return [[name, f"{one / SMALL * 1e6:.2f}"] for name, one in took.items()]


def in_steps(layers: int, width: int, rounds: int) -> list[str]:
    """Steps of a model with that many layers, with the observers and without."""
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randn(8, width)

    def train() -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

    writer = RECORDER.writer

    def unseen() -> None:
        RECORDER.writer = None
        train()
        RECORDER.writer = writer

    def first() -> None:
        registry.reset()  # so that all the looks at the first steps are in
        train()

    took = best({"seen": train, "first": first, "unseen": unseen}, rounds)
    plain = took["unseen"]
    shares = [(took[name] - plain) / plain * 100 for name in ("first", "seen")]
    parameters = sum(one.numel() for one in model.parameters())
    return [
        f"{2 * layers} tensors, {parameters / 1e6:.2f} M",
        f"{plain / STEPS * 1e3:.2f}",
        *(f"{share:.1f}" for share in shares),
        f"{GOAL:.0f}",
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print_table(
        (f"{options.mib} MiB", "GB/s", "times a read"),
        of_one(options.mib, options.rounds),
    )
    print()
    print_table((f"{SMALL} of {WIDTH}", "µs each"), of_many(options.rounds))
    print()
    with tempfile.TemporaryDirectory() as folder:
        RECORDER.folder = Path(folder)
        RECORDER.open(0, 1)
        weight_fingerprints.install()
        heads = (
            "model",
            "step ms",
            f"% in the first {STEPS} steps",
            "% later",
            "goal",
        )
        rows = [
            in_steps(layers, width, options.rounds)
            for layers, width in ((3, 64), (12, 256), (200, 32), (4, 1024))
        ]
        print_table(heads, rows)
        RECORDER.close()


if __name__ == "__main__":
    main()
