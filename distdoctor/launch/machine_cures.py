"""Words and commands by which a machine is given what it lacks."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

_IN_A_CONTAINER = re.compile(r"docker|containerd|kubepods|libpod|lxc")


def in_container(root: Path = Path("/")) -> bool:
    """Whether this process most likely runs in a container.

    There, limits and rights come from how it was started, and are not set within.

    Args:
        root: Of the file system that is looked at.
    """
    marks = (root / ".dockerenv", root / "run" / ".containerenv")
    if any(mark.exists() for mark in marks):
        return True
    try:
        text = (root / "proc" / "1" / "cgroup").read_text()
    except OSError:
        return False
    return _IN_A_CONTAINER.search(text) is not None


def started_with(*options: str) -> str:
    """The command that starts a container with these options."""
    return f"docker run {' '.join(options)} IMAGE"


def as_root(command: str) -> str:
    """A command that needs an administrator's rights."""
    return command if os.geteuid() == 0 else f"sudo {command}"


def installed(*, apt: str, dnf: str) -> tuple[str, ...]:
    """What installs packages of the system; nothing where we do not know how.

    Args:
        apt: Their names on Debian, Ubuntu and the like.
        dnf: Their names on Fedora, Red Hat and the like.
    """
    if shutil.which("apt-get"):
        return (as_root(f"apt-get install {apt}"),)
    if shutil.which("dnf"):
        return (as_root(f"dnf install {dnf}"),)
    return ()
