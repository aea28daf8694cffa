"""Runs a command with the cheap probes alone: judges nothing, ends nothing.

The command has the terminal, and everything else, as if it had been started without us:
input and output are its own, signals are handed on, its exit status is ours. What the
ranks do is written into rings of a fixed size, so that it may take days.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import distdoctor
from distdoctor.errors import JournalUnreadable, LaunchRefused
from distdoctor.journal import folder as record
from distdoctor.journal.assembly import assemble
from distdoctor.journal.environment import (
    FOLDER_VARIABLE,
    MASK_KEY_VARIABLE,
    OWNER_VARIABLE,
    RECORD_VARIABLE,
    SIZE_VARIABLE,
    SUPERVISOR_VARIABLE,
)
from distdoctor.journal.folder import Manifest
from distdoctor.journal.format import DEFAULT_BYTES
from distdoctor.journal.reader import JournalReader
from distdoctor.journal.record_files import seal
from distdoctor.journal.secret_masking import MASK_KEY, masked_arguments, share_key
from distdoctor.journal.trimming import trim_record
from distdoctor.launch.oom_kills import OutOfMemoryKills
from distdoctor.launch.process_tree import lives
from distdoctor.launch.watchdog import sources_of
from distdoctor.model.stop_reasons import Stop
from distdoctor.probes import NEEDLE

_LOOK_S = 1.0  # a signal of a child's end that was lost delays by this, at most

_ENDING = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU}
)
_HANDED_ON = _ENDING | {signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH}

_BY_KERNEL = 128
"""SI_KERNEL: a signal of the terminal, which its whole foreground group has got."""

_BY_SIGNAL = 128
"""What a shell adds to the signal's number in the status of a process."""


def record_job(command: Sequence[str], name: str, folder: Path) -> int:
    """Run a command, and write down what its ranks do.

    Args:
        command: Program and arguments.
        name: The job's name in reports.
        folder: Record folder, empty.

    Returns:
        Its exit status, as a shell counts it.

    Raises:
        LaunchRefused: It cannot be started.
    """
    return _Recording(command, name, folder).run()


class _Recording:
    def __init__(self, command: Sequence[str], name: str, folder: Path) -> None:
        self._command, self._folder = list(command), folder
        self._begun = time.monotonic()
        self._kills = OutOfMemoryKills()
        self._manifest = Manifest(
            distdoctor=distdoctor.__version__,
            launch=masked_arguments(self._command, MASK_KEY.encode()),
            script=name,
            directory=str(Path.cwd()),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            recorded=True,
        )

    def run(self) -> int:
        record.write(self._folder, record.MANIFEST, self._manifest)
        share_key(self._folder)
        with _kept_back() as before:
            try:
                process = subprocess.Popen(
                    self._command,
                    env=self._environment(),
                    preexec_fn=lambda: _unblock(before),
                )
            except OSError as error:
                raise LaunchRefused(
                    f"{self._command[0]} cannot be started: {error.strerror}"
                ) from error
            status = self._wait(process)
        # What goes wrong from here on must not change the status of the job.
        with suppress(OSError, JournalUnreadable):
            self._conclude(process.returncode)
        return status

    def _environment(self) -> dict[str, str]:
        inherited = dict(os.environ)
        for variable in (OWNER_VARIABLE, SUPERVISOR_VARIABLE):
            inherited.pop(variable, None)  # nobody is there to end what is refused
        path = os.environ.get("PYTHONPATH")
        return {
            **inherited,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(NEEDLE), path])),
            FOLDER_VARIABLE: str(self._folder),
            RECORD_VARIABLE: "1",
            MASK_KEY_VARIABLE: MASK_KEY,
            SIZE_VARIABLE: str(DEFAULT_BYTES),
        }

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the end of the command, and hand signals on to it meanwhile."""
        while process.poll() is None:
            got = signal.sigtimedwait({*_HANDED_ON, signal.SIGCHLD}, _LOOK_S)
            if got is None or got.si_signo == signal.SIGCHLD:
                continue
            if got.si_signo in _ENDING:
                self._asked_to_end()
            if got.si_code != _BY_KERNEL:
                with suppress(OSError):
                    process.send_signal(got.si_signo)
        code = process.returncode
        return _BY_SIGNAL - code if code < 0 else code

    def _asked_to_end(self) -> None:
        """Note when: what ranks do from there on, they do because they are ended."""
        manifest = self._manifest
        if not manifest.stopped:
            manifest.stopped = Stop.INTERRUPTED
            manifest.stopped_ns = time.monotonic_ns()
            manifest.alive = self._alive()
            with suppress(OSError):
                record.write(self._folder, record.MANIFEST, manifest)

    def _alive(self) -> list[int]:
        """Processes of ranks that have not ended."""
        found = []
        for path in self._folder.glob("*.journal"):
            with suppress(OSError, JournalUnreadable):
                pid = JournalReader(path).header().pid
                if lives(pid):
                    found.append(pid)
        return found

    def _conclude(self, code: int) -> None:
        """Write the manifest and the sources, after the command has ended."""
        manifest, folder = self._manifest, self._folder
        if manifest.stopped and not code:
            # It was asked to end, and came to a good end of its own.
            manifest.stopped, manifest.stopped_ns, manifest.alive = "", 0, []
        if not manifest.stopped:
            manifest.exit_code = _BY_SIGNAL - code if code < 0 else code
            manifest.alive = self._alive()
        manifest.closed = not self._alive()
        manifest.seconds = round(time.monotonic() - self._begun, 2)
        manifest.oom_kills = self._kills.count()
        manifest.oom_of_group = self._kills.is_of_group
        record.clear(folder)
        if manifest.closed:
            trim_record(folder)
        record.write(folder, record.MANIFEST, manifest)
        run = assemble(folder, manifest, stacks=False)
        sources = dict(sources_of(run, [], Path(manifest.directory)))
        record.write(folder, record.SOURCES, sources)
        seal(folder, manifest)


@contextmanager
def _kept_back() -> Iterator[set[signal.Signals | int]]:
    """Signals wait until they are asked for, so that none is lost, or ends us.

    Yields:
        Those that waited already.
    """
    kept = {*_HANDED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, kept)
    try:
        yield set(before)
    finally:
        for _ in range(len(kept)):  # what came too late for the command is no matter
            if signal.sigtimedwait(kept, 0) is None:
                break
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _unblock(before: set[signal.Signals | int]) -> None:
    """In the child: signals reach it as they would have reached it without us."""
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
