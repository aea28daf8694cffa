"""Run a job on a few ranks under watch and say what ails it."""

from __future__ import annotations

import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from distdoctor.cli.options import Format, Judged, records, report_options
from distdoctor.cli.screen import Screen
from distdoctor.cli.second_look import (
    attempted,
    is_tied,
    look_again,
    may_look_again,
)
from distdoctor.cli.simulation_options import command_alone, ranks_to_play
from distdoctor.errors import LaunchRefused
from distdoctor.launch.command import Launcher
from distdoctor.launch.gpus import require_gpus
from distdoctor.launch.interruption import signals_interrupt
from distdoctor.launch.job import (
    BUDGET_S,
    DEFAULT_RANKS,
    Job,
    job_of,
    leave_allocation,
    plan_of,
    require_space,
)

if TYPE_CHECKING:
    from distdoctor.journal.folder import Manifest
    from distdoctor.launch.supervisor import Plan


@click.command()
@click.argument("script", required=False, type=click.Path(path_type=Path))
@click.option(
    "-n", "--ranks", default=DEFAULT_RANKS, show_default=True, help="Number of ranks."
)
@click.option(
    "--world-size",
    type=int,
    help="Start no ranks: simulate some of a job of this size, each alone.",
)
@click.option(
    "--as-rank",
    metavar="RANKS",
    help="Which to simulate, such as 0,1,513 or 0-7; by default a few that differ.",
)
@click.option(
    "--launcher",
    type=click.Choice([launcher.value for launcher in Launcher]),
    default=Launcher.AUTO.value,
    show_default=True,
    help="By torchrun, as plain python, or by a command per rank with the rank as "
    "its argument; auto looks into the script.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=0),
    default=0,
    help="End after so many optimizer steps; 0: no limit.",
)
@click.option(
    "--budget",
    type=click.FloatRange(min=1.0),
    default=BUDGET_S,
    show_default=True,
    help="End after so many seconds.",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Run a job that is written for GPUs on them, or on the CPU instead of them.",
)
@click.option(
    "--full",
    is_flag=True,
    help="Do not shorten epochs, even if the job will not end within the budget.",
)
@click.option(
    "--twice",
    is_flag=True,
    help="Run the job twice and say where the runs differ first, if they do; implies "
    "--full. Files that the runs change are put back.",
)
@click.option(
    "--resume",
    metavar="COMMAND",
    help="Run the job whole, then interrupted behind its first checkpoint, then this "
    "command, such as 'train.py --resume ckpt.pt', and say what it did not restore; "
    "implies --full. Files that the runs change are put back.",
)
@click.option(
    "--no-second-look",
    is_flag=True,
    help="Where two ranks disagree and nothing tells which of them is at fault, do not "
    "start the job again with three.",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    help="Keep the record of the run in this folder.",
)
@report_options
@click.pass_context
def run(
    context: click.Context,
    script: Path | None,
    ranks: int,
    world_size: int | None,
    as_rank: str | None,
    launcher: str,
    steps: int,
    budget: float,
    device: str,
    full: bool,
    twice: bool,
    resume: str | None,
    no_second_look: bool,
    record: Path | None,
    form: str,
    output: Path | None,
    strict: bool,
    allow_incomplete: bool,
    verbose: bool,
) -> None:
    """Run a job on a few ranks under watch and say what ails it.

    Either a script and its arguments (`distdoctor check train.py -n 2 -- --lr 0.1`), or
    a whole command (`distdoctor check -- torchrun --nproc-per-node 4 train.py`).
    What the script or command is to get itself stands after `--`. Several commands, one
    per rank, stand with `:::` between them (`distdoctor check -- python a.py ::: python
    b.py`).
    """
    given: list[str] = context.obj or []
    is_default = context.get_parameter_source("ranks") is ParameterSource.DEFAULT
    played: tuple[int, ...] = ()
    if world_size is not None or as_rank is not None:
        played = ranks_to_play(world_size, as_rank)
    compared = twice or resume is not None
    if compared and played:
        raise LaunchRefused(
            "--twice and --resume compare what real ranks compute, and --world-size "
            "simulates them: give one of these"
        )
    if twice and resume is not None:
        raise LaunchRefused("--twice and --resume are two proofs: give one of them")
    with _record_folder(record) as folder:
        asked = None if is_default else ranks
        if played:
            command = command_alone(script, given, launcher, not is_default)
            job = Job(command=command, name=str(script), ranks=ranks, own=True)
        else:
            job = job_of(script, given, asked, Launcher(launcher), folder / "logs")
        if device == "cuda":
            require_gpus(job.command)
        needed = len(played) or job.expected or job.ranks
        require_space(folder, needed, in_turn=bool(played))
        plan = plan_of(
            job,
            folder,
            steps=steps,
            budget_s=budget,
            device=device,
            shorten=not (full or steps or played or compared),
        )
        again: Plan | None = None
        if resume is not None:
            logs = folder / "logs"
            further = _resuming(script, resume, asked, Launcher(launcher), logs)
            again = plan_of(further, folder, budget_s=budget, device=device)
        if job.own:
            leave_allocation()
        divert = form != Format.TEXT and output is None
        run_it = partial(_run, plan, again, twice, world_size or 0, played)
        interrupted = _watched(run_it, divert)
        judgement = Judged(folder, kept=str(record or ""))
        whole = not (interrupted or played or compared or no_second_look)
        if (
            whole
            and is_tied(judgement.report)
            and may_look_again(job, script, is_default=is_default)
        ):

            def judge_more(ranks: int, budget_s: float) -> Judged | None:
                more = folder / f"with-{ranks}"
                more.mkdir()
                further = job_of(script, given, ranks, Launcher(launcher), more)
                require_space(more, ranks)
                run_more = partial(
                    _run,
                    plan_of(
                        further,
                        more,
                        steps=steps,
                        budget_s=budget_s,
                        device=device,
                        shorten=not (full or steps),
                    ),
                    None,
                    False,
                    0,
                    (),
                )
                if _watched(run_more, divert):
                    return None
                return Judged(more, kept=str(record or ""))

            judgement = look_again(
                judgement, budget, lambda n, s: attempted(partial(judge_more, n, s))
            )
        keep = record is not None or judgement.report.verdict != "well"
        if keep:
            judgement.report.run.record = _shown(judgement.folder)
        judgement.write(form, output, verbose)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        context.exit(interrupted or judgement.status(strict, allow_incomplete))


def _run(
    plan: Plan,
    again: Plan | None,
    twice: bool,
    world_size: int,
    played: tuple[int, ...],
    screen: Screen,
) -> Manifest:
    """Run the job, in the way that was asked for."""
    from distdoctor.launch.rank_simulation import simulate
    from distdoctor.launch.run_comparison import prove_resume, run_twice
    from distdoctor.launch.supervisor import supervise

    if played:
        return simulate(plan, world_size, played, screen)
    if again is not None:
        return prove_resume(plan, again, screen)
    return run_twice(plan, screen) if twice else supervise(plan, screen)


def _watched(run_it: Callable[[Screen], Manifest], divert: bool) -> int:
    """Run the job; 0, or the exit status that tells of an interruption."""
    from distdoctor.launch.watchdog import Stop

    live = sys.stderr.isatty()
    with signals_interrupt() as received, Screen(divert, live) as screen:
        manifest = run_it(screen)
    if manifest.stopped == Stop.INTERRUPTED:
        asked = signal.SIGPIPE if screen.unread else signal.SIGINT
        return 128 + (received[0] if received else asked)
    return 0


def _resuming(
    script: Path | None, command: str, ranks: int | None, launcher: Launcher, logs: Path
) -> Job:
    """What resumes the job, to be started as the job itself.

    Raises:
        LaunchRefused: It cannot be started so.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise LaunchRefused(f"--resume {command!r}: {error}") from error
    if script is not None and words and Path(words[0]).name.startswith("python"):
        words = words[1:]
    if not words:
        raise LaunchRefused(
            "--resume: give a command, such as 'train.py --resume ckpt.pt'"
        )
    if script is None:
        return job_of(None, words, ranks, launcher, logs)
    return job_of(Path(words[0]), words[1:], ranks, launcher, logs)


@contextmanager
def _record_folder(wanted: Path | None) -> Iterator[Path]:
    """The folder for the record; if nothing was recorded, it goes again.

    Raises:
        LaunchRefused: It cannot be made, or holds something already.
    """
    try:
        if wanted is None:
            stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H%M%S-")
            runs = records()
            runs.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder = Path(tempfile.mkdtemp(prefix=stamp, dir=runs))
        else:
            folder = wanted.absolute()
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if any(folder.iterdir()):
                raise LaunchRefused(
                    f"{wanted} is not empty; give --record a new folder"
                )
    except OSError as error:
        raise LaunchRefused(
            f"no folder for the record: {error.filename}: {error.strerror}; "
            "give a writable one with --record"
        ) from error
    try:
        yield folder
    except LaunchRefused:
        with suppress(OSError):
            shutil.rmtree(folder)
        raise


def _shown(folder: Path) -> str:
    """A folder as the reader would type it."""
    with suppress(ValueError, OSError):  # where the reader was may be gone
        return str(folder.relative_to(Path.cwd()))
    with suppress(ValueError, RuntimeError):
        return f"~/{folder.relative_to(Path.home())}"
    return str(folder)
