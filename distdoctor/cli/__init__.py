"""The command line: a module per command, each with one click command `run`."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import traceback
from contextlib import suppress
from typing import Any, NoReturn

import click

from distdoctor import __version__
from distdoctor.cli import (
    autopsy,
    check,
    columns,
    env,
    examine,
    explain,
    horovod_commands,
    nccl,
    record,
)
from distdoctor.errors import DistdoctorError
from distdoctor.report.plain_text import plain_lines

WELL, SICK, MISUSED, BROKEN, INCOMPLETE = 0, 1, 2, 3, 4
"""Exit statuses; 2 is also what the option parser uses; 128 + n after signal n."""

_UNREAD = 128 + signal.SIGPIPE


class _Unread(Exception):
    """Nobody reads standard output any more."""


class _Commands(click.Group):
    """The commands; click itself would leave with 1, which is sick, where we do not."""

    def main(self, *args: Any, standalone_mode: bool = True, **more: Any) -> Any:
        """Run as click does, but print its errors so that they control no terminal.

        They quote what was typed, and names of files may hold anything.
        """
        run: Any = super().main
        if not standalone_mode:
            return run(*args, standalone_mode=False, **more)
        try:
            status = run(*args, standalone_mode=False, **more)
        except click.ClickException as error:
            text = io.StringIO()
            error.show(file=text)
            sys.stderr.write(plain_lines(text.getvalue()))
            status = error.exit_code
        except click.Abort:
            sys.stderr.write("Aborted!\n")
            status = 1
        sys.exit(status)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _Unread from error


@click.group(
    cls=_Commands,
    epilog="Exit status: 0 well, 1 sick, 2 wrong usage, 3 internal error of "
    "distdoctor, 4 evidence incomplete, 128 + n interrupted by signal n.",
)
@click.version_option(__version__, message="distdoctor %(version)s")
def app() -> None:
    """Finds what ails a distributed training job before the cluster does."""


app.add_command(autopsy.run, "autopsy")
app.add_command(check.run, "check")
app.add_command(columns.run, "columns")
app.add_command(env.run, "env")
app.add_command(examine.run, "examine")
app.add_command(explain.run, "explain")
app.add_command(horovod_commands.run, "horovod")
app.add_command(nccl.run, "nccl")
app.add_command(record.run, "record")


def main() -> None:
    """Run one command and leave with its exit status."""
    arguments, given = _split(sys.argv[1:])
    status: str | int | None = 0
    try:
        try:
            app(args=arguments, obj=given, prog_name="distdoctor")
        except SystemExit as end:
            status = end.code
        _flush()
    except DistdoctorError as error:
        _leave(MISUSED, f"distdoctor: {error}\n")
    except _Unread:
        _leave(_UNREAD)
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            _break()
        _leave(MISUSED, f"distdoctor: {error}\n")
    except Exception:  # noqa: BLE001 - a bug of ours has its own exit status
        _break()
    _leave(status)


def _flush() -> None:
    """Write what is left of a report, while it can still be told that it is not whole.

    Raises:
        OSError: There is no space for it.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise


def _break() -> NoReturn:
    """Leave because of a bug of ours: the exception that is being handled."""
    message = "distdoctor: internal error; this says nothing about the job\n"
    _leave(BROKEN, traceback.format_exc() + message)


def _leave(status: str | int | None, message: str = "") -> NoReturn:
    """End with this status, also where nobody can or wants to hear anything.

    Python would write what is left in its buffers when it ends, and change the status
    where that fails.
    """
    with suppress(OSError):
        sys.stderr.write(plain_lines(message))
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)
    sys.exit(status)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Our own arguments, and what follows the first `--`, which is the job's."""
    if arguments[:1] in (["check"], ["record"]) and "--" in arguments:
        at = arguments.index("--")
        return arguments[:at], arguments[at + 1 :]
    return arguments, []
