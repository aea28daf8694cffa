"""How many lines `distdoctor lint` reads in a second of one processor's time.

Run it with

    python benchmarks/lint_speed.py [FOLDER ...] [--turns 3]

Counts all lines of the Python files in the folders (by default this repository), also
of files that are passed over since they neither train nor communicate. The processor
time is that of reading and of all rules in one process, with advice, without starting
Python and without importing; the fastest of several turns, since what else the machine
does only slows it down.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from figures import print_table

from distdoctor.lint.linting import every_rule, lint

ROOT = Path(__file__).parent.parent


def main() -> None:
    """Measure the folders of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", default=[str(ROOT)], metavar="FOLDER")
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    every_rule()
    rows = []
    for folder in asked.folders:
        times = []
        for _ in range(asked.turns):
            begin = time.process_time()
            found = lint([folder], advice=True)
            times.append(time.process_time() - begin)
        took = min(times)
        parsed = sum(len(file.lines) for file in found.code.files)
        rows.append(
            [
                Path(folder).resolve().name,
                f"{len(found.read):,}",
                f"{found.lines:,}",
                f"{parsed:,}",
                f"{took:.1f}",
                f"{found.lines / took:,.0f}",
            ]
        )
    heads = ["folder", "files", "lines", "parsed", "processor s", "lines per s"]
    print_table(heads, rows)


if __name__ == "__main__":
    main()
