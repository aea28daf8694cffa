"""Runs the commands of a story that a document tells, and compares what they print."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from told_commands import ROOT, STORIES, section


def run_story(document: str, folder: Path, behind: dict[int, str]) -> None:
    """Run a story's commands, and see that they print what the document says.

    Args:
        document: Its path in the repository.
        folder: Where they run, with the files that they need.
        behind: By block of commands, from 0, what a reader does behind it: to wait.
    """
    text = section(ROOT / document, STORIES[document][0])
    program = ""
    reported: list[list[str]] = []
    for kind, block in re.findall(
        r"^```(sh|text)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE
    ):
        if kind == "sh":
            number = len(reported)
            program += f"echo '=== {number}'\n{block}{behind.get(number, '')}"
            reported.append([])
        else:
            reported[-1] += block.splitlines()
    parts = _printed(program, folder)
    assert len(parts) == len(reported), parts
    for part, lines in zip(parts, reported, strict=True):
        shown = [_without_figures(line) for line in part.splitlines()]
        for line in map(_without_figures, lines):
            assert any(one.startswith(line) for one in shown), (
                f"{line!r} not in\n{part}"
            )


def _printed(program: str, folder: Path) -> list[str]:
    """What each block of a program printed."""
    bin_ = Path(sys.executable).parent
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
    environment["PATH"] = f"{bin_}:{environment['PATH']}"
    for ci in ("CI", "BUILD_NUMBER"):  # with these pytest cuts no line of its summary
        environment.pop(ci, None)
    job = subprocess.Popen(
        ["bash", "-c", program],
        cwd=folder,
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
    return re.split(r"^=== \d+\n", printed.decode(), flags=re.MULTILINE)[1:]


_LONGEST_S = 500


def _without_figures(line: str) -> str:
    """A line, with what differs from run to run made one."""
    line = re.sub(r"(for|in) [\d.]+ s", r"\1 N s", line.strip())
    line = re.sub(
        r"\d+ checks found nothing; \d+ do", "N checks found nothing; N do", line
    )
    return re.sub(r"torch \d\S+", "torch N", line)
