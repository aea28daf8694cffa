"""Records which software a rank runs: versions of packages, and the user's sources.

It is told when the rank has joined, again at its first optimizer step, for what was
imported by then, and at its end. Nothing is imported for it, and no code of the user's
is run: what is read are dictionaries of modules, names in folders of installed
packages, and the user's own files.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from distdoctor.probes.call_sites import is_users, text_of
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_MOST_FILES = 150
_LARGEST = 1 << 20  # bytes of a file
_MOST_BYTES = 2 << 20  # of all files; 1 MiB takes about 40 ms
_MOST_PACKAGES = 400
_MOST_FOLDERS = 8
_MOST_LINES = 16  # fingerprints that tell whether two files are versions of one

_OURS = ("distdoctor", "sitecustomize", "xxhash")
"""What we bring in, or import."""

_VERSION = re.compile(r"v?\d[\w.+!-]{0,39}$")
_INSTALLED = re.compile(r"(.+?)-(\d[^-]*)(?:-.*)?\.(?:dist|egg)-info$")
"""A folder beside an installed package.

Source: PyPA, Recording installed projects; setuptools, the internal structure of eggs.
"""

_MUTE = re.compile(rb"^[ \t]*#.*$|[ \t\r\f]+$", re.MULTILINE)
"""What does not count: lines that are comments, and blanks at ends of lines."""

_EMPTY = re.compile(rb"\n{2,}")

_REALTIME_COARSE = 5
"""Linux's clock that file systems read. Source: include/uapi/linux/time.h.

Python's own is ahead of it by up to 10 ms: a file made just now seems to be older.
"""


def _file_time_s() -> float:
    """Now, as a file that is made now will have it, in seconds since the epoch."""
    if sys.platform == "linux":
        return time.clock_gettime(_REALTIME_COARSE)
    return time.time()


class Inventory:
    """What this rank was seen to have imported, and told already."""

    def __init__(self) -> None:
        self._begun_s = 0.0
        self.reset()

    def reset(self) -> None:
        """Forget all state: the process starts to play in another run."""
        self._modules = 0
        self._packages: set[str] = set()
        self._files: set[str] = set()
        self._bytes = 0
        self._has_stepped = False

    def begin(self) -> None:
        """Called before the program's first line."""
        self._begun_s = _file_time_s()

    def stepped(self) -> None:
        """Called after an optimizer step."""
        if not self._has_stepped:
            self._has_stepped = True
            self.tell()

    @harmless
    def tell(self) -> None:
        """Record what was imported since this was called last."""
        if RECORDER.writer is None or len(sys.modules) == self._modules:
            return
        is_first = not self._modules
        self._modules = len(sys.modules)
        loaded: list[tuple[str, Any]] = list(sys.modules.items())  # anything may be
        modules = {name: one for name, one in loaded if isinstance(one, ModuleType)}
        self._tell_packages(modules, is_first)
        self._tell_sources(modules, is_first)

    def _tell_packages(self, modules: dict[str, ModuleType], is_first: bool) -> None:
        from distdoctor.model.observations.environment import Software

        found = dict(self._versions(modules))
        if is_first or found:
            software = Software(
                python=".".join(map(str, sys.version_info[:3])),
                implementation=sys.implementation.name,
                executable=sys.executable or "",
                packages=tuple(found),
                versions=tuple(found.values()),
            )
            RECORDER.observe(software)

    def _versions(self, modules: dict[str, ModuleType]) -> Iterator[tuple[str, str]]:
        folders: dict[str, dict[str, str]] = {}
        for name in sorted(modules):
            is_known = name in self._packages or len(self._packages) >= _MOST_PACKAGES
            is_no_package = name in sys.stdlib_module_names or name in _OURS
            if "." in name or name.startswith("_") or is_known or is_no_package:
                continue
            self._packages.add(name)
            if version := _version_of(name, _names_in(modules[name]), folders):
                yield name, version
            if name in _PARTS:
                yield from _PARTS[name](modules)

    def _tell_sources(self, modules: dict[str, ModuleType], is_first: bool) -> None:
        from distdoctor.model.observations.environment import Sources

        main = modules.get("__main__")
        program = _file_of(_names_in(main)) if main is not None else ""
        told: list[tuple[str, str, bytes]] = []
        constants: list[int] = []
        for name in sorted(modules):  # the program comes before what it imports
            names = _names_in(modules[name])
            file = _file_of(names)
            if not file or file in self._files or name == "__mp_main__":
                continue
            if len(self._files) >= _MOST_FILES:
                break
            self._files.add(file)
            if data := self._read(file):
                if name != "__main__" and not _defines(names, name):
                    constants.append(len(told))
                told.append((name, file, data))
        if is_first or told:
            sources = Sources(
                program=program,
                modules=tuple(name for name, _, _ in told),
                files=tuple(file for _, file, _ in told),
                texts=tuple(_fingerprint(data) for _, _, data in told),
                lines=tuple(_sketch(data) for _, _, data in told),
                constants=tuple(constants),
            )
            RECORDER.observe(
                sources, text_of(program, 1, "<module>") if program else ""
            )

    def _read(self, file: str) -> bytes:
        """What of a file counts; empty if it may be another than was imported."""
        try:
            status = os.stat(file)  # noqa: PTH116
            # Whoever puts a file in the place of another may keep the time of its
            # content, and not that of its entry.
            is_as_imported = max(status.st_mtime, status.st_ctime) < self._begun_s
            if not is_as_imported or status.st_size > _LARGEST:
                return b""
            self._bytes += status.st_size
            if self._bytes > _MOST_BYTES:
                return b""
            with open(file, "rb") as opened:  # noqa: PTH123
                data = opened.read(_LARGEST)
        except OSError:
            return b""  # it lies in an archive, or is gone
        return _EMPTY.sub(b"\n", _MUTE.sub(b"", data)).strip()


# --- modules ---


def _names_in(module: ModuleType) -> dict[str, Any]:
    """A module's dictionary, without what a module that loads late does when asked."""
    names: dict[str, Any] = ModuleType.__getattribute__(module, "__dict__")
    return names


def _file_of(names: dict[str, Any]) -> str:
    """The file of a module of the user's own that Python has read as source; or ""."""
    file = names.get("__file__")
    if type(file) is not str or not file.endswith(".py") or not is_users(file):
        return ""
    return os.path.abspath(file)  # noqa: PTH100


def _defines(names: dict[str, Any], module: str) -> bool:
    """Whether a module has a function or a class of its own."""
    for value in list(names.values()):
        if isinstance(value, FunctionType) and value.__module__ == module:
            return True
        if type(value) is type and value.__module__ == module:
            return True
        if isinstance(value, type) and value.__dict__.get("__module__") == module:
            return True
    return False


# --- versions ---


def _version_of(
    name: str, names: dict[str, Any], folders: dict[str, dict[str, str]]
) -> str:
    version = names.get("__version__")
    if isinstance(version, str) and _VERSION.match(version):
        return str.__str__(version)
    file = names.get("__file__")
    if type(file) is not str:
        return ""
    folder = os.path.dirname(file)  # noqa: PTH120
    if os.path.basename(file).startswith("__init__."):  # noqa: PTH119
        folder = os.path.dirname(folder)  # noqa: PTH120
    if folder not in folders:
        if len(folders) >= _MOST_FOLDERS:
            return ""
        folders[folder] = _installed_in(folder)
    return folders[folder].get(_plain(name), "")


def _installed_in(folder: str) -> dict[str, str]:
    """Versions of the packages that are installed in a folder, by their plain names.

    To read their metadata, as `importlib.metadata` does, takes some ms for each.
    """
    try:
        entries = os.listdir(folder)  # noqa: PTH208
    except OSError:
        return {}
    found = [match for entry in entries if (match := _INSTALLED.match(entry))]
    versions: dict[str, set[str]] = {}
    for match in found:
        versions.setdefault(_plain(match[1]), set()).add(match[2])
    return {name: some.pop() for name, some in versions.items() if len(some) == 1}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def _of_torch(modules: dict[str, ModuleType]) -> Iterator[tuple[str, str]]:
    version = _names_in(modules["torch.version"]) if "torch.version" in modules else {}
    for part in ("cuda", "hip"):
        if isinstance(version.get(part), str):
            yield f"torch.{part}", version[part]
    if (core := modules.get("torch._C")) is not None:
        ask = _names_in(core).get("_nccl_version")  # of the library that is loaded
        number = ask() if ask is not None else 0
        if isinstance(number, int) and number > 0:
            major, minor, patch = number >> 32, number >> 16 & 0xFFFF, number & 0xFFFF
            yield "torch.nccl", f"{major}.{minor}.{patch}"


def _of_horovod(modules: dict[str, ModuleType]) -> Iterator[tuple[str, str]]:
    """What Horovod was built with; its own version is that of the package."""
    for framework in ("torch", "tensorflow"):
        if (module := modules.get(f"horovod.{framework}.mpi_ops")) is None:
            continue
        names = _names_in(module)
        built = []
        for part in ("mpi", "gloo", "nccl", "cuda", "rocm", "ccl", "ddl"):
            ask = names.get(f"{part}_built")
            if ask is not None and (answer := ask()):
                built.append(
                    part if answer is True or part != "nccl" else f"nccl{answer}"
                )
        yield f"horovod.{framework} built with", "+".join(built) or "nothing"


_PARTS = {"torch": _of_torch, "horovod": _of_horovod}
"""By package, what else tells which one it is."""


# --- texts ---


def _fingerprint(data: bytes) -> str:
    import hashlib

    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _sketch(data: bytes) -> str:
    """The smallest fingerprints of a text's lines, in hexadecimal.

    The part that two texts' sketches share is about the part of lines that they share.
    """
    import zlib

    lines = {line.strip() for line in data.split(b"\n")}
    smallest = sorted(map(zlib.crc32, lines))[:_MOST_LINES]
    return "".join(f"{number:08x}" for number in smallest)


INVENTORY = Inventory()


PROBE = Probe(
    install=INVENTORY.begin,
    joined=INVENTORY.tell,
    stepped=lambda _: INVENTORY.stepped(),
    flush=INVENTORY.tell,
    reset=INVENTORY.reset,
)
