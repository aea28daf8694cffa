"""Gives each file that a job left to the reader of its kind, told by its content.

A new kind is a module with a `READER`, and its line in `READERS`.
"""

from __future__ import annotations

from collections.abc import Sequence

from distdoctor.postmortem.job_evidence import Evidence
from distdoctor.postmortem.leavings import Leaving, find
from distdoctor.postmortem.nccl_inspector import inspector_reader
from distdoctor.postmortem.nccl_ras import ras_reader
from distdoctor.postmortem.readers import Reader

READERS: tuple[Reader, ...] = (ras_reader.READER, inspector_reader.READER)
"""All readers; a file belongs to the first that recognises it.

The order is also that of reading: what knows ranks by number comes before what knows
only hosts and processes.
"""


def gather(paths: Sequence[str], readers: Sequence[Reader] = READERS) -> Evidence:
    """Read everything that lies at these paths.

    Args:
        paths: Files and folders.
        readers: Who reads.

    Returns:
        What is known of the job.

    Raises:
        LeavingsMissing: A path does not exist.
    """
    evidence = Evidence()
    by_reader: dict[int, list[Leaving]] = {}
    for leaving in find(paths):
        try:
            head = leaving.head()
        except OSError as error:
            evidence.unreadable.append((leaving.path, str(error)))
            continue
        for position, reader in enumerate(readers):
            if reader.recognises(leaving.name, head):
                by_reader.setdefault(position, []).append(leaving)
                break
        else:
            why = "it is empty" if not head else "it is of no kind that is known"
            evidence.left_out.append((leaving.path, why))
    for position, leavings in sorted(by_reader.items()):
        readers[position].read(leavings, evidence)
    return evidence
