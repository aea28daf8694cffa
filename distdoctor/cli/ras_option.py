"""The option by which a running job is asked for its status, over NCCL's RAS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT = ""
"""Where NCCL_RAS_ADDR says, or NCCL's own default."""


def ras_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the option `--ras`: None, `DEFAULT` or an address."""
    return click.option(
        "--ras",
        is_flag=False,
        flag_value=DEFAULT,
        default=None,
        metavar="[HOST:PORT]",
        help="Ask NCCL's RAS in a running job for its status, by default at "
        "localhost:28028 or $NCCL_RAS_ADDR; paths come before it.",
    )(command)
