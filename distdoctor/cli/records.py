"""List the records that are kept, and remove old ones."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import click

from distdoctor.checking.record_folders import (
    DAYS,
    DAYS_VARIABLE,
    GIB,
    GIB_VARIABLE,
    limit,
    records,
)
from distdoctor.cli.options import JSON, list_format_option

_GIB = 2**30


@click.group()
def run() -> None:
    """List the records of runs that are kept, and remove old ones.

    They lie in ~/.cache/distdoctor/runs, or below $XDG_CACHE_HOME. Records in folders
    of your own (--record, --to) are not touched.
    """


@run.command("list")
@list_format_option("How to write the list.")
def list_records(form: str) -> None:
    """List the records: when, which script, its verdict, size and folder."""
    # Here, so that --help does not wait for msgspec.
    from distdoctor.journal.kept_records import records_in
    from distdoctor.report import record_list

    top = records()
    found = records_in(top)
    if form == JSON:
        sys.stdout.write(record_list.as_json(found, top))
    else:
        sys.stdout.write(record_list.as_text(found, top))


@run.command(
    epilog="The latest record stays, and those of runs that are not over, and those "
    "with files of yours that --twice or --resume could not put back."
)
@click.option(
    "--older-than",
    "days",
    type=click.FloatRange(min=0.0),
    metavar="DAYS",
    help=f"Remove what began more than so many days ago; 0: none. Otherwise "
    f"${DAYS_VARIABLE}, or {DAYS:.0f}.",
)
@click.option(
    "--larger-than",
    "gib",
    type=click.FloatRange(min=0.0),
    metavar="GIB",
    help="Remove the oldest until the rest takes no more than so many GiB; 0: none. "
    f"Otherwise ${GIB_VARIABLE}, or {GIB:.0f}.",
)
@click.option("--dry-run", is_flag=True, help="Say what would go, and remove nothing.")
def prune(*, days: float | None, gib: float | None, dry_run: bool) -> None:
    """Remove records that are too old, or too many; cut what others do not use.

    `distdoctor check` and `distdoctor record` do the same when they start.
    """
    # Here, so that --help does not wait for msgspec.
    from distdoctor.journal.kept_records import (
        outdated,
        records_in,
        remove,
        trim_if_broken_off,
    )
    from distdoctor.report.record_list import as_line, size_text

    days = limit(DAYS_VARIABLE, DAYS) if days is None else days
    gib = limit(GIB_VARIABLE, GIB) if gib is None else gib
    found = records_in(records())
    going = outdated(found, datetime.now(UTC), days, gib * _GIB)
    if not dry_run:
        for one in found:
            if one not in going:
                trim_if_broken_off(one.folder)
        going = [one for one in going if remove(one)]
    for one in going:
        sys.stdout.write(as_line(one))
    word = "would be removed" if dry_run else "removed"
    freed = size_text(sum(one.size_bytes for one in going))
    left = len(found) - len(going)
    sys.stdout.write(f"{word}: {len(going)} of {len(found)}, {freed}; {left} stay\n")
