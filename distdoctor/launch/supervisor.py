"""Runs a job under watch: starts it, has it watched, and leaves nothing of it behind.

The supervisor adds no communication to the job and asks it nothing.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import distdoctor
from distdoctor.analysis.comparison.told_places import ToldPlace
from distdoctor.errors import LaunchRefused
from distdoctor.journal import folder as record
from distdoctor.journal.environment import (
    BUDGET_VARIABLE,
    DEVICE_VARIABLE,
    FOLDER_VARIABLE,
    LAUNCHER_VARIABLE,
    MASK_KEY_VARIABLE,
    OUTPUT_VARIABLE,
    OWNER_VARIABLE,
    RANKS_VARIABLE,
    RAY_VARIABLE,
    SIZE_VARIABLE,
    STEPS_VARIABLE,
    SUPERVISOR_VARIABLE,
)
from distdoctor.journal.folder import Manifest
from distdoctor.journal.format import DEFAULT_BYTES
from distdoctor.journal.secret_masking import (
    MASK_KEY,
    masked_arguments,
    masked_text,
    share_key,
)
from distdoctor.launch.audience import Audience
from distdoctor.launch.command import rank_marks, starts_torchrun
from distdoctor.launch.horovodrun import starts_horovodrun
from distdoctor.launch.horovodrun_lines import HorovodrunLines
from distdoctor.launch.interruption import postponed
from distdoctor.launch.oom_kills import OutOfMemoryKills
from distdoctor.launch.output_channels import OutputChannels
from distdoctor.launch.output_pump import OutputPump
from distdoctor.launch.passed_variables import passing_on
from distdoctor.launch.process_tree import ProcessTree
from distdoctor.launch.ray_sessions import (
    SESSIONS_VARIABLE,
    make_ray_folder,
    remove_ray_folder,
)
from distdoctor.model.stop_reasons import Stop
from distdoctor.probes import NEEDLE

if TYPE_CHECKING:
    from distdoctor.launch.job_watch import JobWatch
    from distdoctor.launch.node_head import NodeHead
    from distdoctor.launch.node_plan import NodePlan

_NO_INPUT = "EOFError: EOF when reading a line"  # of Python's `input()`


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A job to run, and its limits.

    Attributes:
        command: Program and arguments.
        script: The job's name in reports.
        directory: Where it runs.
        folder: Record folder, empty.
        ranks: Number of ranks that are expected; 0: the command decides.
        budget_s: Seconds after which the job is ended.
        steps: Optimizer steps of every rank after which it is ended; 0: no limit.
        placed: Ray places its ranks.
        quiet_launcher: Whether to kill the launcher first, so that it prints nothing.
        marked: Lines of ranks are marked by `[rank1]:`, if a launcher starts them.
        mark: What is put before lines that no rank is known for.
        journal_bytes: Size of each rank's journal.
        environment: Additional environment variables of the job.
        device: "cpu" puts a job for GPUs on the CPU, "auto" where there are none.
        devices: How many GPUs such a job finds if its launcher does not say.
        alone: One rank is simulated without the others, and waits for none.
        shorten: Epochs may be shortened, so that it ends within the budget.
        nodes: How it is watched if it has several nodes; None: it has one.
        ignored: Why findings of a check are ignored, by its code.
        thresholds: Of checks, by code and name.
        places: Where tensors of ranks lie in those of a reference, as far as the user
            says so.
    """

    command: list[str]
    script: str
    directory: Path
    folder: Path
    ranks: int
    budget_s: float
    steps: int = 0
    placed: bool = False
    quiet_launcher: bool = False
    marked: bool = False
    mark: str = ""
    journal_bytes: int = DEFAULT_BYTES
    environment: dict[str, str] = field(default_factory=dict)
    device: str = ""
    devices: int = 1
    alone: bool = False
    shorten: bool = False
    nodes: NodePlan | None = None
    ignored: dict[str, str] = field(default_factory=dict)
    thresholds: dict[str, dict[str, int | float]] = field(default_factory=dict)
    places: tuple[ToldPlace, ...] = ()


def supervise(plan: Plan, audience: Audience) -> Manifest:
    """Run the job until it ends, or until it is certain that it never will.

    Returns:
        How it ended; also written into the record folder. Nothing of the job is left.

    Raises:
        LaunchRefused: It could not be started.
    """
    return _Supervisor(plan, audience).run()


class _Supervisor:
    def __init__(self, plan: Plan, audience: Audience) -> None:
        self.plan, self.audience = plan, audience
        self.manifest = Manifest(
            distdoctor=distdoctor.__version__,
            launch=masked_arguments(plan.command, MASK_KEY.encode()),
            script=plan.script,
            directory=str(plan.directory),
            ranks=plan.ranks,
            ignored=plan.ignored,
            thresholds=plan.thresholds,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        self.begun = time.monotonic()
        self.kills = OutOfMemoryKills()
        self.head: NodeHead | None = None
        self.node_variables: dict[str, str] = {}
        self.rays: dict[str, str] = {}

    def run(self) -> Manifest:
        plan = self.plan
        record.write(plan.folder, record.MANIFEST, self.manifest)
        share_key(plan.folder)
        started: tuple[ProcessTree, OutputPump] | None = None
        watch: JobWatch | None = None
        with ExitStack() as job:
            job.callback(remove_ray_folder, plan.folder)
            if plan.placed and (plan.nodes is None or plan.nodes.joined):
                self.rays = make_ray_folder(plan.folder, os.environ)
            if plan.nodes is not None:
                self.head = self._listen(plan.nodes)
                job.callback(self._let_go, self.head)
            try:
                with postponed():  # an interruption finds all of it, or nothing
                    started = tree, pump = self._start()
                    job.callback(self._end, *started)
                watch = self._watching(tree, pump)
                watch.until_over()
            except KeyboardInterrupt:
                if started is None:
                    raise
                watch = watch or self._watching(*started)
                watch.stop(Stop.INTERRUPTED)
        last_words = pump.last_words.text(of_a_rank=plan.quiet_launcher)
        self.manifest.last_words = masked_text(last_words, MASK_KEY.encode())
        self.manifest.remarks += pump.remarks
        if not self._has_input() and _NO_INPUT in pump.last_words.text(of_a_rank=True):
            self.manifest.remarks.append(
                "the job asked for a line of input, and several ranks have none under "
                "distdoctor: pass what it asks for as an argument, or check it on one "
                "rank (-n 1), which has the input of distdoctor"
            )
        if not self.manifest.stopped:
            self.manifest.exit_code = tree.root.returncode
        self.manifest.oom_kills = self.kills.count()
        self.manifest.oom_of_group = self.kills.is_of_group
        watch.conclude()
        return self.manifest

    def _listen(self, nodes: NodePlan) -> NodeHead:
        """Let other nodes come."""
        from distdoctor.launch.node_plan import head_for

        variables = self._environment()
        if self.rays:
            variables[RAY_VARIABLE] = self.rays[SESSIONS_VARIABLE]
        head, self.node_variables = head_for(nodes, self.plan.folder, variables)
        return head

    def _let_go(self, head: NodeHead) -> None:
        """Have the ranks of other nodes ended, and take what they still say."""
        head.end()
        head.close()
        self.manifest.lost_nodes += head.lost()
        wanted = self.plan.nodes.nodes if self.plan.nodes is not None else 0
        if (came := 1 + len(head.hosts())) < wanted:
            self.manifest.remarks.append(f"{came} of {wanted} nodes came")

    def _start(self) -> tuple[ProcessTree, OutputPump]:
        plan = self.plan
        by_horovodrun = starts_horovodrun(plan.command)
        try:
            channels = OutputChannels(
                self.audience.surface,
                plan.mark,
                rank_marks(plan.command, plan.ranks if plan.marked else 0),
                launcher_pipes=by_horovodrun,
            )
        except OSError as error:
            raise LaunchRefused(
                f"no pipe for the job's output: {error.strerror}"
            ) from error
        try:
            tree = self._started(channels)
        except LaunchRefused:
            channels.close()
            raise
        launchers = HorovodrunLines if by_horovodrun else None
        return tree, OutputPump(channels, self.audience, launchers)

    def _end(self, tree: ProcessTree, pump: OutputPump) -> None:
        if self.head is not None:
            is_done = not self.manifest.stopped and tree.root.poll() == 0
            self.head.ask_to_end(is_done=is_done)  # all at once: few see others go
        tree.end(launcher_first=self.plan.quiet_launcher)
        pump.close()

    def _watching(self, tree: ProcessTree, pump: OutputPump) -> JobWatch:
        """Load what watches, numpy among it, while the launcher loads torch.

        In a thread, for an interruption must not leave a module loaded by half.
        """
        name = "distdoctor.launch.job_watch"
        loading = threading.Thread(target=importlib.import_module, args=(name,))
        loading.start()
        loading.join()
        from distdoctor.launch.job_watch import JobWatch

        return JobWatch(
            *(self.plan, self.audience, self.manifest, tree, pump, self.begun),
            head=self.head,
        )

    def _has_input(self) -> bool:
        """Whether our input is passed on: to one rank, as several would share it."""
        return self.plan.ranks == 1 and not self.plan.alone

    def _started(self, channels: OutputChannels) -> ProcessTree:
        plan = self.plan
        stdin = None if self._has_input() else subprocess.DEVNULL
        stdout, stderr = (channel.writing for channel in channels.own)
        assert stdout is not None
        assert stderr is not None
        environment = self._environment()
        command = plan.command
        if self.head is not None:
            ours = {*environment} - {*os.environ} | {"PYTHONPATH"}
            command = passing_on(command, sorted(ours))
        environment |= self.rays
        if channels.variable:
            environment[OUTPUT_VARIABLE] = channels.variable
        return ProcessTree(
            command,
            environment,
            plan.directory,
            str(plan.folder),
            streams=(stdin, stdout, stderr),
        )

    def _environment(self) -> dict[str, str]:
        inherited = dict(os.environ)
        inherited.pop(OWNER_VARIABLE, None)
        inherited.pop(OUTPUT_VARIABLE, None)
        path = os.pathsep.join(
            filter(None, [str(NEEDLE), os.environ.get("PYTHONPATH")])
        )
        inherited.pop(BUDGET_VARIABLE, None)
        inherited.pop(STEPS_VARIABLE, None)
        inherited.pop(LAUNCHER_VARIABLE, None)
        limits = {}
        if self.plan.shorten:
            times = self.begun, self.begun + self.plan.budget_s
            limits[BUDGET_VARIABLE] = "-".join(str(round(s * 1e9)) for s in times)
        if self.plan.steps:
            limits[STEPS_VARIABLE] = str(self.plan.steps)
        if starts_torchrun(self.plan.command):
            limits[LAUNCHER_VARIABLE] = "1"
        return {
            "PYTHONUNBUFFERED": "1",  # what a rank printed must not die with it
            **inherited,
            **limits,
            **self.plan.environment,
            "PYTHONPATH": path,
            FOLDER_VARIABLE: str(self.plan.folder),
            SUPERVISOR_VARIABLE: str(os.getpid()),
            MASK_KEY_VARIABLE: MASK_KEY,
            SIZE_VARIABLE: str(self.plan.journal_bytes),
            DEVICE_VARIABLE: self.plan.device,
            RANKS_VARIABLE: str(self.plan.devices),
            **self.node_variables,
        }
