"""Write dumps of flight recorders as columns, on many machines if need be."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from distdoctor.errors import LeavingsMissing
from distdoctor.report.plain_text import plain_lines

_MOST_NAMED = 8


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(), metavar="PATH...")
@click.option(
    "--into",
    "folder",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder to write to; parts that are in it stay.",
)
@click.pass_context
def run(context: click.Context, paths: tuple[str, ...], folder: Path) -> None:
    """Write flight recorder dumps as columns (Parquet), and judge nothing.

    For more ranks than one machine can read: run it on each host for the dumps that lie
    there, put all parts into one folder, and give that to distdoctor autopsy. It needs
    distdoctor[big].
    """
    # Here, so that --help does not wait for numpy.
    from distdoctor.postmortem.columns.column_writing import write_columns

    written = write_columns(paths, folder)
    for path, why in written.failed[:_MOST_NAMED]:
        sys.stderr.write(
            plain_lines(f"distdoctor: could not be read: {path} ({why})\n")
        )
    more = len(written.failed) - _MOST_NAMED
    if more > 0:
        sys.stderr.write(f"distdoctor: could not be read: {more:,} more\n")
    if not written.files:
        raise LeavingsMissing(
            "no flight recorder dump was found there; give the folder that has them"
        )
    judge = shlex.join(["distdoctor", "autopsy", str(folder)])
    sys.stdout.write(
        f"{written.files:,} dumps, {written.calls:,} calls; to judge them: {judge}\n"
    )
    context.exit(4 if written.failed else 0)
