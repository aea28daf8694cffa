"""Gives each file that a job left to the reader of its kind, told by its content.

A new kind is a module with a `READER`, and its line in `READERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from distdoctor.postmortem.columns import column_reader, column_writing
from distdoctor.postmortem.flight_recorder import recorder_reader
from distdoctor.postmortem.horovod_timeline import timeline_reader
from distdoctor.postmortem.job_evidence import Evidence
from distdoctor.postmortem.job_output import output_files
from distdoctor.postmortem.leavings import Leaving, find, whole
from distdoctor.postmortem.living import saved_parts
from distdoctor.postmortem.nccl_inspector import inspector_reader
from distdoctor.postmortem.nccl_logs import nccl_reader
from distdoctor.postmortem.nccl_ras import ras_reader
from distdoctor.postmortem.other_jobs import (
    contradiction,
    copied,
    of_earlier_jobs,
    set_apart,
)
from distdoctor.postmortem.own_records import RECORD
from distdoctor.postmortem.profiler_traces import profiler_reader
from distdoctor.postmortem.readers import Reader
from distdoctor.postmortem.remote_files import FetchedFiles
from distdoctor.postmortem.stacks import stack_reader

READERS: tuple[Reader, ...] = (
    profiler_reader.READER,  # before that of dumps, which are JSON with groups, too
    recorder_reader.READER,
    column_reader.READER,
    saved_parts.READER,
    stack_reader.READER,
    ras_reader.READER,
    inspector_reader.READER,
    timeline_reader.READER,
    output_files.READER,
    nccl_reader.READER,
)
"""All readers; a file belongs to the first that recognises it.

The order is also that of reading: what knows ranks by number comes before what knows
only hosts and processes.
"""

BESIDE: tuple[Reader, ...] = (output_files.READER, nccl_reader.READER)
"""Readers of files that may hold another kind as well: logs of NCCL lie in output."""

ALONE: tuple[Reader, ...] = (
    saved_parts.READER,
    ras_reader.READER,
    inspector_reader.READER,
    timeline_reader.READER,
    profiler_reader.READER,
)
"""Readers of files that hold nothing else, though they may look like output."""


def gather(
    paths: Sequence[str],
    readers: Sequence[Reader] = READERS,
    without: Callable[[str], bool] = lambda _: False,
    columns: Path | None = None,
) -> Evidence:
    """Read everything that lies at these paths.

    Args:
        paths: Files and folders.
        readers: Who reads.
        without: Whether a file is to be passed over: it is read already.
        columns: A folder to which dumps are written as columns, and read from there.

    Returns:
        What is known of the job.

    Raises:
        LeavingsMissing: A path does not exist.
    """
    with FetchedFiles() as fetched:
        return _gathered(paths, readers, without, fetched, columns)


def _gathered(
    paths: Sequence[str],
    readers: Sequence[Reader],
    without: Callable[[str], bool],
    fetched: FetchedFiles,
    columns: Path | None,
) -> Evidence:
    evidence = Evidence()
    by_reader: dict[int, list[Leaving]] = {}
    found = [one for one in find(paths, fetched) if not without(one.path)]
    if columns is not None:  # what lies there is of earlier readings
        found = [one for one in found if columns not in Path(one.path).parents]
    earlier = of_earlier_jobs(found)
    if earlier:
        evidence.left_out += earlier.items()
        evidence.set_aside += [("output of earlier jobs", next(iter(earlier.values())))]
    for leaving in found:
        if leaving.path in earlier:
            continue
        try:
            head = leaving.head()
        except OSError as error:
            evidence.unreadable.append((leaving.path, str(error)))
            continue
        taken = alone = False
        for position, reader in enumerate(readers):
            if alone or (taken and reader not in BESIDE):
                continue
            if reader.recognises(leaving.name, head):
                by_reader.setdefault(position, []).append(leaving)
                taken, alone = True, reader in ALONE
        if not taken:
            why = "it is empty" if not head else "it is of no kind that is known"
            if leaving.copy and (RECORD in head or leaving.name.endswith(".journal")):
                why = "copy records of distdoctor to this machine to have them judged"
            evidence.left_out.append((leaving.path, why))
    for position, leavings in sorted(by_reader.items()):
        here, failed = whole(leavings, fetched)
        known = {path for path, _ in evidence.unreadable}
        evidence.unreadable += [one for one in failed if one[0] not in known]
        reader = readers[position]
        if here and columns is not None and reader is recorder_reader.READER:
            written = column_writing.write_dumps(here, columns)
            evidence.unreadable += written.failed
            reader = column_reader.READER
            here = list(find([str(part) for part in written.parts]))
        if here:
            evidence = _with_read(reader, here, evidence)
    # What two readers looked at is listed once, with what the first says of it.
    evidence.left_out = [*_first_of_each(evidence.left_out).items()]
    return evidence


def _first_of_each(files: Sequence[tuple[str, str]]) -> dict[str, str]:
    """By path, the first reason."""
    found: dict[str, str] = {}
    for path, why in files:
        found.setdefault(path, why)
    return found


def _with_read(
    reader: Reader, leavings: Sequence[Leaving], evidence: Evidence
) -> Evidence:
    """Evidence with what a reader's files tell, unless they are of another job."""
    before = copied(evidence)
    reader.read(leavings, evidence)
    why = contradiction(before, evidence)
    if not why:
        return evidence
    paths = [leaving.path for leaving in leavings]
    set_apart(before, evidence, reader.kind, paths, why)
    return before
