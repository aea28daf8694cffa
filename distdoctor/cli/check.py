"""Run a job on a few ranks under watch and say what ails it."""

from __future__ import annotations

import importlib
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from distdoctor.checking.judged_run import Judged
from distdoctor.checking.kept_runs import keep
from distdoctor.checking.named_checks import require_codes
from distdoctor.checking.record_folders import record_folder, require_room, tidy
from distdoctor.checking.second_look import (
    advise_more_ranks,
    is_worth_it,
    look_again,
)
from distdoctor.cli.check_options import CheckOptions, check_options
from distdoctor.cli.options import (
    ReportOptions,
    report_options,
    status_of,
    write_reports,
)
from distdoctor.cli.screen import Screen
from distdoctor.errors import (
    DistdoctorError,
)
from distdoctor.journal.private_files import make_private_folder
from distdoctor.launch.gpus import require_gpus
from distdoctor.launch.interruption import signals_interrupt
from distdoctor.launch.job import leave_allocation, require_space

if TYPE_CHECKING:
    from distdoctor.journal.folder import Manifest
    from distdoctor.launch.supervisor import Plan


@click.command()
@check_options
@report_options
@click.pass_context
def run(
    context: click.Context, /, *, options: CheckOptions, report: ReportOptions
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
    asked = None if is_default else options.ranks
    played, record = options.played, options.record
    with record_folder(record, "--record") as folder:
        job = options.job(given, asked, folder / "logs")
        if options.device == "cuda":
            require_gpus(job.command)
        needed = len(played) or job.expected or job.ranks
        require_room(folder, needed, record, in_turn=bool(played))
        plan = options.plan(job, folder, options.budget)
        require_codes(plan)
        again = options.resuming(asked, folder) or options.referring(
            given, asked, folder
        )
        if job.own:
            leave_allocation()
        divert = report.diverts
        meanwhile = partial(_prepare, folder if record is None else None)
        interrupted = _watched(partial(_run, options, plan, again), divert, meanwhile)
        judged = Judged.of_record(folder, kept=str(record or ""))

        def judge_more(ranks: int, budget_s: float) -> Judged | None:
            more = make_private_folder(folder / f"with-{ranks}")
            further = options.plan(options.job(given, ranks, more), more, budget_s)
            require_space(more, ranks)
            if _watched(partial(_run, options, further, None), divert, _prepare):
                return None
            return Judged.of_record(more, kept=str(record or ""))

        plain = not (played or options.is_compared or options.no_second_look)
        if (
            plain
            and not interrupted
            and is_worth_it(judged.report, job, options.script, is_default=is_default)
        ):
            judged = look_again(judged, options.budget, judge_more)
        elif not (played or interrupted):
            advise_more_ranks(judged.report)
        is_kept = keep(judged, folder, record)
        write_reports([judged], report)
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)
        context.exit(interrupted or status_of(judged, report))


def _run(
    options: CheckOptions, plan: Plan, again: Plan | None, screen: Screen
) -> Manifest:
    """Run the job, in the way that was asked for."""
    if options.played:
        from distdoctor.launch.rank_simulation import simulate

        return simulate(plan, options.world_size or 0, options.played, screen)
    if options.is_compared:
        from distdoctor.launch.run_comparison import (
            compare_with_reference,
            prove_resume,
            run_twice,
        )

        if again is not None and options.reference is not None:
            return compare_with_reference(plan, again, screen)
        if again is not None:
            return prove_resume(plan, again, screen)
        return run_twice(plan, screen)
    from distdoctor.launch.supervisor import supervise

    return supervise(plan, screen)


def _watched(
    run_it: Callable[[Screen], Manifest], divert: bool, meanwhile: Callable[[], None]
) -> int:
    """Run the job; 0, or the exit status that tells of an interruption."""
    from distdoctor.model.stop_reasons import Stop

    live = sys.stderr.isatty()
    with signals_interrupt() as received, Screen(divert, live, meanwhile) as screen:
        manifest = run_it(screen)
    if manifest.stopped == Stop.INTERRUPTED:
        asked = signal.SIGPIPE if screen.unread else signal.SIGINT
        return 128 + (received[0] if received else asked)
    return 0


def _prepare(new: Path | None = None) -> None:
    """Load what will judge, while the job's launcher and its ranks load torch.

    Args:
        new: The record of the run, if it lies among others: old ones are removed, too.
    """
    threading.Thread(target=_load_checks, daemon=True).start()
    if new is not None:
        threading.Thread(target=_tidy, args=(new,)).start()


def _tidy(new: Path) -> None:
    with suppress(OSError, DistdoctorError):
        tidy(beside=new)


def _load_checks() -> None:
    with suppress(ImportError, DistdoctorError):  # told when they are asked
        from distdoctor.judging import load_checks, without_collection

        with without_collection():
            load_checks()
            importlib.import_module("distdoctor.report.text")
            importlib.import_module("numpy.ma")  # by `numpy.unique`, when it is called
