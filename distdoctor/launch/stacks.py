"""Takes stacks of ranks from outside the process: by py-spy, or else by a signal.

py-spy needs the right to trace the process. The signal makes the rank's own
faulthandler write its stacks into the record folder; it needs no rights and no
interpreter lock, but tells no local variables.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import psutil

from distdoctor.journal.environment import STACK_SIGNAL_FROM_LAST
from distdoctor.journal.folder import StackFrame, StackSample
from distdoctor.launch.thread_waits import waits_for_a_thread

_DEADLINE_S = 5.0  # measured: 0.06 to 0.11 s a rank; a busy machine is slower
_SIGNAL_DEADLINE_S = 1.0
_MOST_FRAMES = 200
_LARGEST_DUMP = 1 << 20
_LINE = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')
_LIBRARIES = tuple(
    path
    for name in ("stdlib", "purelib", "platlib")
    if (path := sysconfig.get_paths().get(name))
)
_OURS = ("/distdoctor/probes/", "/distdoctor/pytest_plugin/")


def find_py_spy() -> str | None:
    """The py-spy program beside this Python, or on PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


@dataclass(frozen=True, slots=True)
class _Look:
    """What one look at a process told.

    Attributes:
        threads: The frames of each, innermost first; those of the main thread first.
        taken_by: "py-spy" or "signal".
        holds_gil: The main thread held the interpreter's lock; False: or not known.
        stranded: Each thread waited for another one; False: or not known.
    """

    threads: list[list[StackFrame]]
    taken_by: str = "py-spy"
    holds_gil: bool = False
    stranded: bool = False


class StackTaker:
    """Takes stacks of ranks, and remembers whether py-spy is permitted to.

    Attributes:
        remark: A note for the report on how stacks were taken; may be empty.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._py_spy = find_py_spy()
        self.remark = ""
        if self._py_spy is None:
            self.remark = "py-spy is not installed: stacks came by a signal"

    def take(
        self, ranks: Sequence[tuple[int, int]], seconds: float
    ) -> list[StackSample]:
        """User frames of all threads; ranks that do not answer are left out.

        Args:
            ranks: Rank and process number of each.
            seconds: Since the start of the run.
        """
        started = [(rank, pid, self._start(pid)) for rank, pid in ranks]
        samples = []
        for rank, pid, process in started:
            look = self._look_by_py_spy(pid, process)
            if look is None and (threads := self._signal_stacks(pid)):
                look = _Look(threads, "signal")
            if look is not None:
                samples.append(
                    StackSample(
                        rank=rank,
                        pid=pid,
                        seconds=round(seconds, 3),
                        cpu_seconds=_cpu_seconds(pid),
                        taken_by=look.taken_by,
                        holds_gil=look.holds_gil,
                        stranded=look.stranded,
                        frames=_training(look.threads),
                        standing=[
                            list(_users(frames))
                            for frames in look.threads
                            if _is_standing(frames)
                        ],
                    )
                )
        return samples

    def _start(self, pid: int) -> subprocess.Popen[bytes] | None:
        if self._py_spy is None:
            return None
        return subprocess.Popen(
            [self._py_spy, "dump", "--json", "--locals", "--pid", str(pid)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )

    def _look_by_py_spy(
        self, pid: int, process: subprocess.Popen[bytes] | None
    ) -> _Look | None:
        """What py-spy tells; None: nothing that makes sense."""
        if process is None:
            return None
        try:
            output, errors = process.communicate(timeout=_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return None
        if process.returncode:
            error_lines = errors.decode(errors="replace").strip().splitlines()
            if error_lines and "ermission" in errors.decode(errors="replace"):
                self._py_spy = None
                self.remark = (
                    "py-spy may not trace here (ptrace is not permitted): stacks came "
                    "by a signal, without local variables"
                )
            return None
        try:
            threads = json.loads(output)
            main = next(t for t in threads if t.get("os_thread_id") in {pid, None})
            others = [thread for thread in threads if thread is not main]
            return _Look(
                [
                    [_frame(frame) for frame in thread["frames"][:_MOST_FRAMES]]
                    for thread in [main, *others]
                ],
                holds_gil=bool(main.get("owns_gil")),
                stranded=all(waits_for_a_thread(one["frames"]) for one in threads),
            )
        except (ValueError, StopIteration, KeyError, TypeError, AttributeError):
            return None

    def _signal_stacks(self, pid: int) -> list[list[StackFrame]]:
        file = self._folder / "stacks" / f"{pid}.txt"
        if not file.exists():
            return []
        number = signal.SIGRTMAX - STACK_SIGNAL_FROM_LAST
        before = file.stat().st_size
        if not catches(pid, number) or not _has_open(pid, file):
            return []
        with suppress(OSError):
            os.kill(pid, number)
        end, size = time.monotonic() + _SIGNAL_DEADLINE_S, before
        while time.monotonic() < end:
            time.sleep(0.01)
            now = file.stat().st_size
            if now > before and now == size:
                break
            size = now
        with file.open("rb") as text:
            text.seek(before)
            return _stacks_of(text.read(_LARGEST_DUMP).decode(errors="replace"))


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal now.

    One that has become another program has none any more, nor has one whose
    interpreter has ended, and the signal would end it. Linux: SigCgt in proc(5).
    """
    with suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _has_open(pid: int, file: Path) -> bool:
    """Whether a process still has the file open: else its stacks go into another.

    A program that closes all descriptors closes this one, too, and opens its own files
    by that number.
    """
    try:
        opened = psutil.Process(pid).open_files()
    except psutil.Error:
        return True  # not to be seen, for want of rights
    return any(one.path == str(file.resolve()) for one in opened)


def _stacks_of(dump: str) -> list[list[StackFrame]]:
    """Frames of all threads, first of the main thread, which faulthandler puts last."""
    stacks: list[list[StackFrame]] = []
    for line in dump.splitlines():
        if match := _LINE.fullmatch(line):
            stacks[-1:] = [
                [
                    *(stacks[-1] if stacks else []),
                    StackFrame(match["file"], int(match["line"]), match["function"]),
                ]
            ]
        elif line and not line.startswith(" "):  # the next thread
            stacks.append([])
    return stacks[::-1] if stacks and stacks[-1] else []


def _training(threads: Sequence[Sequence[StackFrame]]) -> list[StackFrame]:
    """User frames of the main thread, or of the only one that has such.

    A worker of Ray trains in another one; its main thread runs nothing of the user's.
    """
    main, *others = (list(_users(frames)) for frames in threads)
    users = [frames for frames in others if frames]
    return users[0] if not main and len(users) == 1 else main


def _is_standing(frames: Sequence[StackFrame]) -> bool:
    """Whether a thread's innermost line is the user's own, or takes a lock for it.

    A lock written in C has no frame: its thread stands in the line that wants it.
    """
    if not frames or not any(_users(frames)):
        return False
    inner = frames[0]
    takes = inner.function.rpartition(".")[2] in {"acquire", "__enter__"}
    return inner in list(_users([inner])) or (
        takes and Path(inner.file).name == "threading.py"
    )


def _frame(frame: dict[str, Any]) -> StackFrame:
    integers = {}
    for variable in frame.get("locals") or ():
        with suppress(ValueError, TypeError, KeyError):
            integers[str(variable["name"])] = int(variable["repr"])
    return StackFrame(
        str(frame["filename"]), int(frame["line"]), str(frame["name"]), integers
    )


def _users(frames: Sequence[StackFrame]) -> Iterator[StackFrame]:
    """Without Python's own, installed packages and ours.

    What called `runpy` to run a script, or a module, is a launcher's and no user's.
    """
    for frame in takewhile(lambda frame: not _RUNPY.search(frame.file), frames):
        installed = "/site-packages/" in frame.file or "/dist-packages/" in frame.file
        if not (
            installed
            or frame.file.startswith(("<", *_LIBRARIES))
            or any(part in frame.file for part in _OURS)
        ):
            yield frame


_RUNPY = re.compile(r"(^|/)runpy\.py$|^<frozen runpy>$")


def _cpu_seconds(pid: int) -> float | None:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return None
    return float(times.user + times.system)
