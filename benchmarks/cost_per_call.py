"""What the probes add to one small all_reduce, and what torch's own checking adds.

Run it with

    python benchmarks/cost_per_call.py

First alone: one process on the `fake` backend, where no peer and no wait blurs the
figure; beside it stands an empty kernel, the price of watching in the dispatcher at
all, below which no probe in Python can get. Then on two gloo ranks, against
TORCH_DISTRIBUTED_DEBUG=DETAIL; there most of the cost lies in sleeping and waking, and
the probes find colder caches. All variants take turns in the same processes, in blocks;
every figure is a median over the rounds, and what is added is compared with the bare
block of the same round.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from figures import print_table, spread
from ranks import on_two_ranks
from switch import Switch
from torch._C._distributed_c10d import DebugLevel, FakeWork, set_debug_level
from torch.library import Library
from torch.testing._internal.distributed.fake_pg import FakeStore

GOAL_CPU_US = 12.0
GOAL_RATIO = 20.0

_WARM_UP = 50  # calls after each switch: specs, boards and call sites are made once

Variant = tuple[str, Callable[[], AbstractContextManager[Any]], dist.ProcessGroup]
Rounds = dict[str, list[tuple[float, float]]]
"""By variant, CPU and wall microseconds per call of each round."""


def measure(variants: list[Variant], rounds: int, calls: int) -> Rounds:
    """Blocks of calls, all variants in turn, each round beginning with another."""
    tensor = torch.ones(8)
    found: Rounds = {name: [] for name, _, _ in variants}
    for n in range(rounds):
        first = n % len(variants)
        for name, place, group in variants[first:] + variants[:first]:
            with place():
                for _ in range(_WARM_UP):
                    dist.all_reduce(tensor, dist.ReduceOp.MAX, group)
                wall, cpu = time.perf_counter(), time.process_time()
                for _ in range(calls):
                    dist.all_reduce(tensor, dist.ReduceOp.MAX, group)
                cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
                found[name].append((cpu / calls * 1e6, wall / calls * 1e6))
    return found


@contextmanager
def _only_passing_on() -> Iterator[None]:
    """A kernel that does nothing: what the way of watching costs before it watches."""
    library = Library("c10d", "IMPL")
    select, redispatch = (
        torch._C.DispatchKey.BackendSelect,
        torch.ops.c10d.allreduce_.default.redispatch,
    )

    def kernel(keyset: Any, *args: Any) -> Any:
        return redispatch(keyset.remove(select), *args)

    library.impl("allreduce_", kernel, "BackendSelect", with_keyset=True)
    try:
        yield
    finally:
        library._destroy()


@contextmanager
def _waits_seen(switch: Switch) -> Iterator[None]:
    """The probes, which see also FakeWork's own `wait`: other backends inherit it."""
    own = vars(FakeWork)["wait"]
    with switch.on():
        FakeWork.wait = dist.Work.wait  # type: ignore[method-assign]
        try:
            yield
        finally:
            FakeWork.wait = own  # type: ignore[method-assign]


def alone(rounds: int, calls: int) -> Rounds:
    """One process of a world of two, on the backend that does nothing."""
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    world = dist.group.WORLD
    assert world is not None
    with tempfile.TemporaryDirectory() as folder:
        switch = Switch(Path(folder), rank=0, world_size=2)
        found = measure(
            [
                ("bare", nullcontext, world),
                ("empty kernel", _only_passing_on, world),
                ("probes", lambda: _waits_seen(switch), world),
            ],
            rounds,
            calls,
        )
    dist.destroy_process_group()
    return found


def together(rank: int, folder: Path, options: dict[str, Any]) -> Rounds:
    """On gloo, with a peer."""
    world = dist.group.WORLD
    assert world is not None
    # The level is read when a group is made.
    set_debug_level(DebugLevel.DETAIL)
    detail = dist.new_group()
    set_debug_level(DebugLevel.OFF)
    assert detail is not None
    switch = Switch(folder, rank, world_size=2)
    return measure(
        [
            ("bare", nullcontext, world),
            ("probes", switch.on, world),
            ("DETAIL", nullcontext, detail),
        ],
        options["rounds"],
        options["calls"],
    )


def show(title: str, ranks: list[Rounds]) -> dict[str, float]:
    """Print a table of both clocks; gives the CPU microseconds each variant adds."""
    rows = []
    added = {}
    mean = {
        name: [
            tuple(map(statistics.mean, zip(*same_round, strict=True)))
            for same_round in zip(*(found[name] for found in ranks), strict=True)
        ]
        for name in ranks[0]
    }
    for name, samples in mean.items():
        row = [name]
        for clock in (0, 1):
            own = [sample[clock] for sample in samples]
            more = [
                sample[clock] - bare[clock]
                for sample, bare in zip(samples, mean["bare"], strict=True)
            ]
            row += [f"{statistics.median(own):.1f}"]
            row += ["" if name == "bare" else spread(more)]
            if clock == 0:
                added[name] = statistics.median(more)
        rows.append(row)
    print(title)
    print_table(("µs per call", "CPU", "added", "wall", "added"), rows)
    print()
    return added


def main() -> None:
    """Measure both ways and compare with the goals."""
    parser = argparse.ArgumentParser(description="Cost of the probes per call.")
    parser.add_argument("--rounds", type=int, default=31)
    options = parser.parse_args()
    print(f"medians of {options.rounds} rounds, quartiles in brackets\n")

    calls = 1000
    found = alone(options.rounds, calls)
    title = f"one process, fake backend, {calls} calls a block"
    added_alone = show(title, [found])
    best = {name: min(cpu for cpu, _ in samples) for name, samples in found.items()}

    calls = 250
    both = on_two_ranks(together, {"rounds": options.rounds, "calls": calls})
    added = show(f"2 gloo ranks, {calls} calls a block, mean of both ranks", both)

    ratio = added["DETAIL"] / added["probes"]
    print_table(
        ("", "measured", "goal"),
        [
            [
                "CPU µs added, alone",
                f"{added_alone['probes']:.1f}",
                f"at most {GOAL_CPU_US:.0f}",
            ],
            ["  by an empty kernel", f"{added_alone['empty kernel']:.1f}", ""],
            ["  best block", f"{best['probes'] - best['bare']:.1f}", ""],
            ["CPU µs added, 2 ranks", f"{added['probes']:.1f}", ""],
            ["CPU µs added by DETAIL, 2 ranks", f"{added['DETAIL']:.1f}", ""],
            ["DETAIL / probes", f"{ratio:.1f}", f"at least {GOAL_RATIO:.0f}"],
        ],
    )


if __name__ == "__main__":
    main()
