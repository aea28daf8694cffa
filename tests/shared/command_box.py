"""A folder to run the command in, which knows what the command leaves behind."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

from distdoctor.launch.guarded_process import is_alive

DEADLINE_S = 300.0

_MARK = "DISTDOCTOR_TEST"


class Box:
    """Such a folder.

    Args:
        folder: An empty one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = f"{folder.name}-{os.getpid()}"
        self.environment = os.environ | {
            "XDG_CACHE_HOME": str(folder / "cache"),
            "TMPDIR": str(folder / "tmp"),
            "OMP_NUM_THREADS": "1",
            _MARK: self.mark,
        }
        (folder / "tmp").mkdir()

    def start(
        self, *arguments: str, stdout: int | IO[str] = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        """Start the command."""
        return subprocess.Popen(
            [sys.executable, "-m", "distdoctor", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run it to its end: exit status, stdout, stderr."""
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
        return process.returncode, out, err

    def interrupted(self, number: int, *arguments: str) -> tuple[int, str, str]:
        """Run it until the job says READY, and send it a signal: as `run` returns."""
        process = self.start(*arguments)
        assert process.stdout is not None
        for line in process.stdout:
            if "READY" in line:
                break
        process.send_signal(number)
        out, err = process.communicate(timeout=DEADLINE_S)
        return process.returncode, out, err

    def write(self, text: str, name: str = "train.py") -> None:
        """Put a script there."""
        (self.folder / name).write_text(text)

    def marked(self) -> list[psutil.Process]:
        """Processes of this box that live."""
        found = []
        for process in psutil.process_iter(["name"]):
            with suppress(psutil.Error, OSError):
                if process.environ().get(_MARK) == self.mark:
                    found.append(process)
        return [process for process in found if is_alive(process)]

    def records(self) -> list[Path]:
        """Records that were kept in the cache."""
        return list((self.folder / "cache").glob("distdoctor/runs/*"))

    def temporary(self) -> list[str]:
        """What is left in the folder for temporary files."""
        return [path.name for path in (self.folder / "tmp").iterdir()]
