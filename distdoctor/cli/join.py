"""Run the part of a job over several nodes that is on this one."""

from __future__ import annotations

import os

import click

from distdoctor.errors import LaunchRefused
from distdoctor.journal.environment import TOKEN_VARIABLE
from distdoctor.launch.interruption import signals_interrupt


@click.command()
@click.argument("head")
@click.pass_context
def run(context: click.Context, head: str) -> None:
    """Run the part of a job over several nodes that is on this one.

    `distdoctor check --nodes 2 -- torchrun …` (or record) on the first node prints the
    address HEAD and a token; on each other node, `DISTDOCTOR_TOKEN=… distdoctor join
    HEAD -- torchrun …` starts the rest. The first has the report, or the record.
    """
    # Here, so that --help does not wait for numpy.
    from distdoctor.launch.command import given_command
    from distdoctor.launch.node_joining import join

    given: list[str] = context.obj or []
    if not given:
        raise LaunchRefused(
            "give a command after `--`: distdoctor join … -- torchrun …"
        )
    with signals_interrupt() as received:
        try:
            status = join(
                head, os.environ.get(TOKEN_VARIABLE, ""), given_command(given)
            )
        except KeyboardInterrupt:
            status = 128 + received[0]
    context.exit(status)
