"""Runs a command as if it had been started without us: we wait, and hand signals on.

It has the terminal, and everything else. Should we be killed, it goes on.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from distdoctor.errors import LaunchRefused

LOOK_S = 1.0
"""A signal of a child's end that was lost delays by this, at most."""

ENDING = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU}
)
_HANDED_ON = ENDING | {signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH}

_BY_KERNEL = 128
"""SI_KERNEL: a signal of the terminal, which its whole foreground group has got."""

_BY_SIGNAL = 128
"""What a shell adds to the signal's number in the status of a process."""

Signals = set[signal.Signals | int]


@contextmanager
def kept_back() -> Iterator[Signals]:
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


def started(
    command: Sequence[str], environment: Mapping[str, str], before: Signals
) -> subprocess.Popen[bytes]:
    """Start a command; signals reach it as they would have reached it without us.

    Args:
        command: Program and arguments.
        environment: Its environment.
        before: What `kept_back` gave.

    Raises:
        LaunchRefused: It cannot be started.
    """
    try:
        return subprocess.Popen(
            command,
            env=environment,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before),
        )
    except OSError as error:
        raise LaunchRefused(
            f"{command[0]} cannot be started: {error.strerror}"
        ) from error


def until_ended(
    process: subprocess.Popen[bytes],
    asked: Callable[[], None],
    look: Callable[[], None],
    look_s: float = LOOK_S,
) -> int:
    """Wait for the end of a command, and hand signals on to it meanwhile.

    Args:
        process: As `started` gave it.
        asked: Called when it is about to be asked to end.
        look: Called now and then.
        look_s: How often.

    Returns:
        Its exit status, as a shell counts it.
    """
    while process.poll() is None:
        got = signal.sigtimedwait({*_HANDED_ON, signal.SIGCHLD}, look_s)
        if got is None:
            look()
            continue
        if got.si_signo == signal.SIGCHLD:
            continue
        if got.si_signo in ENDING:
            asked()
        if got.si_code != _BY_KERNEL:
            with suppress(OSError):
                process.send_signal(got.si_signo)
    return as_status(process.returncode)


def is_asked_within(seconds: float) -> bool:
    """Wait for a signal that asks to end, while others are kept back.

    Args:
        seconds: For so long at most.

    Returns:
        Whether one came.
    """
    return signal.sigtimedwait(ENDING, seconds) is not None


def as_status(code: int) -> int:
    """A return code of `subprocess` as the exit status that a shell tells."""
    return _BY_SIGNAL - code if code < 0 else code
