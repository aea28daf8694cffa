"""The options of `distdoctor check`, and what is refused of them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distdoctor.cli.node_options import NODE_OPTIONS
from distdoctor.cli.options import bundled
from distdoctor.cli.simulation_options import command_alone, ranks_to_play
from distdoctor.errors import LaunchRefused
from distdoctor.launch.command import Launcher
from distdoctor.launch.job import BUDGET_S, DEFAULT_RANKS, Job, job_of, plan_of
from distdoctor.launch.node_hosts import has_several_nodes, node_plan
from distdoctor.launch.reference_command import on_one_rank

if TYPE_CHECKING:
    from distdoctor.launch.node_plan import NodePlan
    from distdoctor.launch.supervisor import Plan


@dataclass(kw_only=True, slots=True)
class CheckOptions:
    """What is to be run, and how; the help of the command says what each means.

    Attributes:
        played: Ranks to simulate; none: the job is run.

    Raises:
        LaunchRefused: They contradict each other.
    """

    script: Path | None
    ranks: int
    world_size: int | None
    as_rank: str | None
    launcher: Launcher
    steps: int
    budget: float
    device: str
    full: bool
    twice: bool
    resume: str | None
    reference: str | None
    no_second_look: bool
    no_nccl_log: bool
    nodes: int
    listen: str | None
    record: Path | None
    played: tuple[int, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        """See that they go together."""
        self.launcher = Launcher(self.launcher)
        named = self.reference or ""
        if self.script is None and named.endswith(".py") and " " not in named:
            # `check --reference train.py`: the option's value may be left out.
            self.script, self.reference = Path(named), ITSELF
        if self.world_size is not None or self.as_rank is not None:
            self.played = ranks_to_play(self.world_size, self.as_rank)
        if self.is_compared and self.played:
            raise LaunchRefused(
                "--twice, --resume and --reference compare what real ranks compute, "
                "and --world-size simulates them: give one of these"
            )
        if (self.nodes or self.listen) and (self.played or self.is_compared):
            raise LaunchRefused(
                "--nodes and --listen are for a job over several nodes, and "
                "--world-size, --twice, --resume and --reference for one: give one of "
                "these"
            )
        if (self.nodes > 1 or self.listen) and self.script is not None:
            raise LaunchRefused(
                "--nodes and --listen need the whole command of this node: distdoctor "
                "check --nodes 2 -- torchrun --nnodes 2 … train.py"
            )
        proofs = (self.twice, self.resume is not None, self.reference is not None)
        if sum(proofs) > 1:
            raise LaunchRefused(
                "--twice, --resume and --reference are proofs of their own: give one "
                "of them"
            )

    @property
    def is_exact(self) -> bool:
        """Whether runs are compared bit for bit, and to the end."""
        return self.twice or self.resume is not None

    @property
    def is_compared(self) -> bool:
        """Whether the job is run more than once, to compare what comes of it."""
        return self.is_exact or self.reference is not None

    def job(self, given: Sequence[str], ranks: int | None, logs: Path) -> Job:
        """The job that is to be checked.

        Args:
            given: Arguments of the script, or the command.
            ranks: How many; None: nobody has said so.
            logs: Folder for the launcher's logs.

        Raises:
            LaunchRefused: It cannot be started so.
        """
        if not self.played:
            return job_of(self.script, given, ranks, self.launcher, logs)
        command = command_alone(self.script, given, self.launcher, ranks is not None)
        return Job(command=command, name=str(self.script), ranks=self.ranks, own=True)

    def plan(self, job: Job, folder: Path, budget_s: float) -> Plan:
        """How a job is to be run, with its record in a folder."""
        whole = self.full or self.steps or self.played or self.is_exact
        return plan_of(
            job,
            folder,
            steps=self.steps,
            budget_s=budget_s,
            device=self.device,
            shorten=not whole,
            nccl_log=not self.no_nccl_log,
            nodes=self._nodes(job),
        )

    def _nodes(self, job: Job) -> NodePlan | None:
        """How the job is watched on other nodes; None: it has none."""
        if self.played or self.is_compared:
            return None
        if self.nodes < 2 and not (self.listen or has_several_nodes(job.command)):
            return None
        return node_plan(job.command, self.listen or "", self.nodes)

    def resuming(self, ranks: int | None, folder: Path) -> Plan | None:
        """How the job is to be resumed, if it is.

        Args:
            ranks: As for the job itself.
            folder: Of the job's record.

        Raises:
            LaunchRefused: It cannot be started so.
        """
        if self.resume is None:
            return None
        script = self.script
        words = _words_of(
            "--resume",
            self.resume,
            "train.py --resume ckpt.pt",
            of_script=script is not None,
        )
        if script is not None:
            script, words = Path(words[0]), words[1:]
        job = job_of(script, words, ranks, self.launcher, folder / "logs")
        return plan_of(
            job,
            folder,
            budget_s=self.budget,
            device=self.device,
            nccl_log=not self.no_nccl_log,
        )

    def referring(
        self, given: Sequence[str], ranks: int | None, folder: Path
    ) -> Plan | None:
        """How the reference is to be run, if the job is compared with one.

        Args:
            given: Arguments of the script, or the command.
            ranks: As for the job itself.
            folder: Of the job's record.

        Raises:
            LaunchRefused: It cannot be started so.
        """
        if self.reference is None:
            return None
        logs = folder / "logs"
        if self.reference != ITSELF:
            words = _words_of(
                "--reference", self.reference, "torchrun --nproc-per-node 1 train.py"
            )
            job = job_of(None, words, None, Launcher.AUTO, logs)
        elif self.script is not None:
            job = job_of(self.script, given, 1, self.launcher, logs)
        else:
            job = job_of(None, on_one_rank(given), ranks, self.launcher, logs)
        return plan_of(
            job, folder, budget_s=self.budget, device=self.device, shorten=False
        )


ITSELF = "-"
"""Value of `--reference` without one: the job itself, on one rank."""


def _words_of(
    option: str, command: str, such_as: str, *, of_script: bool = False
) -> list[str]:
    """The words of a command that an option gives.

    Args:
        option: Its name.
        command: Its value.
        such_as: What it may be, for who gave nothing.
        of_script: It is a script and its arguments, as `check` has them; Python's
            own name before them is left out.

    Raises:
        LaunchRefused: It is none.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise LaunchRefused(f"{option} {command!r}: {error}") from error
    if of_script and words and Path(words[0]).name.startswith("python"):
        words = words[1:]
    if not words:
        raise LaunchRefused(f"{option}: give a command, such as '{such_as}'")
    return words


_OPTIONS = (
    click.argument("script", required=False, type=click.Path(path_type=Path)),
    click.option(
        "-n",
        "--ranks",
        "--nproc-per-node",
        "--nproc_per_node",
        "ranks",
        default=DEFAULT_RANKS,
        show_default=True,
        help="Number of ranks; also by torchrun's names.",
    ),
    click.option(
        "--world-size",
        type=int,
        help="Start no ranks: simulate some of a job of this size, each alone.",
    ),
    click.option(
        "--as-rank",
        metavar="RANKS",
        help="Which to simulate, such as 0,1,513 or 0-7; by default a few that differ.",
    ),
    click.option(
        "--launcher",
        type=click.Choice([launcher.value for launcher in Launcher]),
        default=Launcher.AUTO.value,
        show_default=True,
        help="By torchrun, as plain python, by a command per rank with the rank as its "
        "argument, or by horovodrun; auto looks into the script.",
    ),
    click.option(
        "--steps",
        type=click.IntRange(min=0),
        default=0,
        help="End soon after so many optimizer steps of every rank; 0: no limit.",
    ),
    click.option(
        "--budget",
        type=click.FloatRange(min=1.0),
        default=BUDGET_S,
        show_default=True,
        help="End after so many seconds.",
    ),
    click.option(
        "--device",
        type=click.Choice(["auto", "cpu", "cuda"]),
        default="auto",
        show_default=True,
        help="Run a job that is written for GPUs on them, or on the CPU instead of "
        "them; by itself on the CPU where there is no GPU for each rank.",
    ),
    click.option(
        "--full",
        is_flag=True,
        help="Do not shorten epochs, even if the job will not end within the budget.",
    ),
    click.option(
        "--twice",
        is_flag=True,
        help="Run the job twice and say where the runs differ first, if they do; "
        "implies --full. Files that the runs change are put back.",
    ),
    click.option(
        "--resume",
        metavar="COMMAND",
        help="Run the job whole, then interrupted behind its first checkpoint, then "
        "this command, such as 'train.py --resume ckpt.pt', and say what it did not "
        "restore; implies --full. Files that the runs change are put back.",
    ),
    click.option(
        "--reference",
        metavar="[COMMAND]",
        is_flag=False,
        flag_value=ITSELF,
        help="Run the job, then the same on one rank with the same global batch (or "
        "this command, such as 'torchrun --nproc-per-node 1 train.py'), and say where "
        "gradients or weights part. Files that the runs change are put back.",
    ),
    click.option(
        "--no-second-look",
        is_flag=True,
        help="Where two ranks disagree and nothing tells which of them is at fault, do "
        "not start the job again with three.",
    ),
    click.option(
        "--no-nccl-log",
        is_flag=True,
        help="On GPUs, do not have NCCL write its debug log (NCCL_DEBUG=INFO) into the "
        "record. Without the option, what you have set of it yourself stays as it is.",
    ),
    *NODE_OPTIONS,
    click.option(
        "--record",
        type=click.Path(path_type=Path),
        help="Keep the record of the run in this folder.",
    ),
)


def check_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command these options, as its argument `options`."""
    return bundled(command, "options", CheckOptions, _OPTIONS)
