"""A job as a caller asks for it: a script or a whole command, and how it is to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from distdoctor.checking.named_checks import require_codes
from distdoctor.checking.record_folders import require_room
from distdoctor.errors import LaunchRefused

if TYPE_CHECKING:
    from distdoctor.launch.job import Job
    from distdoctor.launch.supervisor import Plan

BUDGET_S = 120.0
"""Seconds that a job is given where nobody says how many: as for `distdoctor check`."""


@dataclass(frozen=True, slots=True)
class AskedJob:
    """What is to be run, and how.

    Attributes:
        path: The program; None: the command is the caller's own.
        given: The program's arguments, or the whole command.
        launcher: One of the names of `Launcher`.
        device: auto, cpu or cuda.
        steps: Optimizer steps after which it is ended; 0: no limit.
        full: Do not shorten epochs that would not end within the budget.
    """

    path: Path | None
    given: tuple[str, ...]
    launcher: str
    device: str
    steps: int
    full: bool

    def plan(
        self, nproc: int | None, folder: Path, budget_s: float, wanted: Path | None
    ) -> tuple[Job, Plan]:
        """The job with so many ranks, ready to be supervised.

        Args:
            nproc: How many ranks; None: what the script says, or 2.
            folder: The record folder.
            budget_s: Seconds after which it is ended.
            wanted: Where the user wants the record; None: among the others.

        Raises:
            LaunchRefused: It cannot be started so.
        """
        # Here, so that to ask for a job does not wait for what starts one.
        from distdoctor.launch.command import Launcher
        from distdoctor.launch.gpus import require_gpus
        from distdoctor.launch.job import job_of, plan_of

        given, launcher = list(self.given), Launcher(self.launcher)
        job = job_of(self.path, given, nproc, launcher, folder / "logs")
        if self.device == "cuda":
            require_gpus(job.command)
        require_room(folder, job.expected or job.ranks, wanted)
        plan = plan_of(
            job,
            folder,
            steps=self.steps,
            budget_s=budget_s,
            device=self.device,
            shorten=not (self.full or self.steps),
            nccl_log=True,
        )
        require_codes(plan)
        return job, plan


def asked_job(
    caller: str,
    path: Path | None,
    arguments: Sequence[str],
    command: Sequence[str] | None,
    *,
    launcher: str,
    device: str,
    budget: float,
    steps: int,
    full: bool,
) -> AskedJob:
    """What was asked for.

    Args:
        caller: Name of the function that was called.
        path: The program.
        arguments: What it gets.
        command: Instead of a program: a whole command.
        launcher: How to start it.
        device: auto, cpu or cuda.
        budget: Seconds.
        steps: Optimizer steps; 0: no limit.
        full: Do not shorten epochs.

    Raises:
        LaunchRefused: It makes no sense.
    """
    from distdoctor.launch.command import Launcher

    if (path is None) == (command is None):
        raise LaunchRefused(f"{caller} takes a script, or command=[…]")
    if command is not None and arguments:
        raise LaunchRefused("arguments of a command stand in the command itself")
    if budget < 1 or steps < 0:
        raise LaunchRefused("budget is to be 1 second or more, and steps 0 or more")
    _require(launcher, [one.value for one in Launcher], "launcher")
    _require(device, ["auto", "cpu", "cuda"], "device")
    given = tuple(map(str, command if command is not None else arguments))
    return AskedJob(path, given, launcher, device, steps, full)


def _require(value: str, known: Sequence[str], option: str) -> None:
    if value not in known:
        raise LaunchRefused(f"{option}={value!r}: give one of {', '.join(known)}")
