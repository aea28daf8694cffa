"""Record what the ranks of a job do, and judge nothing."""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress
from pathlib import Path

import click

from distdoctor.checking.record_folders import record_folder, tidy
from distdoctor.cli.node_options import node_options
from distdoctor.errors import LaunchRefused
from distdoctor.report.plain_text import plain_lines


@click.command()
@click.option(
    "--to",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write to this folder, which must be new or empty.",
)
@node_options
@click.pass_context
def run(
    context: click.Context, to: Path | None, nodes: int, listen: str | None
) -> None:
    """Record what the ranks of a job do, for days if need be, and judge nothing.

    The command stands after `--` (`distdoctor record -- torchrun --nproc-per-node 4
    train.py`). It runs as it would without; its exit status is passed on. What was
    recorded is judged by `distdoctor autopsy FOLDER`. Ranks on other nodes are recorded
    as well, if mpirun or srun start them, or `distdoctor join`.
    """
    # Here, so that --help does not wait for numpy.
    from distdoctor.launch.command import given_command, script_in
    from distdoctor.launch.job import require_space
    from distdoctor.launch.node_hosts import has_several_nodes, node_plan
    from distdoctor.launch.recording import record_job

    given: list[str] = context.obj or []
    if not given:
        raise LaunchRefused(
            "give a command after `--`: distdoctor record -- torchrun …"
        )
    with record_folder(to, "--to", "recorded-") as folder:
        if to is None:
            tidy(beside=folder)
        require_space(folder, 1)
        command = given_command(given)
        several = nodes > 1 or listen or has_several_nodes(command)
        plan = node_plan(command, listen or "", nodes) if several else None
        status = record_job(command, script_in(given), folder, plan)
    with suppress(OSError):
        judge = shlex.join(["distdoctor", "autopsy", str(to or folder)])
        sys.stderr.write(plain_lines(f"distdoctor: recorded; to judge it: {judge}\n"))
    context.exit(status)
