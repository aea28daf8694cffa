"""Makes `docs/report.svg`, the README's picture: the report on a job that really ran.

python docs/make_picture.py              runs the job on four ranks, half a minute
python docs/make_picture.py RECORD       draws a record that was kept before
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from distdoctor.judging import judge
from distdoctor.report import text

DOCS = Path(__file__).parent
RANKS = 4
COLUMNS = 96


def main(arguments: list[str]) -> None:
    """Run the job unless a record of it is given, and draw the report."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(arguments[0]) if arguments else run_job(Path(folder))
        (DOCS / "report.svg").write_text(draw(record), encoding="utf-8")


def run_job(folder: Path) -> Path:
    """Check a copy of the job, so that the report names it as `train.py`.

    Returns:
        The record folder.
    """
    shutil.copy(DOCS / "picture" / "train.py", folder)
    command = ["check", "train.py", "-n", str(RANKS), "--record", "record"]
    done = subprocess.run(
        [sys.executable, "-m", "distdoctor", *command], cwd=folder, check=False
    )
    if done.returncode != 1:  # sick, as it should be
        sys.exit(f"the job was not found sick: exit status {done.returncode}")
    return folder / "record"


def draw(record: Path) -> str:
    """The report on a record as an SVG."""
    judgement = judge(record)
    report = text.render(judgement.report, judgement.run, width=COLUMNS, colour=True)
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(report))
    title = f"distdoctor check train.py -n {RANKS}"
    drawn = console.export_svg(title=title, theme=MONOKAI, unique_id="report")
    # Whoever looks at a picture should not ask a server for its letters.
    return re.sub(r" *@font-face \{.*?\}\n", "", drawn, flags=re.DOTALL)


if __name__ == "__main__":
    main(sys.argv[1:])
