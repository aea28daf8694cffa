"""What becomes of a record once its run is judged."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from distdoctor.checking.judged_run import Judged
from distdoctor.errors import RecordUnreadable


def keep(judged: Judged, folder: Path, wanted: Path | None) -> bool:
    """Write down in a record what was found, and name it in the report, if it stays.

    Args:
        judged: The run of which the report tells.
        folder: The record folder; the run's own may lie within it.
        wanted: Where the user wants it; None: among the other records, where it stays
            unless all is well.

    Returns:
        Whether it stays; if not, the caller removes it once the report is written.
    """
    verdict = judged.report.verdict
    if wanted is None and verdict == "well":
        return False
    if judged.folder is not None:
        judged.report.run.record = shown(judged.folder)
        _note_verdict(folder, verdict)
    return True


def _note_verdict(folder: Path, verdict: str) -> None:
    """Write the verdict into the record, for the list of records."""
    from distdoctor.journal import folder as record

    with suppress(OSError, RecordUnreadable):
        manifest = record.read_manifest(folder)
        manifest.verdict = verdict
        record.write(folder, record.MANIFEST, manifest)


def shown(folder: Path) -> str:
    """A folder as the reader would type it."""
    with suppress(ValueError, OSError):  # where the reader was may be gone
        return str(folder.relative_to(Path.cwd()))
    with suppress(ValueError, RuntimeError):
        return f"~/{folder.relative_to(Path.home())}"
    return str(folder)
