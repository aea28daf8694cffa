"""The command line: a module per command, each with one click command `run`."""

from __future__ import annotations

import sys
import traceback

import click

from distdoctor import __version__
from distdoctor.cli import check, env, examine, explain
from distdoctor.errors import DistdoctorError

WELL, SICK, MISUSED, BROKEN, INCOMPLETE = 0, 1, 2, 3, 4
"""Exit statuses; 2 is also what the option parser uses; 128 + n after signal n."""


@click.group(
    epilog="Exit status: 0 well, 1 sick, 2 wrong usage, 3 internal error of "
    "distdoctor, 4 evidence incomplete, 128 + n interrupted by signal n."
)
@click.version_option(__version__, message="distdoctor %(version)s")
def app() -> None:
    """Finds what ails a distributed training job before the cluster does."""


app.add_command(check.run, "check")
app.add_command(env.run, "env")
app.add_command(examine.run, "examine")
app.add_command(explain.run, "explain")


def main() -> None:
    """Run one command and leave with its exit status."""
    arguments, given = _split(sys.argv[1:])
    try:
        app(args=arguments, obj=given, prog_name="distdoctor")
    except DistdoctorError as error:
        print(f"distdoctor: {error}", file=sys.stderr)
        sys.exit(MISUSED)
    except Exception:  # noqa: BLE001 - a bug of ours has its own exit status
        traceback.print_exc()
        print(
            "distdoctor: internal error; this says nothing about the job",
            file=sys.stderr,
        )
        sys.exit(BROKEN)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Our own arguments, and what follows the first `--`, which is the job's."""
    if arguments[:1] == ["check"] and "--" in arguments:
        at = arguments.index("--")
        return arguments[:at], arguments[at + 1 :]
    return arguments, []
