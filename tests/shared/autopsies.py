"""Judges files that a test has written, as `distdoctor autopsy` does."""

from pathlib import Path

from distdoctor.judging import judge_run
from distdoctor.postmortem.evidence_run import manifest_of, run_of
from distdoctor.postmortem.recognising import gather
from distdoctor.report.schema import Report


def report_on(*paths: Path) -> Report:
    """What is said of these files and folders."""
    named = [str(path) for path in paths]
    evidence = gather(named)
    return judge_run(run_of(evidence), manifest_of(evidence, named, "/")).report


def findings_in(report: Report) -> list[tuple[str, tuple[int, ...]]]:
    """Code and culprits of each finding that is an error."""
    return [
        (one.code, tuple(one.ranks))
        for one in report.findings
        if one.severity == "error"
    ]
