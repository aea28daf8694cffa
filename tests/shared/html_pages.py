"""Pages for tests: of drawings, and with one text in every place that has any."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec

from distdoctor.catalogue import every_check
from distdoctor.examination.concluding import conclude
from distdoctor.examination.examining import examine
from distdoctor.examination.waivers import Waiving
from distdoctor.journal.folder import Manifest
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Call
from distdoctor.model.outside_view import StackBranch
from distdoctor.model.run import Group, Run, Spec
from distdoctor.report.compose import compose
from distdoctor.report.formats import Rendering
from distdoctor.report.formats import render as in_format
from distdoctor.report.schema import (
    FileData,
    FindingData,
    IgnoredData,
    LocationData,
    NotExamined,
    ProcessData,
    RaisedData,
    Report,
    SubstitutedData,
    TestimonyData,
)

SOURCE = "\n".join(f"line_{n}()" for n in range(1, 30))

EVERYTHING = """
    group tp | 0 1
    rank 0 | start=2 software(packages=torch,versions=2.13) variables(settings=NCCL_DEBUG=INFO) wrap=ddp:a held(names=x,rows=7) read(samples=3+0+2+1,steps=2)@t.py:9 trained(names=w,numels=6,wrapped)@t.py:4 weights(prints=1)@t.py:5 weights(step=1,prints=1,gradients=5)@t.py:9 weights(step=2,prints=2,gradients=6)@t.py:9 trail(before=1-3,gradients=5-7,after=2-4) nccl_process(host=a) communicator(comm=world,size=2,member=0,host=a,device=1) all_reduce(4)/tp@t.py:7+100ms all_reduce(4)@t.py:8+200ms all_reduce(4)@t.py:8!+300ms
    rank 1 | start=2 software(packages=torch,versions=2.12) variables(settings=NCCL_DEBUG=WARN) wrap=ddp:a held(names=x,rows=7) read(samples=3+0+2+1,steps=2)@t.py:9 trained(names=w,numels=6,wrapped)@t.py:4 weights(prints=1)@t.py:5 weights(step=1,prints=1,gradients=5)@t.py:9 weights(step=2,prints=9,gradients=7)@t.py:9 trail(before=1-3,gradients=5-7,after=2-4) nccl_process(host=b) communicator(comm=world,size=2,member=1,host=b,device=0) all_reduce(4)/tp@t.py:7+100ms all_reduce(4)@t.py:8+200ms barrier@t.py:12...+310ms
"""  # noqa: E501 - a rank is a line


def report_of(run: Run, **rest: Any) -> Report:
    """What all checks find."""
    verdicts = examine(run, every_check())
    manifest = Manifest(
        **{
            "distdoctor": "0.1.0",
            "launch": ["torchrun", "train.py"],
            "script": "train.py",
            "directory": "/job",
            **rest,
        }
    )
    return compose(run, Waiving(verdicts), conclude(run, verdicts), manifest)


@dataclass(frozen=True)
class Reported:
    """A report, and its run."""

    report: Report
    run: Run | None = None


def page_of_reports(*reported: Reported, **rendering: Any) -> str:
    """The page of reports."""
    return in_format("html", reported, Rendering(directory=Path("/job"), **rendering))


def render(report: Report, run: Run | None) -> str:
    """The page of a report."""
    return page_of_reports(Reported(report, run))


def page_of(drawing: str, **rest: Any) -> str:
    """The page of a drawing."""
    run = replace(sketch(drawing), **rest)
    return render(report_of(run), run)


def full_run() -> Run:
    """A run of which every section has something to show."""
    inner = StackBranch("t.py", 8, "step", (0,), True, (), (("all_reduce", (0,)),))
    other = StackBranch("t.py", 12, "save", (1,), True, (), (("barrier", (1,)),))
    top = StackBranch("t.py", 1, "main", (0, 1), True, (inner, other))
    return replace(
        sketch(EVERYTHING), sources={"t.py": SOURCE}, stack_tree=(top,), stopped="x"
    )


def full_report(run: Run) -> Report:
    """A report with something in every field."""
    report = report_of(run)
    at = LocationData("t.py", 8, "step", [0], "culprit", "left it")
    finding = FindingData(
        code="DD108",
        name="skipped-collective",
        severity="error",
        summary="Rank 0 `skipped` it",
        ranks=[0],
        victims=[1],
        locations=[at, LocationData("u.py", 3, "f", [1], "victim", "waits")],
        certainty="proved",
        evidence=["run"],
        remedy="Do `it` on all ranks",
        details={
            "group": "world",
            "ordinal": 2,
            "guard": "if rank == 0",
            "way": "main:1",
            "picture": ["rank 0 |#|"],
            "waiting": [
                {"ranks": [1], "call": "c", "group": "g", "at": "t:1", "since_s": 1.0}
            ],
        },
        told_by=[TestimonyData("dump", ["a", "b"], 3, "waits")],
    )
    follows = msgspec.structs.replace(finding, consequences=[])
    finding = msgspec.structs.replace(finding, consequences=[follows])
    report.findings = [finding]
    report.verdict = "sick"
    report.ignored = [IgnoredData(finding=follows, reason="known", where="t.py:3")]
    report.raised = [
        RaisedData(error="KeyError", message="a\nb", ranks=[0], location=at)
    ]
    report.not_examined = [NotExamined("what", "why", [1])]
    report.remarks = ["remark"]
    report.substituted = [SubstitutedData("NCCL", "gloo")]
    report.processes = [
        ProcessData(
            rank=0,
            pid=1,
            condition="stuck",
            doing="nothing",
            kernel="futex",
            cpu=0.5,
            memory_bytes=1,
            peers=["a:1"],
            helpers=["b"],
            remark="r",
            host="h",
        )
    ]
    report.files = [
        FileData(
            path="p", state="read", kind="dump", evidence="dump", ranks=[0], why="y"
        )
    ]
    return report


KEPT = {"verdict", "severity", "certainty", "role", "schema", "condition", "state"}
"""Fields of a report that have one of a few words each."""


def with_text_everywhere(report: Report, text: str) -> Report:
    """The report with a text in each place that can have any."""

    def told(value: Any, key: str = "") -> Any:
        match value:
            case str():
                return value if key in KEPT else text
            case list():
                return [told(one, key) for one in value]
            case dict() if key == "details":
                return {
                    name: part if name in {"group", "ordinal"} else told(part)
                    for name, part in value.items()
                }
            case dict() if key == "exit_codes":
                return value
            case dict():
                return {name: told(part, name) for name, part in value.items()}
        return value

    return msgspec.convert(told(msgspec.to_builtins(report)), Report)


def with_text_in_run(run: Run, text: str) -> Run:
    """The run with a text wherever a job gives names."""

    def told(value: Any) -> Any:
        if isinstance(value, str):
            return text
        if isinstance(value, tuple):
            return tuple(map(told, value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type | Call):
            return replace(
                value,
                **{
                    field.name: told(getattr(value, field.name))
                    for field in dataclasses.fields(value)
                    if field.init
                },
            )
        return value

    groups = tuple(
        Group(f"{text}{n}" * (n > 0) or one.name, one.ranks)
        for n, one in enumerate(run.groups)
    )
    life: Mapping[int, Any] = {
        rank: [(at, told(event)) for at, event in events]
        for rank, events in run.life.items()
    }
    return replace(
        run,
        groups=groups,
        sites=[told(site) for site in run.sites],
        callers=[told(chain) for chain in run.callers],
        specs=[Spec(one.tensors, one.splits, (text,)) for one in run.specs],
        life=life,
        sources={text: f"{text}\n" * 20},
        stack_tree=told(run.stack_tree),
    )


class Elements(HTMLParser):
    """The elements of a page as a browser would make them, and its texts."""

    VOID = frozenset({"meta", "br"})

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.unclosed: list[str] = []
        self.wrong: list[str] = []
        self.comments: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take an element."""
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.unclosed.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take an element that is closed at once, as those of SVG are."""
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Take an element's end."""
        if not self.unclosed or self.unclosed.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        """Take a text."""
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        """Take a comment: the templates make none."""
        self.comments.append(data)

    @property
    def shapes(self) -> set[tuple[str, frozenset[str]]]:
        """Each kind of element with the names of its attributes."""
        return {(tag, frozenset(attrs)) for tag, attrs in self.found}

    def all(self, name: str) -> Iterator[str]:
        """Values of an attribute."""
        for _, attrs in self.found:
            if (value := attrs.get(name)) is not None:
                yield value
