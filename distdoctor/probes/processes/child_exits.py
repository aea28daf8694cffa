"""Records the exit status of child processes, which only their parent learns."""

from __future__ import annotations

import os

from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER


def install() -> None:
    """Wrap `os.waitpid`.

    `subprocess` and `multiprocessing` both ask it, and neither has been imported yet.
    """
    made = os.waitpid

    def waitpid(pid: int, options: int, /) -> tuple[int, int]:
        ended, status = made(pid, options)
        if ended:
            _child_ended(ended, status)
        return ended, status

    os.waitpid = waitpid


@harmless
def _child_ended(pid: int, status: int) -> None:
    if os.WIFEXITED(status) or os.WIFSIGNALED(status):
        RECORDER.exit_of(pid, os.waitstatus_to_exitcode(status))


PROBE = Probe(install=install)
