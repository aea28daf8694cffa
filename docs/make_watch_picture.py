"""Makes `docs/watch.svg`: the screen of `distdoctor watch` beside a job that runs.

python docs/make_watch_picture.py       runs the job on four ranks, a minute
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from distdoctor.errors import DistdoctorError
from distdoctor.watching.record_watch import RecordWatch
from distdoctor.watching.watch_screen import WatchApp

DOCS = Path(__file__).parent
SIZE = (90, 18)
WAITED_S = 5.0  # so long others have waited for rank 0
PATIENCE_S = 120.0


def main() -> None:
    """Run the job, watch it, and draw the screen when ranks wait."""
    with tempfile.TemporaryDirectory(prefix="run-") as name:
        folder = Path(name)
        shutil.copy(DOCS / "picture" / "evaluate.py", folder / "train.py")
        command = [sys.executable, "-m", "distdoctor", "check", "train.py", "-n", "4"]
        with subprocess.Popen(
            [*command, "--record", "record"], cwd=folder, stdout=subprocess.DEVNULL
        ) as job:
            try:
                watch = waiting(folder / "record")
                (DOCS / "watch.svg").write_text(asyncio.run(drawn(watch)))
            finally:
                job.terminate()


def waiting(folder: Path) -> RecordWatch:
    """The watch of the job, once ranks have waited for long."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        time.sleep(0.5)
        try:
            watch = RecordWatch(folder)
        except DistdoctorError:
            continue
        for _ in range(200):
            seen = watch.look()
            if any((one.since_s or 0) >= WAITED_S for one in seen.waits):
                return watch
            time.sleep(0.5)
    sys.exit("no rank has waited for another one")


async def drawn(watch: RecordWatch) -> str:
    """The screen as an SVG."""
    app = WatchApp([watch])
    async with app.run_test(size=SIZE) as pilot:
        picture = ""
        while not ("waiting" in picture and "Quit" in picture):  # all is drawn
            await pilot.pause(0.5)
            picture = app.export_screenshot(title="distdoctor watch")
    # Whoever looks at a picture should not ask a server for its letters.
    picture = re.sub(r"@font-face\s*\{.*?\}", "", picture, flags=re.DOTALL)
    lines = (line.rstrip() for line in picture.splitlines())
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
