"""Record what the ranks of a job do, and judge nothing."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import click

from distdoctor.cli.options import records
from distdoctor.errors import LaunchRefused
from distdoctor.report.plain_text import plain_lines


@click.command()
@click.option(
    "--to",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write to this folder, which must be new or empty.",
)
@click.pass_context
def run(context: click.Context, to: Path | None) -> None:
    """Record what the ranks of a job do, for days if need be, and judge nothing.

    The command stands after `--` (`distdoctor record -- torchrun --nproc-per-node 4
    train.py`). It runs as it would without; its exit status is passed on. What was
    recorded is judged by `distdoctor autopsy FOLDER`.
    """
    # Here, so that --help does not wait for numpy.
    from distdoctor.launch.command import given_command, script_in
    from distdoctor.launch.job import require_space
    from distdoctor.launch.recording import record_job

    given: list[str] = context.obj or []
    if not given:
        raise LaunchRefused(
            "give a command after `--`: distdoctor record -- torchrun …"
        )
    folder = _folder(to)
    try:
        require_space(folder, 1)
        status = record_job(given_command(given), script_in(given), folder)
    except LaunchRefused:
        with suppress(OSError):
            shutil.rmtree(folder)
        raise
    with suppress(OSError):
        judge = shlex.join(["distdoctor", "autopsy", str(to or folder)])
        sys.stderr.write(plain_lines(f"distdoctor: recorded; to judge it: {judge}\n"))
    context.exit(status)


def _folder(wanted: Path | None) -> Path:
    """The folder for the record, made new.

    Raises:
        LaunchRefused: It cannot be made, or holds something already.
    """
    try:
        if wanted is None:
            stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H%M%S-recorded-")
            runs = records()
            runs.mkdir(parents=True, exist_ok=True, mode=0o700)
            return Path(tempfile.mkdtemp(prefix=stamp, dir=runs))
        folder = wanted.absolute()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if any(folder.iterdir()):
            raise LaunchRefused(f"{wanted} is not empty; give --to a new folder")
    except OSError as error:
        raise LaunchRefused(
            f"no folder for the record: {error.filename}: {error.strerror}; "
            "give a writable one with --to"
        ) from error
    return folder
