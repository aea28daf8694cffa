"""The functions `check`, `examine` and `autopsy` of the package."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from distdoctor.api.examination_result import Examination
from distdoctor.checking.asked_jobs import BUDGET_S, asked_job
from distdoctor.errors import DistdoctorError, LaunchRefused, LeavingsMissing

if TYPE_CHECKING:
    from distdoctor.checking.judged_run import Judged
    from distdoctor.launch.job import Job
    from distdoctor.launch.subprocess_runner import Output
    from distdoctor.launch.supervisor import Plan

_judging = threading.Lock()
"""Judging switches the garbage collector, and thresholds of checks: one at a time."""


def check(
    script: str | Path | None = None,
    *arguments: str,
    nproc: int | None = None,
    command: Sequence[str] | None = None,
    launcher: str = "auto",
    device: str = "auto",
    budget: float = BUDGET_S,
    steps: int = 0,
    full: bool = False,
    record: str | Path | None = None,
) -> Examination:
    """Run a script on a few ranks under watch, and say what ails it.

    The script runs in processes of its own, so that it may be called in a notebook, in
    any thread, and as often as need be. When this returns or raises, nothing of the job
    is left: an interruption (KeyboardInterrupt) ends it first.

    Args:
        script: The program.
        arguments: What it gets.
        nproc: How many ranks; by default what the script says, or 2. Where two ranks
            disagree and nothing tells which is at fault, the job is started again with
            three, unless you give a number.
        command: Instead of a script: a whole command, such as `["torchrun", …]`.
        launcher: As for `distdoctor check`: auto, torchrun, python, commands or
            horovod.
        device: auto, cpu (in place of GPUs) or cuda.
        budget: Seconds after which the job is ended; what it did not reach is told.
        steps: Optimizer steps after which it is ended; 0: no limit.
        full: Do not shorten epochs that would not end within the budget.
        record: Folder to keep the record in; otherwise it stays, among others, if the
            verdict is not well.

    Returns:
        What was found.

    Raises:
        LaunchRefused: It cannot be started as asked.
        RuntimeError: The supervisor failed; this says nothing about the job.
    """
    # Here and below, so that `import distdoctor` does not wait for it.
    from distdoctor.checking.kept_runs import keep
    from distdoctor.checking.record_folders import record_folder, tidy
    from distdoctor.checking.second_look import (
        advise_more_ranks,
        is_worth_it,
        look_again,
    )
    from distdoctor.journal.private_files import make_private_folder

    asked = asked_job(
        "check",
        _script(script),
        arguments,
        command,
        launcher=launcher,
        device=device,
        budget=budget,
        steps=steps,
        full=full,
    )
    wanted = None if record is None else Path(record)
    with record_folder(wanted, "record=") as folder:
        job, plan = asked.plan(nproc, folder, budget, wanted)
        outputs = [_supervised(job, plan)]
        judged = _judged(folder, wanted)

        def judge_more(ranks: int, budget_s: float) -> Judged:
            more = make_private_folder(folder / f"with-{ranks}")
            outputs.append(_supervised(*asked.plan(ranks, more, budget_s, more)))
            return _judged(more, wanted)

        if is_worth_it(judged.report, job, asked.path, is_default=nproc is None):
            judged = look_again(judged, budget, judge_more)
        else:
            advise_more_ranks(judged.report)
        if not keep(judged, folder, wanted):
            shutil.rmtree(folder, ignore_errors=True)
        if wanted is None:
            with suppress(OSError, DistdoctorError):
                tidy(beside=folder)
    return _examination(judged, outputs[-1])


def examine(folder: str | Path) -> Examination:
    """Judge a run again that was kept, as `distdoctor examine` does.

    Args:
        folder: The record folder; or traces of torch.profiler: the folder of them.

    Returns:
        What was found.

    Raises:
        RecordUnreadable: It holds no run, or one that cannot be read.
        LeavingsMissing: The traces tell of no job of ranks.
    """
    from distdoctor.checking.judged_records import judged_at

    with _judging:
        judged = judged_at((str(folder),))
    return _examination(judged)


def autopsy(*what: int | str | Path) -> Examination:
    """Judge what a job left behind, or one that hangs now, as `distdoctor autopsy`.

    Args:
        what: Files and folders that it left; or the numbers of processes of one job
            that runs here, which is only looked at.

    Returns:
        What was found.

    Raises:
        LeavingsMissing: Nothing there tells of a job, or the processes are of several.
    """
    from distdoctor.checking.judged_leavings import judged_leavings, judged_living
    from distdoctor.checking.judged_run import Judged
    from distdoctor.postmortem.living.autopsy_of_processes import Which

    pids = [one for one in what if isinstance(one, int)]
    if not what or (pids and len(pids) < len(what)):
        raise LeavingsMissing(
            "autopsy takes files and folders, or numbers of processes, and not both"
        )
    with _judging:
        if not pids:
            return _examination(Judged(judged_leavings([str(one) for one in what])))
        first, *others = judged_living(Which(tuple(pids)))
    if others:
        raise LeavingsMissing(
            f"these are processes of {1 + len(others)} jobs: look at one at a time"
        )
    return _examination(Judged(first))


def _script(script: object) -> Path | None:
    """The program, if it is one that ranks can run.

    Raises:
        LaunchRefused: It is none.
    """
    if script is None:
        return None
    if callable(script):
        name = getattr(script, "__qualname__", type(script).__name__)
        raise LaunchRefused(
            f"check runs a script in processes of its own, and {name} is an object of "
            "this one, which they do not have: write it to a file that calls it (in a "
            "notebook, `%%writefile train.py`), and give that file"
        )
    if not isinstance(script, str | Path):
        raise LaunchRefused(
            f"check takes the path of a script, and not {type(script).__name__}"
        )
    path = Path(script)
    if path.suffix == ".ipynb":
        raise LaunchRefused(
            f"{path} is a notebook, which ranks cannot run: make a script of it "
            f"(jupyter nbconvert --to script {path}), and give that"
        )
    return path


def _supervised(job: Job, plan: Plan) -> Output:
    """Run a job to its end, in a process of its own, and keep what it prints."""
    from distdoctor.launch.subprocess_runner import supervise_in_subprocess

    folder = plan.folder
    try:
        return supervise_in_subprocess(plan, own=job.own)
    except KeyboardInterrupt as interruption:
        if any(folder.glob("*.journal")):
            interruption.add_note(
                "distdoctor ended the job; what was seen until then: "
                f"distdoctor.examine({str(folder)!r})"
            )
        raise


def _judged(folder: Path, wanted: Path | None) -> Judged:
    from distdoctor.checking.judged_run import Judged

    with _judging:
        return Judged.of_record(folder, kept=str(wanted or ""))


def _examination(judged: Judged, output: Output | None = None) -> Examination:
    return Examination(
        judged.report,
        judged.run,
        judged.status(),
        stdout=output.stdout if output is not None else "",
        stderr=output.stderr if output is not None else "",
    )
