"""Records that a program joined a cluster of Ray which the job did not start.

Workers there have no probes: what they do is not seen.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from distdoctor.journal.environment import FOLDER_VARIABLE
from distdoctor.journal.layout import CLUSTERS_FILE
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_HEAD = b"gcs_server"
"""The program that each cluster has one of. Source: Ray 2.60, as seen."""


def _watch(module: ModuleType) -> None:
    made = module.__dict__["init"]

    @functools.wraps(made)
    def init(*args: Any, **kwargs: Any) -> Any:
        context = made(*args, **kwargs)
        _joined(context)
        return context

    module.__dict__["init"] = init


@harmless
def _joined(context: Any) -> None:
    told = getattr(context, "address_info", None) or {}  # none where a proxy stands for
    session = str(told.get("session_dir") or "")
    if not session or not any(_is_ours(folder) for folder in _heads(session)):
        address = str(told.get("gcs_address") or "ray://")
        RECORDER.append(CLUSTERS_FILE, {"pid": os.getpid(), "address": address})


def _heads(session: str) -> Iterator[Path]:
    """Folders in /proc of the programs that lead the cluster with that session."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            program, *rest = (folder / "cmdline").read_bytes().split(b"\0")
            if program.endswith(_HEAD) and session.encode() in b"\0".join(rest):
                yield folder


def _is_ours(folder: Path) -> bool:
    mark = f"{FOLDER_VARIABLE}={os.environ.get(FOLDER_VARIABLE, '')}"
    with suppress(OSError):
        return mark.encode() in (folder / "environ").read_bytes().split(b"\0")
    return False


PROBE = Probe(imports={"ray": _watch})
