"""Options of the commands that run a job which may have several nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

NODE_OPTIONS = (
    click.option(
        "--nodes",
        type=click.IntRange(min=0),
        default=0,
        help="The job has so many nodes, and `distdoctor join` starts its part on each "
        "of the others. Of mpirun and srun, it is seen whether they use others.",
    ),
    click.option(
        "--listen",
        metavar="HOST[:PORT]",
        help="Address of this machine at which other nodes find it; by default that of "
        "the job's own network interface.",
    ),
)


def node_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command these options."""
    for option in reversed(NODE_OPTIONS):
        command = option(command)
    return command
