"""Look at a job while it runs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from distdoctor.checking.record_folders import records
from distdoctor.cli.options import JSON, list_format_option
from distdoctor.errors import LeavingsMissing, NothingToWatch
from distdoctor.report.formats import TEXT

if TYPE_CHECKING:
    from distdoctor.watching.watched import Watchable

_EVERY_S = 1.0
_FIRST_PAUSE_S = 1.0  # between two looks of --once: a pace is told by two


@click.command(
    epilog="Exit status: 0 when it was quit, also after the end of the job, whatever "
    "that came to; 2 where there is no such job, or it cannot be looked at; 128 + n "
    "after signal n, 130 at Ctrl-C."
)
@click.argument("targets", nargs=-1, metavar="[FOLDER|PID...]")
@click.option("--once", is_flag=True, help="Print one look as text, and end.")
@list_format_option(
    "With --once: how to write it; JSON is distdoctor.watch/1 (docs/watch.md)."
)
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0.2, max=3600),
    metavar="SECONDS",
    help="From one look to the next, at least: 1, or 5 for process numbers.",
)
def run(targets: tuple[str, ...], once: bool, form: str, every_s: float | None) -> None:
    """Look at a job while it runs: its ranks, who waits for whom, pace and memory.

    Without an argument, at the job that runs under `distdoctor check` or `distdoctor
    record` now; FOLDER is the record of one. PID is the launcher, or a rank, of a job
    that distdoctor did not start. The job is only looked at.
    """
    if form != TEXT and not once:
        raise click.UsageError("--format goes with --once")
    if not once:
        _require_terminal()
    watched = _watched(targets, every_s, choose=not once)
    if once:
        _print_once(watched[0], form)
        return
    from distdoctor.watching.watch_screen import show

    status = show(watched)
    if status:
        click.get_current_context().exit(status)


def _require_terminal() -> None:
    """Refuse to draw where nobody would see it.

    Raises:
        NothingToWatch: There is no terminal, or no textual.
    """
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not is_terminal or os.environ.get("TERM", "") in {"", "dumb"}:
        raise NothingToWatch(
            "distdoctor watch draws on a terminal, and this is none that it can draw "
            "on: `distdoctor watch --once` prints one look as text"
        )
    from importlib.util import find_spec

    if find_spec("textual") is None:
        raise NothingToWatch(
            "distdoctor watch needs textual: pip install 'distdoctor[watch]'; "
            "`distdoctor watch --once` works without it"
        )


def _watched(
    targets: Sequence[str], every_s: float | None, *, choose: bool
) -> list[Watchable]:
    """What is looked at; several where one is to be chosen.

    Raises:
        NothingToWatch: There is nothing, or too much.
    """
    from distdoctor.watching.record_watch import RecordWatch

    pids = [one for one in targets if one.isdigit() and not Path(one).exists()]
    if pids and len(pids) < len(targets):
        raise click.UsageError("give process numbers, or one folder, not both")
    if pids:
        from distdoctor.watching.process_watch import EVERY_S, ProcessWatch

        if any(len(one) > _LONGEST_PID for one in pids):
            raise LeavingsMissing(
                f"there is no process {max(pids, key=len)[:20]}; give one that runs"
            )
        return [ProcessWatch([*map(int, pids)], every_s or EVERY_S)]
    if len(targets) > 1:
        raise click.UsageError("give one folder")
    if targets:
        return [RecordWatch(Path(targets[0]), every_s=every_s or _EVERY_S)]
    from distdoctor.watching.running_records import running_records

    found = running_records()
    if not found:
        raise NothingToWatch(
            "no job of this user runs under `distdoctor check` or `distdoctor record` "
            "on this machine now; give the folder of a record (those that were kept "
            f"lie in {records()}), or the process number of another job"
        )
    if len(found) > 1 and not choose:
        folders = "; ".join(str(one.folder) for one in found)
        raise NothingToWatch(f"{len(found)} jobs run now: give one of {folders}")
    return [RecordWatch(one.folder, one, every_s or _EVERY_S) for one in found]


_LONGEST_PID = 10


def _print_once(watched: Watchable, form: str) -> None:
    from distdoctor.report.page import spelled
    from distdoctor.watching.plain_snapshot import as_json, as_plain

    watched.look()
    time.sleep(_FIRST_PAUSE_S)
    snapshot = watched.look()
    if form == JSON:
        sys.stdout.write(as_json(snapshot))
    else:
        sys.stdout.write(spelled(as_plain(snapshot), sys.stdout.encoding))
