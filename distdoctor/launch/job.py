"""Describes the job that a script or a command makes, before it is started."""

from __future__ import annotations

import os
import shutil
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from distdoctor.errors import LaunchRefused
from distdoctor.journal.environment import (
    LOOPBACK_VARIABLE,
    NCCL_LOG_VARIABLE,
    PORTS_VARIABLE,
)
from distdoctor.journal.format import DEFAULT_BYTES
from distdoctor.launch.allocation import of_job
from distdoctor.launch.command import (
    Launcher,
    command_for,
    given_command,
    rank_count,
    script_in,
    source_of,
    starts_torchrun,
)
from distdoctor.launch.horovodrun import starts_horovodrun
from distdoctor.launch.isolation import may_be_isolated
from distdoctor.launch.launched_ranks import launched_ranks
from distdoctor.launch.project_settings import project_settings
from distdoctor.launch.ray_source import is_rays

if TYPE_CHECKING:
    from distdoctor.launch.node_plan import NodePlan
    from distdoctor.launch.supervisor import Plan

BUDGET_S = 120.0
"""Enough for a pre-flight: torch comes up in seconds, hours belong to the cluster."""

DEFAULT_RANKS = 2

_MARGIN_BYTES = 64 * 1024 * 1024
_SHRUNK_BYTES = 8 * 1024 * 1024  # of most journals, once their rank is done
_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
_STARTS_OF_RAY = {"start", "symmetric-run"}
_NOT_OURS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job to start: its command and its ranks.

    Attributes:
        command: Program and arguments.
        name: The job's name in reports.
        ranks: Number of ranks that were asked for.
        expected: Number of ranks that the command starts; 0: it decides itself, or
            that cannot be read from it.
        own: Whether the command was built for a script; else the user gave it.
        placed: Ray places its ranks, maybe on other machines, and tells them where to
            meet.
        supplied: Variables that the script requires and that are not set.
    """

    command: list[str]
    name: str
    ranks: int
    expected: int = 0
    own: bool
    placed: bool = False
    supplied: dict[str, str] = field(default_factory=dict)


def job_of(
    script: Path | None,
    given: Sequence[str],
    ranks: int | None,
    launcher: Launcher,
    logs: Path,
) -> Job:
    """The job of a script, or of a whole command.

    Args:
        script: The user's program; None: `given` is a command.
        given: Arguments of the script, or the command.
        ranks: How many; None: what the script says, or `DEFAULT_RANKS`.
        launcher: How a script's ranks are started.
        logs: Folder for the launcher's logs.

    Raises:
        LaunchRefused: There is nothing that can be started, or ranks is below 1.
    """
    if script is None:
        if not given:
            raise LaunchRefused(
                "give a script (distdoctor check train.py) or a command after `--`"
            )
        job = Job(
            command=given_command(given),
            name=script_in(given),
            ranks=DEFAULT_RANKS if ranks is None else ranks,
            expected=launched_ranks(given),
            own=False,
            placed=_uses_ray(given),
        )
    else:
        source = source_of(script)
        if ranks is None:
            ranks = source.world_size or DEFAULT_RANKS
        command = command_for(script, given, ranks, launcher, logs)
        expected = rank_count(command, ranks)
        job = Job(
            command=command,
            name=str(script),
            ranks=ranks,
            expected=expected,
            own=True,
            placed=is_rays(source),
            supplied=of_job(source, expected or ranks),
        )
    if job.ranks < 1:
        raise LaunchRefused(f"-n {job.ranks}: give the number of ranks, 1 or more")
    return job


def _uses_ray(command: Sequence[str]) -> bool:
    """Whether a command, or a shell's text among its words, starts Ray or its ranks.

    >>> _uses_ray(["sh", "-c", "ray start --head && ./train"])
    True
    """
    words = [part for word in command for part in word.split()]
    return any(map(_is_rays, dict.fromkeys((*command, *words)))) or any(
        Path(program).name == "ray" and what in _STARTS_OF_RAY
        for program, what in pairwise(words)
    )


def _is_rays(word: str) -> bool:
    """Whether a word of a command is a script whose ranks Ray makes."""
    if not word.endswith(".py"):
        return False
    try:
        return is_rays(source_of(Path(word)))
    except LaunchRefused:  # Python will say what it is
        return False


def plan_of(
    job: Job,
    folder: Path,
    *,
    steps: int = 0,
    budget_s: float = BUDGET_S,
    device: str = "auto",
    shorten: bool = True,
    nccl_log: bool = False,
    nodes: NodePlan | None = None,
) -> Plan:
    """The plan to run a job under the supervisor, in the working directory.

    Args:
        job: What to run.
        folder: Record folder, empty.
        steps: As in `Plan`.
        budget_s: As in `Plan`.
        device: As in `Plan`.
        shorten: As in `Plan`.
        nccl_log: NCCL writes its debug log into the record, if the job uses it on GPUs.
        nodes: As in `Plan`; ranks of several cannot agree on how to shorten epochs.

    Raises:
        LaunchRefused: The project's settings cannot be used.
    """
    # Here, so that what only asks for a job does not wait for numpy.
    from distdoctor.launch.supervisor import Plan

    settings = project_settings(Path.cwd())
    environment = dict(job.supplied)
    if _is_isolated(job):
        environment[PORTS_VARIABLE] = "own" if job.own else "given"
    if job.own and (_is_isolated(job) or starts_horovodrun(job.command)):
        environment[LOOPBACK_VARIABLE] = "1"
        if _GLOO_INTERFACE not in os.environ:
            environment[_GLOO_INTERFACE] = "lo"
    if nccl_log:
        environment[NCCL_LOG_VARIABLE] = "1"
    return Plan(
        command=job.command,
        script=job.name,
        directory=Path.cwd(),
        folder=folder,
        ranks=job.expected,
        budget_s=budget_s,
        steps=steps,
        shorten=shorten and nodes is None,
        nodes=nodes,
        placed=job.placed,
        quiet_launcher=starts_torchrun(job.command) or starts_horovodrun(job.command),
        marked=job.own,
        environment=environment,
        device=device,
        devices=job.ranks,
        ignored=settings.ignore,
        thresholds=settings.thresholds,
        places=settings.places,
    )


def _is_isolated(job: Job) -> bool:
    """Whether all ranks meet on this machine, at addresses that we may choose."""
    if job.placed:
        return False
    # torchrun tells its ranks another address than the one that we have inherited.
    by_ours = job.own and starts_torchrun(job.command)
    return may_be_isolated(job.command, {} if by_ours else os.environ)


def leave_allocation(environment: MutableMapping[str, str] = os.environ) -> None:
    """Remove rank variables of a surrounding allocation from an environment."""
    for variable in _NOT_OURS:
        environment.pop(variable, None)


def require_space(folder: Path, ranks: int, *, in_turn: bool = False) -> None:
    """Raise unless the journals of a job fit on the disk.

    Args:
        folder: Where they are to lie.
        ranks: How many ranks write one.
        in_turn: They run one after the other, and journals shrink when a rank is done.

    Raises:
        LaunchRefused: They do not.
    """
    each = _SHRUNK_BYTES if in_turn else DEFAULT_BYTES
    needed = ranks * each + DEFAULT_BYTES * in_turn + _MARGIN_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise LaunchRefused(
            f"{folder} has {free >> 20} MiB free and the journals of {ranks} ranks "
            f"need {needed >> 20}: give another folder with --record"
        )
