"""The report as data, schema `distdoctor.report/1`, and a session's reports.

Machine readers depend on this shape: fields may be added, and none is ever renamed or
removed. `docs/report.md` describes it for readers.
"""

from __future__ import annotations

from typing import Any

import msgspec

SCHEMA = "distdoctor.report/1"
SESSION_SCHEMA = "distdoctor.session/1"


class LocationData(msgspec.Struct):
    """A line of the user's source."""

    file: str  # relative to the working directory where it can be
    line: int  # from 1
    function: str
    ranks: list[int]
    role: str  # culprit | victim | party
    remark: str = ""


class TestimonyData(msgspec.Struct):
    """What one kind of evidence tells of a finding."""

    evidence: str  # dump | log | stack
    files: list[str]  # of the ranks at fault first; the first 16
    count: int  # how many files there are
    what: str


class FindingData(msgspec.Struct, kw_only=True):
    """One thing found wrong."""

    code: str
    name: str
    severity: str  # error | warning | note
    summary: str
    ranks: list[
        int
    ]  # the culprits; empty when all ranks share the fault or none stands out
    victims: list[int]
    locations: list[LocationData]  # most telling first
    certainty: str  # proved | likely
    evidence: list[str]  # run | source | log | dump | stack | status
    remedy: str
    details: dict[str, Any]
    consequences: list[FindingData] = []  # what follows from it, found by other checks
    told_by: list[TestimonyData] = []  # of a job that nobody watched: which file what


class IgnoredData(msgspec.Struct, kw_only=True):
    """A finding that the user wants to be ignored."""

    finding: FindingData
    reason: str  # in the user's words
    where: str  # file and line of a comment, or the file of settings


class RaisedData(msgspec.Struct, kw_only=True):
    """An exception that ended the job and that no finding tells of."""

    error: str
    message: str
    ranks: list[int]  # who raised it; empty: a process without a rank, as their parent
    location: LocationData | None  # null: no line of the user's is known


class NotExamined(msgspec.Struct, omit_defaults=True):
    """Something that was not examined, and why."""

    what: str
    why: str
    ranks: list[int] = []  # of which it was not; left out: of all, or of none by number


class HintData(msgspec.Struct, kw_only=True):
    """A line of the program's text where a disease that was not seen may come from."""

    code: str
    file: str
    line: int  # from 1
    what: str


class SubstitutedData(msgspec.Struct):
    """Something of CUDA's, and what took its place on the CPU."""

    what: str
    by: str


class ComparedData(msgspec.Struct, kw_only=True):
    """What came of comparing the run with another one of the same job."""

    # twice: with a second run; resume: with an interrupted and resumed one; reference:
    # with one of fewer ranks
    how: str
    steps: int  # optimizer steps that were compared; 0: none could be
    begun: int  # steps before the checkpoint that was resumed from
    same: bool  # all that was compared was the same: bit for bit, or but for roundings
    why: str  # why nothing, or not all, could be compared; empty: it could


class RunData(msgspec.Struct, kw_only=True):
    """The run in figures."""

    steps: int  # optimizer steps every rank did
    seconds: float
    exit_codes: dict[str, int | None]  # by rank; null: it was ended or is not known
    exit_code: int | None  # of the command; null: distdoctor ended it
    stopped: str  # why distdoctor ended it; empty: it ended by itself
    calls: int  # communication calls recorded
    proof_ms: float | None  # from a deadlock's last event to its proof
    torch: str
    backend: str
    device: str
    record: str  # folder, if it was kept
    simulated: list[int]  # ranks that ran alone, without the others; empty: all ran


class StackData(msgspec.Struct, kw_only=True):
    """A line of the merged stacks; what it called follows it, one deeper."""

    depth: int  # 0: outermost
    file: str
    line: int  # from 1; 0: not known
    function: str
    ranks: list[int]  # whose stacks have the line here
    doing: dict[str, list[int]]  # of ranks whose stacks end here: what they do


class ProcessData(msgspec.Struct, kw_only=True):
    """What was seen of a rank's process from outside, while the job ran."""

    rank: int
    pid: int
    condition: str  # waiting | calling | stuck | stopped | moving | ended | unseen
    doing: str
    kernel: str  # what its main thread waits for in the kernel
    cpu: float  # share of one core
    memory_bytes: int
    peers: list[str]  # hosts and ports that it is connected to
    helpers: list[str]  # processes that it has started
    remark: str  # why its stacks are not known
    host: str = ""  # its machine; empty: that which looked


class FileData(msgspec.Struct, kw_only=True):
    """Something that was found where a job left its files."""

    path: str
    state: str  # read | left out | unreadable
    kind: str  # what it is, in words; empty: not known
    evidence: str  # dump | log | stack; empty: it was not read
    ranks: list[int]  # that it is about; empty: all, or not known
    why: str  # why it was not read, or what is special about it


class RankEvidenceData(msgspec.Struct):
    """Of which ranks which kinds of evidence were read."""

    ranks: list[int]
    evidence: list[str]  # dump | log | stack; empty: nothing is of these ranks alone


class ChecksData(msgspec.Struct, kw_only=True):
    """What the checks said, by code."""

    sick: list[str]
    well: list[str]
    unknown: list[str]
    not_applicable: list[str]
    crashed: list[str]  # a part of unknown: a fault of distdoctor's own
    why: dict[str, str] = {}  # of unknown and not applicable ones: the reason


class Report(msgspec.Struct, kw_only=True):
    """All of it."""

    schema: str = SCHEMA
    distdoctor: str
    verdict: str  # sick | well | unknown
    world_size: int
    script: str
    launch: list[str]
    findings: list[FindingData]
    not_examined: list[NotExamined]
    remarks: list[str]
    ignored: list[IgnoredData] = []  # found, and no part of the verdict
    raised: list[RaisedData] = []  # what ended the job, if it failed by itself
    hints: list[HintData] = []  # by the text alone; they are no part of the verdict
    substituted: list[SubstitutedData]  # empty: nothing was
    compared: ComparedData | None = None  # null: there was one run
    run: RunData
    checks: ChecksData
    stacks: list[StackData] = []  # merged, as a tree; empty: nobody took any
    processes: list[ProcessData] = []  # of a job that was looked at while it ran
    files: list[FileData] = []  # what was found of a job that nobody watched
    evidence_of_ranks: list[RankEvidenceData] = []  # likewise, by rank

    @property
    def has_failed(self) -> bool:
        """Whether the job failed by itself; not of one that is well all the same."""
        return self.verdict != "well" and bool(self.raised or self.run.exit_code)


class SessionReport(msgspec.Struct, kw_only=True):
    """All reports of a session: `script` is a test on ranks, or a script."""

    schema: str = SESSION_SCHEMA
    distdoctor: str
    verdict: str  # sick if one is, else unknown if one is, else well
    reports: list[Report]


def json_schema() -> dict[str, Any]:
    """The schema as JSON Schema (draft 2020-12)."""
    return msgspec.json.schema(Report)


def session_schema() -> dict[str, Any]:
    """The schema of a session's reports as JSON Schema (draft 2020-12)."""
    return msgspec.json.schema(SessionReport)
