"""Run a job on a few ranks under watch and say what ails it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import click
from click.core import ParameterSource

from distdoctor.cli.options import Format, Judged, records, report_options
from distdoctor.cli.screen import Screen
from distdoctor.cli.simulation import command_alone, ranks_to_play
from distdoctor.errors import LaunchRefused
from distdoctor.journal import DEFAULT_BYTES, PORTS_VARIABLE
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
from distdoctor.launch.gpus import require_gpus
from distdoctor.launch.isolation import may_be_isolated

BUDGET_S = 120.0
"""Enough for a pre-flight: torch comes up in seconds, hours belong to the cluster."""

_RANK_PREFIX = "[rank${rank}]:"  # torchrun's own is "[default0]:"
_MARGIN_BYTES = 64 * 1024 * 1024
_SHRUNK_BYTES = 8 * 1024 * 1024  # of most journals, once their rank is done
_NOT_OURS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "LOCAL_WORLD_SIZE")


@click.command()
@click.argument("script", required=False, type=click.Path(path_type=Path))
@click.option("-n", "--ranks", default=2, show_default=True, help="Number of ranks.")
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
    supplied: dict[str, str] = {}
    expected = 0
    played: tuple[int, ...] = ()
    if world_size is not None or as_rank is not None:
        played = ranks_to_play(world_size, as_rank)
    with _record_folder(record) as folder:
        if played:
            asked = context.get_parameter_source("ranks")
            given_n = asked is not ParameterSource.DEFAULT
            command = command_alone(script, given, launcher, given_n)
            name = str(script)
        elif script is None:
            if not given:
                raise LaunchRefused(
                    "give a script (distdoctor check train.py) or a command after `--`"
                )
            command, name = given_command(given), script_in(given)
        else:
            source = source_of(script)
            if context.get_parameter_source("ranks") is ParameterSource.DEFAULT:
                ranks = source.world_size or ranks
            logs = folder / "logs"
            command = command_for(script, given, ranks, Launcher(launcher), logs)
            expected = rank_count(command, ranks)
            supplied = of_job(source, expected or ranks)
            name = str(script)
        if ranks < 1:
            raise LaunchRefused(f"-n {ranks}: give the number of ranks, 1 or more")
        if device == "cuda":
            require_gpus(command)
        needed = len(played) or expected or ranks
        _require_space(folder, needed, in_turn=bool(played))
        interrupted = _supervise(
            command,
            name,
            folder,
            ranks=expected,
            supplied=supplied,
            world_size=world_size or 0,
            played=played,
            own=script is not None,
            steps=steps,
            budget_s=budget,
            device=device,
            devices=ranks,
            shorten=not (full or steps or played),
            divert=form != Format.TEXT and output is None,
        )
        judgement = Judged(folder, kept=str(record or ""))
        keep = record is not None or judgement.report.verdict != "well"
        if keep:
            judgement.report.run.record = _shown(folder)
        judgement.write(form, output, verbose)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        context.exit(interrupted or judgement.status(strict, allow_incomplete))


def _supervise(
    command: list[str],
    name: str,
    folder: Path,
    *,
    ranks: int,
    supplied: dict[str, str],
    world_size: int,
    played: tuple[int, ...],
    own: bool,
    steps: int,
    budget_s: float,
    device: str,
    devices: int,
    shorten: bool,
    divert: bool,
) -> int:
    """Run the job; 0, or the exit status that tells of an interruption."""
    from distdoctor.launch.simulation import simulate
    from distdoctor.launch.supervisor import Plan, Stop, supervise

    environment = dict(supplied)
    if may_be_isolated(command):
        environment[PORTS_VARIABLE] = "own" if own else "given"
    if own:
        environment["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = _RANK_PREFIX
        for variable in _NOT_OURS:  # of an allocation around us: the job has its own
            os.environ.pop(variable, None)
    plan = Plan(
        command=command,
        script=name,
        directory=Path.cwd(),
        folder=folder,
        ranks=ranks,
        budget_s=budget_s,
        steps=steps,
        shorten=shorten,
        quiet_launcher=starts_torchrun(command),
        environment=environment,
        device=device,
        devices=devices,
    )
    live = sys.stderr.isatty()
    with _signals_interrupt() as received, Screen(divert, live) as screen:
        if played:
            manifest = simulate(plan, world_size, played, screen)
        else:
            manifest = supervise(plan, screen)
    if manifest.stopped == Stop.INTERRUPTED:
        return 128 + (received[0] if received else signal.SIGINT)
    return 0


@contextmanager
def _signals_interrupt() -> Iterator[list[int]]:
    """SIGTERM and SIGHUP end the job as Ctrl-C does; a second one changes nothing."""
    received: list[int] = []

    def interrupt(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:
            raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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


def _require_space(folder: Path, ranks: int, *, in_turn: bool) -> None:
    """Raise LaunchRefused if the journals do not fit."""
    each = _SHRUNK_BYTES if in_turn else DEFAULT_BYTES
    needed = ranks * each + DEFAULT_BYTES * in_turn + _MARGIN_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise LaunchRefused(
            f"{folder} has {free >> 20} MiB free and the journals of {ranks} ranks "
            f"need {needed >> 20}: give another folder with --record"
        )


def _shown(folder: Path) -> str:
    """A folder as the reader would type it."""
    with suppress(ValueError):
        return str(folder.relative_to(Path.cwd()))
    with suppress(ValueError, RuntimeError):
        return f"~/{folder.relative_to(Path.home())}"
    return str(folder)
