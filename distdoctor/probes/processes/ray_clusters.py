"""Records that a program joined a cluster of Ray, and whether the job started that.

Workers of one that it did not start have no probes: what they do is not seen. Of a
cluster over several machines, the job may have started the part on this one alone.
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

_PARTS = (b"gcs_server", b"raylet")
"""Programs of a cluster: it has one of the first, and each machine in it one of the
second. Source: Ray 2.60, as seen."""


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
    session = Path(str(told.get("session_dir") or "")).name
    ours = bool(session) and any(map(_is_ours, _parts(session)))
    address = str(told.get("gcs_address") or "ray://")
    RECORDER.append(
        CLUSTERS_FILE, {"pid": os.getpid(), "address": address, "ours": ours}
    )


def _parts(session: str) -> Iterator[Path]:
    """Folders in /proc of the programs that are the cluster with that session."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            program, *rest = (folder / "cmdline").read_bytes().split(b"\0")
            if program.endswith(_PARTS) and session.encode() in b"\0".join(rest):
                yield folder


def _is_ours(folder: Path) -> bool:
    mark = f"{FOLDER_VARIABLE}={os.environ.get(FOLDER_VARIABLE, '')}"
    with suppress(OSError):
        return mark.encode() in (folder / "environ").read_bytes().split(b"\0")
    return False


PROBE = Probe(imports={"ray": _watch})
