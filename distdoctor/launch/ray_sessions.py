"""Gives Ray a folder for what it keeps while it runs, which goes with the job.

Ray leaves logs and sockets of each session behind, in a folder for temporary files. For
a job under watch that is one of its own. It stays where Ray would have it if the user
says so, and where a cluster runs already: its address is looked for there.

Source: Ray 2.60, _common/utils.py (`get_default_system_temp_dir`) and
_private/utils.py (`get_ray_address_file`, `validate_socket_filename`).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from distdoctor.journal.layout import RAY_FILE
from distdoctor.journal.private_files import write_private

_VARIABLE = "RAY_TMPDIR"
_ADDRESS = "ray/ray_current_cluster"
_PREFIX = "dd-"
_LONGEST = 36  # bytes of its name: those of Ray's sockets below it may have 107


def make_ray_folder(record: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Make the folder, if the job is to have one.

    Args:
        record: The record folder, which is told of it.
        environment: The job's.

    Returns:
        Variables that lead Ray there; none if it keeps to where it is.
    """
    usual = Path(environment.get("TMPDIR", "/tmp"))  # noqa: S108 - as Ray does
    if environment.get(_VARIABLE) or (usual / _ADDRESS).exists():
        return {}
    try:
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=usual)
    except OSError:  # Ray will tell of it, if the job uses it
        return {}
    try:
        if len(folder.encode()) <= _LONGEST:
            write_private(record / RAY_FILE, folder.encode())
            return {_VARIABLE: folder}
    except OSError:
        pass
    Path(folder).rmdir()
    return {}


def remove_ray_folder(record: Path) -> None:
    """Remove it, once no process of the job is left.

    Args:
        record: The record folder.
    """
    told = record / RAY_FILE
    with suppress(OSError):
        folder = Path(told.read_text())
        if folder.name.startswith(_PREFIX):
            shutil.rmtree(folder, ignore_errors=True)
        told.unlink()
