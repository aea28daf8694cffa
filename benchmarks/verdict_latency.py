"""How soon after a job stands still the verdict is there, over all patients.

    python benchmarks/verdict_latency.py

Runs every patient under `distdoctor check` and takes `run.proof_ms` of its report: the
time from the last record, or the last end of a rank, to the proof. A patient whose job
ends by itself, or that is watched until its budget is spent, has none.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import print_table

PATIENTS = Path(__file__).parent.parent / "fixtures" / "patients"


def proof_ms(patient: Path, folder: Path) -> float | None:
    """Milliseconds from the standstill of a sick patient to its proof."""
    ranks = re.search(r"^RANKS = (\d+)", patient.read_text(), re.MULTILINE)
    assert ranks
    report, record = folder / f"{patient.stem}.json", folder / patient.stem
    options = ["--format", "json", "--output", str(report), "--record", str(record)]
    subprocess.run(
        [
            *(sys.executable, "-m", "distdoctor", "check", str(patient)),
            *(*options, "-n", ranks[1], "--", "sick"),
        ],
        cwd=folder,
        capture_output=True,
        timeout=300,
        check=False,
    )
    figure: float | None = json.loads(report.read_text())["run"]["proof_ms"]
    return figure


def main() -> None:
    """Print a row per patient, the median and the maximum."""
    figures: dict[str, float | None] = {}
    with tempfile.TemporaryDirectory() as folder:
        for patient in sorted(PATIENTS.glob("dd*.py")):
            figures[patient.stem] = proof_ms(patient, Path(folder))
    print_table(
        ["patient", "ms"],
        [
            [name, "no proof needed" if figure is None else f"{figure:.1f}"]
            for name, figure in figures.items()
        ],
    )
    known = [figure for figure in figures.values() if figure is not None]
    print(f"median {statistics.median(known):.1f} ms, maximum {max(known):.1f} ms")


if __name__ == "__main__":
    main()
