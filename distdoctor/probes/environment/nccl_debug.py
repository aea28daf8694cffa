"""Asks NCCL for its debug log, where ranks are about to use it.

NCCL reads its variables when the first communicator is made, which is behind the first
`init_process_group`. What the user has set, in the environment or in NCCL's files of
settings, stays as it is; if that is a log in a file, the record tells where it lies.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch

from distdoctor.journal.environment import FOLDER_VARIABLE, NCCL_LOG_VARIABLE
from distdoctor.journal.layout import NCCL_FOLDER, NCCL_LOGS_FILE
from distdoctor.journal.private_files import make_private_folder
from distdoctor.probes import gpu_emulation
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

LEVEL, SUBSYSTEMS, FILE = "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"

_WANTED = "INIT,BOOTSTRAP,ENV,NET"
"""What is printed while communicators are made, and errors: nothing at each call."""

_LONGEST_FILE = 1 << 16

_NO_FILES = ("/dev/", "/proc/")
"""Below these are terminals and pipes."""


def install() -> None:
    """Set NCCL's variables, or note where the user has its log written."""
    if os.environ.get(NCCL_LOG_VARIABLE) != "1" or not _uses_gpus():
        return
    folder = os.environ[FOLDER_VARIABLE]
    given = {**_settings_in_files(), **os.environ}
    # Each changes what the others do: with the user's COLL, our level would write a
    # line for each call.
    if given.keys() & {LEVEL, SUBSYSTEMS, FILE}:
        if FILE in given:
            path = os.path.abspath(expanded(given[FILE]))  # noqa: PTH100 - without ".."
            if not path.startswith(_NO_FILES):
                RECORDER.append(NCCL_LOGS_FILE, {"path": path})
        return
    logs = make_private_folder(Path(folder) / NCCL_FOLDER)
    os.environ[LEVEL] = "INFO"
    os.environ[SUBSYSTEMS] = _WANTED
    os.environ[FILE] = str(logs).replace("%", "%%") + "/%h.%p.log"


def expanded(pattern: str) -> str:
    """The file that NCCL writes for a pattern in this process.

    >>> expanded("/tmp/100%%.log")
    '/tmp/100%.log'

    Args:
        pattern: With `%h` for the host, `%p` for the process and `%%` for itself.
    """
    host = socket.gethostname().partition(".")[0]
    meant = {"h": host, "p": str(os.getpid()), "%": "%"}
    return re.sub("%(.)", lambda found: meant.get(found[1], found[0]), pattern)


def _uses_gpus() -> bool:
    """Whether there are GPUs of CUDA, and the CPU does not stand in for them."""
    return not gpu_emulation.is_in_place() and torch.cuda.device_count() > 0


def _settings_in_files() -> Mapping[str, str]:
    """What NCCL reads from files: the user's settings come before the system's."""
    # `Path.home` raises where a user has no name, as in containers.
    own = os.environ.get("NCCL_CONF_FILE") or os.path.expanduser("~/.nccl.conf")  # noqa: PTH111
    found: dict[str, str] = {}
    for path in ("/etc/nccl.conf", own):
        with suppress(OSError), Path(path).open(errors="replace") as file:
            for line in file.read(_LONGEST_FILE).splitlines():
                name, is_setting, value = line.partition("=")
                if is_setting and not line.startswith("#"):
                    found[name.strip()] = value.strip()
    return found


PROBE = Probe(install=install)
