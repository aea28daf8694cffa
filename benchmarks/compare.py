"""Figures of two commits, measured in turn on one machine, and their ratios.

Run it with

    python benchmarks/compare.py COMMIT [--with COMMIT] [--turns 3] [--lanes scale]

Each lane is one of the other benchmarks, cut short. It is run by the benchmarks of its
own commit, on the package of its own commit, once for each in every turn, so that what
else the machine does meets both; what a commit has to be compiled is built before. A
figure is the median over the turns; the ratio is the median of the ratios turn by turn,
with their range. What distdoctor needs is taken from this Python.

Whatever is a number in the tables that a benchmark prints is compared, cell by cell; a
row or column that only one of the commits has is left out, and said to be.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from figures import print_table

ROOT = Path(__file__).parent.parent
LIMIT_S = 900.0  # of one run of one lane

LANES: dict[str, list[str]] = {
    "scale": ["scale.py", "--cases", "mismatch", "--sizes", "1024", "4096"],
    "scale-full": ["scale.py", "--sizes", "4096", "16384"],
    "journal": ["journal.py"],
    "cost_per_call": ["cost_per_call.py", "--rounds", "7"],
    "startup": ["startup.py", "2"],
    "step_overhead": ["step_overhead.py", "--rounds", "20", "--runs", "2"],
}
"""By name, a benchmark and its arguments."""

QUICK = [name for name in LANES if name != "scale-full"]

_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")
_CELL = re.compile(r"\S+(?: \S+)*")

Cell = tuple[str, str, int]
"""Row, column, and which of the tables that a benchmark prints."""


@dataclass
class LaneFigures:
    """What one lane has shown of one commit: by cell, a figure for each turn."""

    cells: dict[Cell, list[float]] = field(default_factory=dict)
    failed: str = ""


def figures_of(output: str) -> dict[Cell, float]:
    r"""The numbers in the tables of a benchmark.

    >>> figures_of("ranks  seconds\n64     0.5 (0.4 to 0.6)\n")
    {('64', 'seconds', 1): 0.5}
    """
    found: dict[Cell, float] = {}
    heads: list[re.Match[str]] = []
    table = 0
    for line in output.splitlines():
        cells = [*_CELL.finditer(line)]
        if not heads:
            if len(cells) > 1 or line.startswith("  "):
                heads, table = cells[not line.startswith("  ") :], table + 1
            continue
        if not line.strip():
            heads = []
            continue
        # All columns but the first end where their heads do; a cell may be empty.
        row = _CELL.match(line.lstrip())
        for n, head in enumerate(heads):
            again = any(head[0] == earlier[0] for earlier in heads[:n])
            name = f"{heads[n - 1][0]}, {head[0]}" if again else head[0]
            for cell in cells:
                number = _NUMBER.match(cell[0])
                if row and number and cell.end() == head.end():
                    figure = float(number[0].replace(",", ""))
                    found[row[0], name, table] = figure
    return found


@contextmanager
def _tree(commit: str) -> Iterator[Path]:
    """The files of a commit, in a folder of their own."""
    command = ["git", "archive", commit]
    files = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    with tempfile.TemporaryDirectory() as path:
        subprocess.run(["tar", "-x", "-C", path], input=files, check=True)
        tree = Path(path)
        # Where a package has its checks; else those of this Python are found.
        (tree / "distdoctor" / "checks").symlink_to(tree / "checks")
        _compile(tree)
        yield tree


def _compile(tree: Path) -> None:
    """Build what a commit has to be compiled, as its installation would."""
    build = [sys.executable, "-c", "import setuptools; setuptools.setup()", "build_ext"]
    if any(tree.glob("distdoctor/**/*.c")):
        subprocess.run([*build, "--inplace"], cwd=tree, check=True, capture_output=True)


def _measure(tree: Path, lane: str, into: LaneFigures) -> None:
    script, *arguments = LANES[lane]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": ""}
    try:
        done = subprocess.run(
            [sys.executable, str(tree / "benchmarks" / script), *arguments],
            cwd=tree,
            env=environment,
            capture_output=True,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        into.failed = f"it took more than {LIMIT_S:.0f} s"
        return
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        into.failed = words[-1] if words else f"exit status {done.returncode}"
    for cell, value in figures_of(done.stdout.decode(errors="replace")).items():
        into.cells.setdefault(cell, []).append(value)


def _rows(before: LaneFigures, after: LaneFigures) -> Iterator[list[str]]:
    for cell, then in before.cells.items():
        now = after.cells.get(cell, [])
        pairs = [(a, b) for a, b in zip(then, now, strict=False) if a > 0]
        if not pairs:
            continue
        ratios = [b / a for a, b in pairs]
        yield [
            f"{cell[0]}: {cell[1]}",
            f"{statistics.median(a for a, _ in pairs):.6g}",
            f"{statistics.median(b for _, b in pairs):.6g}",
            f"{statistics.median(ratios):.2f}",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
        ]


def compare(commits: Sequence[str], lanes: Sequence[str], turns: int) -> None:
    """Measure and print."""
    with ExitStack() as stack:
        old, new = (stack.enter_context(_tree(commit)) for commit in commits)
        for lane in lanes:
            before, after = LaneFigures(), LaneFigures()
            order = [(old, before), (new, after)]
            for _ in range(turns):
                for tree, into in order:
                    _measure(tree, lane, into)
                order.reverse()
            print(f"{lane} ({' '.join(LANES[lane])})")
            for commit, one in zip(commits, (before, after), strict=True):
                if one.failed:
                    print(f"  {commit} failed: {one.failed}")
            if alone := set(before.cells) ^ set(after.cells):
                print(f"  {len(alone)} figures of one commit only")
            heads = ("figure", commits[0], commits[1], "ratio", "in turns")
            print_table(heads, [*_rows(before, after)])
            print(flush=True)


def main() -> None:
    """Compare two commits."""
    parser = argparse.ArgumentParser(description="Figures of two commits in turn.")
    parser.add_argument(
        "commit", help="the one before, for instance main's last release"
    )
    parser.add_argument("--with", dest="other", default="HEAD", help="the one after")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--lanes", nargs="+", choices=LANES, default=QUICK)
    options = parser.parse_args()
    compare([options.commit, options.other], options.lanes, options.turns)


if __name__ == "__main__":
    main()
