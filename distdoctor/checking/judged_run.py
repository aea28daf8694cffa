"""A run that was judged, and what its verdict means to who asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distdoctor.judging import Judgement


class Judged:
    """A run, judged: what to print and how to leave."""

    def __init__(self, judgement: Judgement, folder: Path | None = None) -> None:
        """Take what was found.

        Args:
            judgement: The run and its report.
            folder: The record folder it was judged from; none: from anything else.
        """
        self.run, self.report = judgement.run, judgement.report
        self.folder = folder

    @classmethod
    def of_record(cls, folder: Path, kept: str) -> Judged:
        """Judge the run in a record folder.

        Args:
            folder: The record folder.
            kept: Its name for the report, if it stays.

        Raises:
            RecordUnreadable: It holds no run, or one that cannot be read.
        """
        # Here, so that --help and explain do not wait for numpy.
        from distdoctor.journal.folder import read_manifest
        from distdoctor.judging import judge, judge_run
        from distdoctor.postmortem.own_nccl_logs import with_nccl_logs
        from distdoctor.postmortem.own_records import is_whole, read_record

        if is_whole(read_manifest(folder)):
            return cls(judge(folder, kept, with_nccl_logs), folder)
        rest = read_record(folder)
        judgement = judge_run(rest.run, rest.manifest, kept, rest.earlier)
        return cls(judgement, folder)

    def status(self, *, strict: bool = False, allow_incomplete: bool = False) -> int:
        """The exit status of a command that was asked for this.

        Args:
            strict: Warnings count as errors.
            allow_incomplete: Incomplete evidence is no failure, unless the job failed.
        """
        findings = self.report.findings
        if self.report.verdict == "sick":
            return 1
        if strict and any(finding.severity == "warning" for finding in findings):
            return 1
        if self.report.checks.crashed:
            return 3
        incomplete = self.report.verdict == "unknown"
        passes = allow_incomplete and not self.report.has_failed
        return 4 if incomplete and not passes else 0
