"""The option by which a running job is asked for its status, over NCCL's RAS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from distdoctor.postmortem.job_evidence import Evidence

DEFAULT = ""
"""Where NCCL_RAS_ADDR says, or NCCL's own default."""

_PAUSE_S = 5.0


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


def ask_ras(address: str, evidence: Evidence, pause_s: float = _PAUSE_S) -> str:
    """Ask a running job for its status, and put it into the evidence.

    Args:
        address: `HOST:PORT`, or `DEFAULT`.
        evidence: Of the job.
        pause_s: Seconds before the second look, where there is one.

    Returns:
        What was asked, as a report names it.

    Raises:
        StatusUnavailable: Nobody answers there, or it is no address.
    """
    from distdoctor.postmortem.nccl_ras.ras_client import address_of
    from distdoctor.postmortem.nccl_ras.ras_reader import read_live

    host, port = address_of(address)
    read_live(host, port, pause_s, evidence)
    return f"ras://{host}:{port}"
