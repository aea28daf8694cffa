"""Checks whether the machine has GPUs that torch can use."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from distdoctor.errors import LaunchRefused

_QUESTION = "import torch; print('gpus', torch.cuda.device_count())"
_DEADLINE_S = 120.0  # importing torch took over 30 on a busy machine


def require_gpus(command: Sequence[str]) -> None:
    """Raise unless a job that is to run on GPUs finds some.

    Args:
        command: Command of the job; its Python is asked, if it names one.

    Raises:
        LaunchRefused: torch sees none, or cannot be asked.
    """
    first = Path(command[0])
    python = command[0] if first.name.startswith("python") else sys.executable
    try:
        answer = subprocess.run(
            [python, "-c", _QUESTION],
            capture_output=True,
            text=True,
            timeout=_DEADLINE_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchRefused(
            f"{python} cannot be asked for GPUs: {error}; `--device cpu` needs none"
        ) from error
    count = answer.rpartition("gpus ")[2].strip()
    if not count.isdigit() or not int(count):
        raise LaunchRefused(
            "--device cuda: torch sees no GPU here; leave the option out, and the CPU "
            "stands in for GPUs"
        )
