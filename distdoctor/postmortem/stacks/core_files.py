"""Core files: the memory of a process, of which pystack tells the stack of Python.

The rank is what the process's environment said when it started; the kernel puts that
at the top of the stack, before the name of the program (elf(5), getauxval(3)). Nothing
of a core is run: pystack reads it, and the symbols of the program that it names, in a
process of its own with limits.
"""

from __future__ import annotations

import re
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from distdoctor.postmortem.leavings import Leaving
from distdoctor.postmortem.rank_environment import RankIdentity, identity_of
from distdoctor.postmortem.stacks import debugger_dumps
from distdoctor.postmortem.stacks.thread_stacks import ProcessStacks

NO_PYSTACK = (
    "a core file, and pystack, which reads its stacks, is not installed: "
    "pip install 'distdoctor[cores]'"
)

_ET_CORE = 4
_PT_LOAD, _PT_NOTE = 1, 4
_NT_AUXV, _AT_EXECFN = 6, 31

_HEADER = struct.Struct("<16sHHIQQQIHHH")  # of ELF, up to the number of segments
_SEGMENT = struct.Struct("<IIQQQQQQ")
_NOTE = struct.Struct("<III")
_PAIR = struct.Struct("<QQ")

_MOST_NOTES = 16 * 1024 * 1024
_MOST_ENVIRONMENT = 2 * 1024 * 1024
_MOST_SEGMENTS = 65_535

_DEADLINE_S = 120.0  # measured: 0.4 s, with torch 4 s
_MOST_MEMORY = 8 * 1024**3
_MOST_OUTPUT = 16 * 1024 * 1024

_DAMAGED = (OSError, ValueError, OverflowError, struct.error)

_SIGNAL = re.compile(r"died due receiving signal (SIG[A-Z0-9]{2,8})")
_OF_DEBUGGERS = {"SIGSTOP", "SIGTRAP", "SIGINT", "SIGCONT"}


@dataclass(frozen=True, slots=True)
class CoreDump:
    """What a core file tells.

    Attributes:
        stacks: Of its process.
        identity: The rank that it was; None: its environment does not say it.
        signal: That ended it, such as "SIGSEGV"; empty: none did, a debugger wrote the
            core of a process that lived on.
    """

    stacks: ProcessStacks
    identity: RankIdentity | None
    signal: str


def is_core(head: bytes) -> bool:
    """Whether a file is a core.

    Args:
        head: Its first bytes.
    """
    if not head.startswith(b"\x7fELF") or len(head) < 18:
        return False
    return int.from_bytes(head[16:18], "big" if head[5] == 2 else "little") == _ET_CORE


def read_core(leaving: Leaving) -> CoreDump:
    """The stacks in a core file, and whose it is.

    Args:
        leaving: The file.

    Raises:
        OSError: It cannot be read, or pystack is not installed.
    """
    pystack = _pystack()
    if pystack is None:
        raise OSError(NO_PYSTACK)
    if leaving.is_packed:
        raise OSError("a core file that is packed: unpack it, so that pystack can read")
    text = _asked(pystack, leaving.path)
    found = debugger_dumps.of_text(text.splitlines())
    if not found:
        raise OSError("pystack finds no stack of Python in this core file")
    match = _SIGNAL.search(text)
    signal = match[1] if match and match[1] not in _OF_DEBUGGERS else ""
    environment = {}
    with suppress(*_DAMAGED), leaving.open() as file:
        environment = environment_in(file)
    return CoreDump(found[0], identity_of(environment), signal)


def _pystack() -> str | None:
    beside = Path(sys.executable).with_name("pystack")
    return str(beside) if beside.exists() else shutil.which("pystack")


def _asked(pystack: str, path: str) -> str:
    """What pystack writes of a core.

    Raises:
        OSError: It fails.
    """
    command = [pystack, "core", "--no-color", "--native-last", "--", path]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors
        ) as process:
            with suppress(OSError, ValueError):
                limit = _MOST_MEMORY, _MOST_MEMORY
                resource.prlimit(process.pid, resource.RLIMIT_DATA, limit)
                files = _MOST_OUTPUT, _MOST_OUTPUT
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, files)
            try:
                status = process.wait(_DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise OSError(
                    f"pystack did not read this core file within {_DEADLINE_S:.0f} s"
                ) from None
        if status:
            said = _text(errors).strip().splitlines() or ["it says nothing"]
            raise OSError(f"pystack cannot read this core file: {said[-1][:200]}")
        return _text(output)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_MOST_OUTPUT).decode(errors="replace")


def environment_in(file: IO[bytes]) -> dict[str, str]:
    """The environment with which the process of a core was started.

    Args:
        file: The core; only little-endian ones of 64 bits are understood.

    Returns:
        Variables; none if they were not found.

    Raises:
        ValueError: It is no such core, or damaged.
        struct.error: It ends too early.
    """
    header = file.read(_HEADER.size)
    marks, kind, *_, at, _, _, _, size, count = _HEADER.unpack(header)
    if not is_core(header) or marks[4:6] != b"\x02\x01" or kind != _ET_CORE:
        raise ValueError("no core of 64 bits")
    if size != _SEGMENT.size or count > _MOST_SEGMENTS:
        raise ValueError("segments of another form")
    file.seek(at)
    table = file.read(size * count)
    segments = [_SEGMENT.unpack_from(table, n * size) for n in range(count)]
    name = _program_name(file, segments)
    for kind, _, offset, address, _, stored, _, _ in segments:
        if kind == _PT_LOAD and address <= name < address + stored:
            begin = max(address, name - _MOST_ENVIRONMENT)
            file.seek(offset + begin - address)
            block = file.read(name - begin).rstrip(b"\0")
            return dict(_variables(block))
    return {}


def _program_name(file: IO[bytes], segments: list[tuple[int, ...]]) -> int:
    """The address of the program's name, behind that of the environment.

    Raises:
        ValueError: The core does not tell it.
    """
    for kind, _, offset, _, _, stored, _, _ in segments:
        if kind != _PT_NOTE:
            continue
        file.seek(offset)
        notes = file.read(min(stored, _MOST_NOTES))
        at = 0
        while at + _NOTE.size <= len(notes):
            of_name, of_value, what = _NOTE.unpack_from(notes, at)
            value = at + _NOTE.size + (of_name + 3) // 4 * 4
            if what == _NT_AUXV:
                whole = notes[value : value + of_value]
                pairs: dict[int, int] = dict(
                    _PAIR.iter_unpack(whole[: len(whole) // 16 * 16])
                )
                if _AT_EXECFN in pairs:
                    return pairs[_AT_EXECFN]
            at = value + (of_value + 3) // 4 * 4
    raise ValueError("no auxiliary vector")


def _variables(block: bytes) -> Iterator[tuple[str, str]]:
    """Variables at the end of a block of strings; arguments and data come before."""
    for word in reversed(block.split(b"\0")):
        name, equals, value = word.decode(errors="replace").partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,99}", name):
            return
        yield name, value[:1_000]
