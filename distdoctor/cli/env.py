"""Say what this machine can do for a job under watch."""

from __future__ import annotations

import shutil
import sys

import click

from distdoctor import __version__
from distdoctor.checking.record_folders import records
from distdoctor.cli.options import JSON, list_format_option


@click.command(
    epilog="Exit status: 0 a script can be checked here, 1 something that every check "
    "needs is absent (torch, gloo, ports of the loopback)."
)
@list_format_option("How to write the list.")
@click.pass_context
def run(context: click.Context, form: str) -> None:
    """Say what this machine can do for a job under watch, and what would help.

    torch is asked in a process of its own: that takes some seconds.
    """
    from distdoctor.launch.machine import conditions
    from distdoctor.report import machine_report

    found = list(conditions(records()))
    if form == JSON:
        sys.stdout.write(machine_report.as_json(found, __version__))
    else:
        terminal = sys.stdout.isatty()
        width = shutil.get_terminal_size((80, 24)).columns if terminal else 80
        sys.stdout.write(machine_report.as_text(found, __version__, width, terminal))
    context.exit(1 if any(condition.prevents for condition in found) else 0)
