"""Gives Ray a folder for what it keeps while it runs, which goes with the job.

Ray leaves logs and sockets of each session behind, in a folder for temporary files. For
a job under watch that is one of its own. It stays where Ray would have it if the user
says so, and where a cluster runs already: its address is looked for there.

A cluster has it by one name on all nodes, that of the node which leads the cluster. So
the head of a job over several nodes tells the others.

Source: Ray 2.60, _common/utils.py (`get_default_system_temp_dir`), in _private utils.py
(`get_ray_address_file`, `validate_socket_filename`) and node.py (`_init_temp`).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from distdoctor.journal.layout import RAY_FILE
from distdoctor.journal.private_files import make_private_folder, write_private

SESSIONS_VARIABLE = "RAY_TMPDIR"
"""Leads Ray to the folder."""

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
    if environment.get(SESSIONS_VARIABLE) or (usual / _ADDRESS).exists():
        return {}
    try:
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=usual)
    except OSError:  # Ray will tell of it, if the job uses it
        return {}
    try:
        if len(folder.encode()) <= _LONGEST:
            write_private(record / RAY_FILE, folder.encode())
            return {SESSIONS_VARIABLE: folder}
    except OSError:
        pass
    Path(folder).rmdir()
    return {}


def make_likewise(record: Path, name: str) -> None:
    """Make a folder of the same name on another node, if there is none.

    One that is there is left to others: nodes may share what they have for temporary
    files. Folders above it that are missing Ray makes itself, and they go with it.

    Args:
        record: The node's record folder, which is told of it.
        name: Of the folder on the node of the head.
    """
    folder = Path(name)
    if not (folder.is_absolute() and folder.name.startswith(_PREFIX)):
        return
    with suppress(OSError):
        if folder.exists():
            return
        missing = [one for one in folder.parents if not one.exists()]
        told = "\n".join(map(os.fspath, (folder, *missing)))
        write_private(record / RAY_FILE, told.encode())
        if not missing:
            make_private_folder(folder, below=0)


def remove_ray_folder(record: Path) -> None:
    """Remove it, once no process of the job is left.

    Args:
        record: The record folder.
    """
    told = record / RAY_FILE
    with suppress(OSError):
        folder, *above = map(Path, told.read_text().splitlines())
        if folder.name.startswith(_PREFIX):
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):  # somebody else uses them as well
                for one in above:
                    one.rmdir()
        told.unlink()
