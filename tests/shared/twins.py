"""One script run twice: as it is, and with the probes in its process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from distdoctor.journal.environment import (
    DEVICE_VARIABLE,
    FOLDER_VARIABLE,
    RANKS_VARIABLE,
    SUPERVISOR_VARIABLE,
)
from distdoctor.probes import NEEDLE

DEADLINE_S = 300.0

TELLING = """
import json, os
def tell(found):
    with open(os.environ["TOLD"], "w") as file:
        json.dump(found, file)
"""
"""What stands at the top of each script; it may tell once."""

JOINED = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""
"""What makes it a rank, so that all probes are in place."""


def told_bare(folder: Path, text: str) -> Any:
    """What a script tells that runs as it is."""
    return _told(folder, text, {})


def told_probed(folder: Path, text: str, device: str = "") -> Any:
    """What it tells with the probes in its process, as `distdoctor check` has it.

    Args:
        folder: For the script and the record; in that no probe may have lost anything.
        text: Of the script.
        device: "cpu" puts the CPU in the place of GPUs.
    """
    record = folder / "record"
    record.mkdir(mode=0o700)
    path = [str(NEEDLE), os.environ.get("PYTHONPATH", "")]
    told = _told(
        folder,
        text,
        {
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            FOLDER_VARIABLE: str(record),
            SUPERVISOR_VARIABLE: str(os.getpid()),
            DEVICE_VARIABLE: device,
            RANKS_VARIABLE: "1",
        },
    )
    losses = record / "losses.jsonl"
    assert not losses.exists(), losses.read_text()
    return told


def _told(folder: Path, text: str, variables: dict[str, str]) -> Any:
    (folder / "twin.py").write_text(TELLING + text)
    told = folder / "told.json"
    told.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "twin.py"],
        cwd=folder,
        env=os.environ
        | {"TOLD": str(told), "RANK": "0", "WORLD_SIZE": "1"}
        | variables,
        timeout=DEADLINE_S,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stdout + done.stderr
    return json.loads(told.read_text())
