"""Runs a command that takes minutes: a log takes its output, and no process is left."""

from __future__ import annotations

import os
import re
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from distdoctor.launch.guarded_process import GuardedProcess

Tell = Callable[[str], None]
"""Takes a line about the progress."""

_MARK = "DISTDOCTOR_BUILD"
_EVERY_S = 60.0  # between lines about the progress
_TAIL_BYTES = 1 << 20  # lines that call a compiler are long
_PERCENT = re.compile(rb"^ *\[ *(\d{1,3})%\]", re.MULTILINE)


class LoggedCommand:
    """Runs commands, one after the other, and writes what they print to one log.

    However that ends, also by an exception such as KeyboardInterrupt, or by the death
    of this process, all that a command has started ends with it.

    Args:
        log: The log's path.
        output: The log, open for writing.
        tell: Is given a line about the progress now and then.
    """

    def __init__(self, log: Path, output: IO[bytes], tell: Tell) -> None:
        self._log, self._output, self._tell = log, output, tell
        self._begun = time.monotonic()

    def run(self, command: Sequence[str | Path], environment: Mapping[str, str]) -> int:
        """Run a command to its end.

        Returns:
            Its exit status; negative: the signal that ended it.

        Raises:
            OSError: It cannot be started.
        """
        process = GuardedProcess(
            command,
            mark=_MARK,
            environment={**environment, _MARK: uuid.uuid4().hex},
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        try:
            return self._awaited(process)
        finally:
            process.end()
            process.release()

    def _awaited(self, process: GuardedProcess) -> int:
        while True:
            try:
                return process.wait(_EVERY_S)
            except TimeoutError:
                passed = time.monotonic() - self._begun
                self._tell(f"{self._percent()}after {passed:.0f} s …")

    def _percent(self) -> str:
        """How far `make` said to be, as the beginning of a line."""
        with self._log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            found = _PERCENT.findall(file.read())
        return f"{int(found[-1])} % " if found else ""
