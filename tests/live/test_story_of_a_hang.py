"""The story in docs/postmortem.md: its commands run, and print what it says."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "docs" / "one_late_shard.py"

# Four ranks write into one file, and where Python does not buffer a line and its
# end are two writes: two ranks' words may stand in one line.
_FIRST_STEPS = """
until [ "$(grep -o 'step 2' job.out | wc -l)" = 4 ]; do sleep 0.5; done
sleep 3
"""
_LONGEST_S = 300


def story() -> list[tuple[str, str]]:
    """Kind and text of the blocks of the story, in order."""
    text = (ROOT / "docs" / "postmortem.md").read_text()
    section = text.partition("## The story of one hang\n")[2].partition("\n## ")[0]
    return re.findall(r"^```(\w+)\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)


def without_figures(line: str) -> str:
    """A line, with any duration in it made one."""
    return re.sub(r"for \d+ s", "for N s", line.strip())


def test_its_commands_print_what_it_says(tmp_path: Path) -> None:
    blocks = story()
    program = ""
    reported: list[list[str]] = []
    for kind, text in blocks:
        if kind == "sh":
            program += f"echo '=== {len(reported)}'\n{text}"
            if not reported:
                program += _FIRST_STEPS
            reported.append([])
        else:
            reported[-1] += text.splitlines()
    shutil.copy(SCRIPT, tmp_path)
    bin_ = Path(sys.executable).parent
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
    environment["PATH"] = f"{bin_}:{environment['PATH']}"
    job = subprocess.Popen(
        ["bash", "-c", program],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        printed, _ = job.communicate(timeout=_LONGEST_S)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    parts = re.split(r"^=== \d+\n", printed.decode(), flags=re.MULTILINE)[1:]
    assert len(parts) == len(reported), printed.decode()
    for part, lines in zip(parts, reported, strict=True):
        shown = {without_figures(line) for line in part.splitlines()}
        assert {without_figures(line) for line in lines} <= shown, part
