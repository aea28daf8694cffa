"""Judgements on records that were kept, and on traces of torch.profiler."""

from __future__ import annotations

from pathlib import Path

from distdoctor.checking.judged_run import Judged
from distdoctor.errors import LeavingsMissing


def judged_at(paths: tuple[str, ...]) -> Judged:
    """The judgement on traces, or on the record in the only folder.

    Args:
        paths: Files of traces, or one folder.

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
