"""The outcome of one test on its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distdoctor.judging import Judgement
from distdoctor.model.events import Place
from distdoctor.report.schema import FindingData


@dataclass(frozen=True, slots=True)
class PhaseReport:
    """A rank's report of one phase of a test.

    Attributes:
        data: The report, serialised.
        secondary: The failure only tells that a peer, or the connection to it, is gone.
        at_ns: When it was made, on the monotonic clock.
    """

    data: dict[str, Any]
    secondary: bool
    at_ns: int


@dataclass(slots=True)
class Outcome:
    """The outcome of a test on its ranks.

    Attributes:
        phase_reports: Reports of each rank, in order.
        refused: Why it was not run at all; then nothing else is set.
        unable: What this machine lacks, so that the test is skipped.
        lost: What kept ranks from running it, by rank.
        died: Exit status of ranks that ended meanwhile; negative: minus the signal.
        stopped: Why it was ended (`Stop`); empty if it ended by itself.
        unfinished: Ranks that were still in it when it was ended.
        stacks: Where those stood: lines of the user's, innermost first, by rank; whom
            the others wait for comes first.
        printed: What those and the dead had printed in that phase, by stream.
        printed_outside: What they printed outside of it, such as the interpreter's last
            words.
        remark: What else is known of why it was ended.
        leave: Message of a `pytest.exit` on a rank.
        judgement: distdoctor's verdict and findings; None if it was not watched.
        findings: Those findings that fail the test.
        record: The record folder, where it was kept.
        falsifying: The example that fails, as hypothesis tells it.
        seconds: How long it took.
    """

    phase_reports: dict[int, list[PhaseReport]] = field(default_factory=dict)
    refused: str = ""
    unable: str = ""
    lost: dict[int, str] = field(default_factory=dict)
    died: dict[int, int] = field(default_factory=dict)
    stopped: str = ""
    unfinished: tuple[int, ...] = ()
    stacks: dict[int, list[Place]] = field(default_factory=dict)
    printed: dict[int, dict[str, str]] = field(default_factory=dict)
    printed_outside: dict[int, str] = field(default_factory=dict)
    remark: str = ""
    leave: str | None = None
    judgement: Judgement | None = None
    findings: Sequence[FindingData] = ()
    record: Path | None = None
    falsifying: str = ""
    seconds: float = 0.0

    @property
    def is_bad(self) -> bool:
        """Whether the ranks cannot be reused for another test."""
        return bool(
            self.stopped or self.lost or self.died or self.leave is not None
        ) or any(
            phase_report.data["outcome"] == "failed" or "wasxfail" in phase_report.data
            for reports in self.phase_reports.values()
            for phase_report in reports
        )
