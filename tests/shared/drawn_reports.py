"""Reports of drawings, for what writes reports."""

from dataclasses import dataclass, field
from pathlib import Path

from distdoctor.catalogue import every_check, manuals, names_by_code
from distdoctor.examination.concluding import conclude
from distdoctor.examination.examining import examine
from distdoctor.examination.waivers import waive
from distdoctor.journal.folder import Manifest
from distdoctor.model.drawing import sketch
from distdoctor.model.run import Run
from distdoctor.report.compose import compose
from distdoctor.report.formats import Rendering, render
from distdoctor.report.schema import (
    ChecksData,
    FindingData,
    IgnoredData,
    LocationData,
    NotExamined,
    RaisedData,
    Report,
    RunData,
    TestimonyData,
)

SICK = """
    rank 0 | start=4  all_reduce(4)@train.py:7  all_reduce(4)@train.py:7!
    rank 1 | start=4  all_reduce(4)@train.py:7  all_reduce(4)@train.py:7!
    rank 2 | start=4  all_reduce(4)@train.py:7  barrier@train.py:12...
    rank 3 | start=4  all_reduce(4)@train.py:7  all_reduce(4)@train.py:7!
"""

WELL = """
    rank 0 | start=2  all_reduce(4)@train.py:7  leave  exit=0
    rank 1 | start=2  all_reduce(4)@train.py:7  leave  exit=0
"""

UNKNOWN = """
    rank 0 | start=2  all_reduce(4)@train.py:7  leave  exit=0
    rank 1 | ?
"""

FAILED = """
    rank 0 | start=2  all_reduce(4)@train.py:7  fail=ValueError@train.py:9  exit=1
    rank 1 | start=2  all_reduce(4)@train.py:7  fail=ValueError@train.py:9  exit=1
"""

WARNED = """
    rank 0 | start=2  all_reduce(4)@t.py:4  piled(step=3,count=3,first=1)@t.py:5  exit=0
    rank 1 | start=2  all_reduce(4)@t.py:4  piled(step=3,count=3,first=1)@t.py:5  exit=0
"""


@dataclass(frozen=True)
class Drawn:
    """A report, and its run if it has one."""

    report: Report
    run: Run | None = None


def drawn(drawing: str, ignored: dict[str, str] | None = None) -> Drawn:
    """The report of a drawing.

    Args:
        drawing: The run.
        ignored: By code, why findings are to be ignored.
    """
    run = sketch(drawing)
    waiving = waive(run, examine(run, every_check()), ignored or {})
    manifest = Manifest(
        distdoctor="0.1.0",
        launch=["torchrun", "train.py"],
        script="train.py",
        directory=".",
        ranks=run.world_size,
        seconds=1.5,
    )
    conclusion = conclude(run, waiving.verdicts, waiving.waived)
    return Drawn(compose(run, waiving, conclusion, manifest), run)


@dataclass
class Hostile:
    """A report all of whose texts are one text, which may be anything.

    Attributes:
        text: The text.
        verdict: The verdict.
        findings: How many there are of each severity.
    """

    text: str
    verdict: str = "sick"
    findings: int = 1
    run: Run | None = field(default=None, init=False)

    @property
    def report(self) -> Report:
        """The report."""
        text = self.text
        location = LocationData(text, 3, text, [0], "culprit", text)
        findings = [
            FindingData(
                code="DD108",
                name="skipped-collective",
                severity=severity,
                summary=text,
                ranks=[0],
                victims=[1],
                locations=[location, location],
                certainty="proved",
                evidence=["run"],
                remedy=text,
                details={"picture": [text]},
                told_by=[TestimonyData("log", [text], 1, text)],
            )
            for severity in ("error", "warning", "note")
            for _ in range(self.findings)
        ]
        findings[0].consequences = findings[1:2]
        return Report(
            distdoctor=text,
            verdict=self.verdict,
            world_size=2,
            script=text,
            launch=[text],
            findings=findings,
            not_examined=[NotExamined(text, text)],
            remarks=[text],
            ignored=[IgnoredData(finding=findings[-1], reason=text, where=text)],
            raised=[RaisedData(error=text, message=text, ranks=[1], location=location)],
            substituted=[],
            run=RunData(
                steps=1,
                seconds=2.0,
                exit_codes={"0": 1},
                exit_code=1,
                stopped="",
                calls=3,
                proof_ms=None,
                torch=text,
                backend=text,
                device=text,
                record=text,
                simulated=[],
            ),
            checks=ChecksData(
                sick=["DD108"],
                well=["DD101"],
                unknown=["DD102", "DD103"],
                not_applicable=["DD104"],
                crashed=["DD103"],
                why={"DD102": text, "DD103": text, "DD104": text},
            ),
        )


def written(form: str, *reported: Drawn | Hostile, **how: bool | Path) -> str:
    """Reports in a format.

    Args:
        form: Name of the format.
        reported: The reports.
        how: Fields of `Rendering`.
    """
    given = {"directory": Path("/repo/jobs"), **how}
    rendering = Rendering(manuals=manuals, names=names_by_code(), **given)  # type: ignore[arg-type]
    return render(form, reported, rendering)
