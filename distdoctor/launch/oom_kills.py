"""Counts processes that the kernel's out-of-memory killer has ended.

A rank that the out-of-memory killer takes says nothing, and its launcher only sees the
signal 9. The kernel counts such kills: for a control group in `memory.events` (cgroup
v2, "oom_kill") or `memory.oom_control` (v1), and for the machine in `/proc/vmstat`.

Source: Linux, Documentation/admin-guide: cgroup-v2.rst, cgroup-v1/memory.rst.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


class OutOfMemoryKills:
    """Counts kills by the out-of-memory killer since it was made.

    Attributes:
        file: The file that holds the count; None if the kernel has none.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self.file = _counter(proc)
        self._before = self._read()

    @property
    def is_of_group(self) -> bool:
        """Whether only processes of this control group are counted."""
        return self.file is not None and self.file.name.startswith("memory.")

    def count(self) -> int:
        """How many kills there were; 0 also if unknown."""
        return max(0, self._read() - self._before)

    def _read(self) -> int:
        with suppress(OSError, ValueError, LookupError):
            if self.file is not None:
                return _field(self.file.read_text())
        return 0


def _counter(proc: Path) -> Path | None:
    """The file whose counter is the nearest to the job."""
    candidates = [*_of_group(proc), proc / "vmstat"]
    for file in candidates:
        with suppress(OSError, ValueError, LookupError):
            _field(file.read_text())
            return file
    return None


def _of_group(proc: Path) -> list[Path]:
    """Files of this process's own control group, which its children share."""
    mounts: dict[str, Path] = {}
    groups: dict[str, str] = {}
    with suppress(OSError, ValueError, LookupError):
        for line in (proc / "self" / "mounts").read_text().splitlines():
            _, at, kind, options = line.split()[:4]
            if kind == "cgroup2":
                mounts["v2"] = Path(at)
            elif kind == "cgroup" and "memory" in options.split(","):
                mounts["v1"] = Path(at)
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                groups["v2"] = path
            elif "memory" in controllers.split(","):
                groups["v1"] = path
    names = {"v2": "memory.events", "v1": "memory.oom_control"}
    found = []
    for version, name in names.items():
        if version in mounts and version in groups:
            mount = mounts[version]
            # In a container the mount may be the group itself.
            inner = mount / groups[version].lstrip("/")
            found += [inner / name, mount / name]
    return found


def _field(text: str) -> int:
    """The number of kills in a file of the kernel's: lines of a name and a number.

    Raises:
        KeyError: It does not tell.
    """
    lines = map(str.split, text.splitlines())
    return int({words[0]: words[1] for words in lines if len(words) > 1}["oom_kill"])
