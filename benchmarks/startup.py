"""What `distdoctor check` adds to the start of a job, and how quick a question is.

    python benchmarks/startup.py [pairs]

Runs the same script under bare torchrun and under `distdoctor check` in turn, and gives
the difference pair by pair. Then asks what needs no torch, in turn with the shortest
program there is, and makes sure that torch was not imported.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import print_table

SCRIPT = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def seconds(folder: Path, arguments: list[str]) -> float:
    """Wall time of one run of Python."""
    begun = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        capture_output=True,
        timeout=300,
        check=False,
    )
    return time.perf_counter() - begun


def imports_torch(folder: Path, arguments: list[str]) -> bool:
    """Whether a run of Python imports torch, by Python's own account of it."""
    imports = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    ).stderr
    assert "site" in imports
    return any(
        line.rpartition("|")[2].strip() == "torch" for line in imports.splitlines()
    )


def main() -> None:
    """Print the differences and the ratios."""
    pairs = int(sys.argv[1]) if sys.argv[1:] else 5
    bare, checked = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        for n in range(pairs + 1):  # the first pair only warms the caches up
            a = seconds(folder, [*TORCHRUN, "train.py"])
            b = seconds(folder, ["-m", "distdoctor", "check", "train.py"])
            if n:
                bare.append(a)
                checked.append(b)
        added = [b - a for a, b in zip(bare, checked, strict=True)]
        ratio = [b / a for a, b in zip(bare, checked, strict=True)]
        print(
            f"check - torchrun: median {statistics.median(added):+.2f} s "
            f"({min(added):+.2f} to {max(added):+.2f}), "
            f"ratio {statistics.median(ratio):.2f}, {pairs} pairs"
        )
        questions = {
            "import distdoctor": ["-c", "import distdoctor"],
            "distdoctor --help": ["-m", "distdoctor", "--help"],
            "distdoctor explain DD101": ["-m", "distdoctor", "explain", "DD101"],
        }
        rows = []
        for label, arguments in questions.items():
            assert not imports_torch(folder, arguments), label
            asked = [
                (seconds(folder, arguments), seconds(folder, ["-c", "pass"]))
                for _ in range(15)
            ]
            more = statistics.median(a - b for a, b in asked)
            times = statistics.median(a / b for a, b in asked)
            rows.append([label, f"{1e3 * more:+.0f}", f"{times:.1f}", "no"])
        heads = ["against python -c pass", "ms added", "ratio", "imports torch"]
        print_table(heads, rows)


if __name__ == "__main__":
    main()
