"""What a probe costs one operation that Horovod is asked for.

Two ranks each submit many small allreduces by `hvd.allreduce_async_`, in blocks with
and without the probes in turn, in one process: what a probe has wrapped is taken off
and put back between them. Only the submitting is timed, not the waiting.

    python benchmarks/horovod_submits.py --blocks 20 --calls 300

It prints, for each rank, the median time of a call with and without probes and their
difference. Absolute times are those of the machine; compare what one run prints.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path


def _measure(blocks: int, calls: int) -> None:
    """In a rank: time the submits of each block."""
    import horovod.torch as hvd
    import torch
    from horovod.torch import mpi_ops

    hvd.init()
    core = mpi_ops.mpi_lib
    probed = {
        name: function
        for name in dir(core)
        if hasattr(function := getattr(core, name), "__wrapped__")
    }
    if not probed:
        sys.exit("no probes are in place: is this run by `distdoctor check`?")
    tensors = [torch.zeros(1000) for _ in range(calls)]
    times: dict[bool, list[float]] = {True: [], False: []}
    for block in range(2 * blocks):
        with_probes = block % 2 == 0
        for name, function in probed.items():
            setattr(core, name, function if with_probes else function.__wrapped__)
        hvd.barrier()
        begin = time.perf_counter()
        handles = [
            hvd.allreduce_async_(tensor, name=f"tensor.{n}")
            for n, tensor in enumerate(tensors)
        ]
        took = time.perf_counter() - begin
        for handle in handles:
            hvd.synchronize(handle)
        times[with_probes].append(1e6 * took / calls)
    for name, function in probed.items():
        setattr(core, name, function)
    with_probes_us, bare_us = (statistics.median(times[key]) for key in (True, False))
    print(
        f"rank {hvd.rank()}: {bare_us:.1f} µs bare, "
        f"{with_probes_us:.1f} µs with probes, +{with_probes_us - bare_us:.1f} µs",
        flush=True,
    )


def main() -> None:
    """Run the ranks under distdoctor, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--blocks", type=int, default=20, help="of each kind")
    parser.add_argument("--calls", type=int, default=300, help="in a block")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank:
        _measure(asked.blocks, asked.calls)
        return
    folder = Path(sys.executable).parent
    ranks = [
        *(str(folder / "horovodrun"), "-np", "2", "--gloo"),
        *("--network-interface", "lo", sys.executable, __file__, "--rank"),
        *("--blocks", str(asked.blocks), "--calls", str(asked.calls)),
    ]
    command = [sys.executable, "-m", "distdoctor", "check", "--budget", "600"]
    subprocess.run([*command, "--", *ranks], check=False, timeout=900)


if __name__ == "__main__":
    main()
