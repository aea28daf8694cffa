"""Judge a recorded run again, or traces of torch.profiler."""

from __future__ import annotations

from pathlib import Path

import click

from distdoctor.cli.completed_words import kept_records
from distdoctor.cli.options import Judged, ReportOptions, report_options
from distdoctor.errors import LeavingsMissing


@click.command()
@click.argument(
    "paths",
    nargs=-1,
    required=True,
    metavar="FOLDER|TRACE...",
    shell_complete=kept_records,
)
@report_options
def run(paths: tuple[str, ...], report: ReportOptions) -> None:
    """Judge a run again that `check --record FOLDER` has kept.

    Or judge traces of torch.profiler: one file of each rank (*.pt.trace.json, packed or
    not), or the folder of them.
    """
    judged = judged_at(paths)
    judged.write(report)
    click.get_current_context().exit(judged.status(report))


def judged_at(paths: tuple[str, ...]) -> Judged:
    """The judgement on traces, or on the record in the only folder.

    Raises:
        LeavingsMissing: None of several is a trace, or they tell of no job of ranks.
        RecordUnreadable: The folder holds no run, or one that cannot be read.
    """
    return _of_traces(paths) or _of_record(Path(paths[0]))


def _of_record(folder: Path) -> Judged:
    # Here, so that --help does not wait for msgspec.
    from distdoctor.journal.kept_records import trim_if_broken_off

    trim_if_broken_off(folder)
    return Judged.of_record(folder, kept=str(folder))


def _of_traces(paths: tuple[str, ...]) -> Judged | None:
    """The judgement on the traces at these paths; None: this may be a record.

    Raises:
        LeavingsMissing: None of several is a trace, or they tell of no job of ranks.
    """
    # Here, so that --help does not wait for numpy.
    from distdoctor.journal.folder import MANIFEST
    from distdoctor.judging import judge_run
    from distdoctor.postmortem.evidence_run import manifest_of, run_of
    from distdoctor.postmortem.profiler_traces import profiler_reader
    from distdoctor.postmortem.recognising import gather

    only = Path(paths[0]) if len(paths) == 1 else None
    if only is not None and (not only.exists() or (only / MANIFEST).exists()):
        return None
    evidence = gather(paths, readers=(profiler_reader.READER,))
    if not evidence.sources and not evidence.unreadable:
        for path, why in evidence.left_out:
            if why in profiler_reader.OF_NO_JOB:
                raise LeavingsMissing(f"{path}: nothing can be told from it: {why}")
        if only is not None:
            return None
        raise LeavingsMissing(
            f"{', '.join(paths)}: none is a trace of torch.profiler; give the folder "
            "of one record, or traces"
        )
    manifest = manifest_of(evidence, list(paths), str(Path.cwd()), "examine")
    return Judged(judge_run(run_of(evidence), manifest))
