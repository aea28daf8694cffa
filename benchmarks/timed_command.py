"""Runs a command to its end, or ends it with all that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path


def run_for(
    limit_s: float,
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    output: Path,
) -> int | None:
    """Run a command in a session of its own, and kill what it leaves there.

    Args:
        limit_s: Seconds after which it is killed, too.
        command: Program and arguments.
        folder: Where it runs.
        environment: All of its environment.
        output: The file that what it prints is written to.

    Returns:
        Its exit status; None if it was killed.
    """
    with (
        output.open("wb") as said,
        subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
