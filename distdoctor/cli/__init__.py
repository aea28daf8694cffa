"""The command line: a module per command, each with one click command `run`."""

from __future__ import annotations

import errno
import gc
import importlib
import io
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import click

from distdoctor import __version__
from distdoctor.errors import DistdoctorError, WorkingDirectoryGone
from distdoctor.launch.interruption import nothing_interrupts, terminations_interrupt
from distdoctor.report.plain_text import plain_lines

WELL, SICK, MISUSED, BROKEN, INCOMPLETE = 0, 1, 2, 3, 4
"""Exit statuses; 2 is also what the option parser uses; 128 + n after signal n."""

_UNREAD = 128 + signal.SIGPIPE


class _Unread(Exception):
    """Nobody reads standard output any more."""


_COMMANDS = {
    "autopsy": (
        "autopsy",
        "Judge what a job left behind, or one that hangs right now.",
    ),
    "check": ("check", "Run a job on a few ranks under watch and say what ails it."),
    "columns": (
        "columns",
        "Keep flight recorder dumps as columns (Parquet); judge nothing.",
    ),
    "completion": ("completion", "Print what a shell needs to complete commands."),
    "env": ("env", "Say what this machine can do for a job under watch."),
    "examine": ("examine", "Judge a kept record again, or traces of torch.profiler."),
    "explain": ("explain", "Print the manual of a check, or the list of all."),
    "horovod": (
        "horovod_commands",
        "Get Horovod, which cannot be downloaded ready to use.",
    ),
    "join": ("join", "Run the part of a job over several nodes that is on this one."),
    "lint": ("lint", "Read programs for what may part their ranks; run nothing."),
    "nccl": ("nccl", "Judge a job by NCCL's debug logs."),
    "record": ("record", "Record what the ranks of a job do, for days if need be."),
    "records": ("records", "List the records that were kept, and remove old ones."),
    "watch": ("watch", "Look at a job while it runs: ranks, waits, pace, memory."),
}
"""By command: its module here, and its summary."""

_HAVE_COMMANDS = (["check"], ["record"], ["join"])
"""Those whose arguments may end with a command, or the job's own arguments."""


class _Commands(click.Group):
    """The commands, of which only the one that runs is loaded.

    click itself would leave with 1, which is sick, where we do not.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names of all commands."""
        return [*_COMMANDS]

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002
        cmd_name: str,
    ) -> click.Command | None:
        """Load a command; None if there is none of this name."""
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"{__name__}.{_COMMANDS[cmd_name][0]}")
        command: click.Command = module.run
        command.name, command.short_help = cmd_name, _COMMANDS[cmd_name][1]
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; a script in its place gets told which one is for it."""
        if args[0].endswith(".py") and args[0] not in _COMMANDS:
            ctx.fail(f"No such command {args[0]!r}: give `check` before a script.")
        return super().resolve_command(ctx, args)

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        """Write the list of commands, without loading any."""
        with formatter.section("Commands"):
            formatter.write_dl([(n, text) for n, (_, text) in _COMMANDS.items()])

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
            sys.stderr.write(plain_lines(text.getvalue() + _hint(error)))
            status = error.exit_code
        except click.Abort as error:
            sys.stderr.write("distdoctor: interrupted\n")
            status = _interrupted(error.__cause__)
        sys.exit(status)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
        try:
            Path.cwd()
        except FileNotFoundError as error:
            raise WorkingDirectoryGone(
                "the working directory has been removed: change to one that is there"
            ) from error
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _Unread from error


def _hint(error: click.ClickException) -> str:
    """Where what a command does not know is to stand: it may be the script's."""
    is_too_much = error.message.startswith(_TOO_MUCH)
    if not isinstance(error, click.UsageError):
        return ""
    is_known = not (is_too_much or isinstance(error, click.NoSuchOption))
    context = None if is_known else error.ctx
    if context is None or [context.info_name] not in _HAVE_COMMANDS:
        return ""
    own = "config.yaml" if is_too_much else "--lr 0.1"
    if context.info_name == "check":
        return (
            "What the script is to get stands after `--`, as in "
            f"`distdoctor check train.py -- {own}`.\n"
        )
    head = "HEAD " * (context.info_name == "join")
    return (
        "The command and what it is to get stand after `--`, as in "
        f"`distdoctor {context.info_name} {head}-- torchrun train.py {own}`.\n"
    )


_TOO_MUCH = "Got unexpected extra argument"
"""How click begins where an argument is none of a command's."""


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0 well, 1 sick, 2 wrong usage, 3 internal error of "
    "distdoctor, 4 evidence incomplete, 128 + n interrupted by signal n.",
)
@click.version_option(__version__, message="distdoctor %(version)s")
@click.pass_context
def app(context: click.Context) -> None:
    """Finds what ails a distributed training job before the cluster does."""
    if context.invoked_subcommand == "check":
        from distdoctor.cli.project_defaults import check_defaults

        context.default_map = {"check": check_defaults()}


def main() -> None:
    """Run one command and leave with its exit status."""
    terminations_interrupt()
    _open_streams()
    arguments, given = _split(sys.argv[1:])
    status: str | int | None = 0
    try:
        try:
            app(args=arguments, obj=given, prog_name="distdoctor")
        except SystemExit as end:
            status = end.code
        _flush()
    except KeyboardInterrupt as error:  # while the command came or went
        _leave(_interrupted(error))
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


def _interrupted(error: BaseException | None) -> int:
    """The exit status that tells of the signal behind an interruption."""
    told = error.args if isinstance(error, KeyboardInterrupt) else ()
    return 128 + (told[0] if told else signal.SIGINT)


def _open_streams() -> None:
    """Open those of the standard streams that were closed; nobody hears them.

    What is opened next would get their numbers otherwise, and what is printed.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number, inheritable=True)
                os.close(nowhere)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


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
    import traceback

    message = "distdoctor: internal error; this says nothing about the job\n"
    _leave(BROKEN, traceback.format_exc() + message)


def _leave(status: str | int | None, message: str = "") -> NoReturn:
    """End with this status, also where nobody can or wants to hear anything.

    Python would write what is left in its buffers when it ends, and change the status
    where that fails.
    """
    nothing_interrupts()
    with suppress(OSError):
        sys.stderr.write(plain_lines(message))
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)
    gc.freeze()  # Python looks for garbage several times when it ends
    sys.exit(status)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Our own arguments, and what follows the first `--`, which is the job's."""
    if arguments[:1] in _HAVE_COMMANDS and "--" in arguments:
        at = arguments.index("--")
        return arguments[:at], arguments[at + 1 :]
    return arguments, []
