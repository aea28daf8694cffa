"""Puts a run, its verdicts and the conclusion together as one report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from distdoctor.analysis.causes import SOURCE
from distdoctor.analysis.comparison.repeated_runs import has_effect
from distdoctor.analysis.deadlock.next_calls import next_calls
from distdoctor.analysis.deadlock.standing_ranks import standing
from distdoctor.analysis.divergence.rank_guards import GUARD
from distdoctor.examination.causality import RootFinding, root_findings
from distdoctor.examination.concluding import Conclusion, Raised
from distdoctor.examination.waivers import Waiving
from distdoctor.journal.folder import Manifest
from distdoctor.model.events import Busy, Ended, Started, Stranded
from distdoctor.model.findings import (
    Finding,
    NotApplicable,
    Role,
    Sick,
    Unknown,
    Well,
)
from distdoctor.model.observations.comparison import (
    Compared,
    Departed,
    Unrepeated,
    Unrestored,
)
from distdoctor.model.outside_view import LeftFile, StackBranch
from distdoctor.model.run import Run
from distdoctor.model.substitutes import SUBSTITUTES
from distdoctor.report.masked_reports import mask_report
from distdoctor.report.schema import (
    ChecksData,
    ComparedData,
    FileData,
    FindingData,
    IgnoredData,
    LocationData,
    NotExamined,
    ProcessData,
    RaisedData,
    RankEvidenceData,
    Report,
    RunData,
    StackData,
    SubstitutedData,
    TestimonyData,
)
from distdoctor.report.testimony import evidence_of_ranks, testimonies

_MOST_RANKS_TOLD = 64
_MOST_STANDINGS_TOLD = 64


def compose(
    run: Run,
    waiving: Waiving,
    conclusion: Conclusion,
    manifest: Manifest,
    kept: str = "",
) -> Report:
    """The report of an examination.

    Args:
        run: What was examined.
        waiving: One verdict per check, and what the user wants to be ignored.
        conclusion: Their sum.
        manifest: How the job was started and how it ended.
        kept: The record folder, if it stays.
    """
    verdicts = waiving.verdicts
    sick = [verdict for verdict in verdicts if isinstance(verdict, Sick)]
    report = Report(
        distdoctor=manifest.distdoctor,
        verdict=conclusion.verdict,
        world_size=run.world_size,
        script=manifest.script,
        launch=manifest.launch,
        findings=[_finding(one, run) for one in root_findings(verdicts)],
        not_examined=[
            NotExamined(gap.what, gap.why, [*gap.ranks]) for gap in conclusion.gaps
        ],
        remarks=[*manifest.remarks, *waiving.remarks],
        ignored=[
            IgnoredData(
                finding=_finding(one.root, run),
                reason=one.waiver.reason,
                where=one.waiver.where,
            )
            for one in waiving.waived
        ],
        raised=[_raised(one) for one in conclusion.raised],
        substituted=[
            SubstitutedData(one.what, one.by)
            for kind, one in SUBSTITUTES.items()
            if kind in run.substituted
        ],
        compared=_compared(run),
        run=_run(run, manifest, kept),
        checks=ChecksData(
            sick=[verdict.code for verdict in sick],
            well=[v.code for v in verdicts if isinstance(v, Well)],
            unknown=[v.code for v in verdicts if isinstance(v, Unknown)],
            not_applicable=[v.code for v in verdicts if isinstance(v, NotApplicable)],
            crashed=[v.code for v in verdicts if isinstance(v, Unknown) and v.internal],
            why={
                v.code: v.reason
                for v in verdicts
                if isinstance(v, Unknown | NotApplicable)
            },
        ),
        stacks=_stacks(run.stack_tree),
        processes=[
            ProcessData(
                **{**asdict(one), "peers": [*one.peers], "helpers": [*one.helpers]}
            )
            for one in run.processes
        ],
        files=[_file(one) for one in run.files],
        evidence_of_ranks=[
            RankEvidenceData(list(ranks), list(kinds))
            for ranks, kinds in evidence_of_ranks(run.world_size, run.files)
        ]
        if run.files
        else [],
    )
    return mask_report(report)


def _file(file: LeftFile) -> FileData:
    state = "read" if file.is_read else "unreadable" if file.is_broken else "left out"
    return FileData(
        path=file.path,
        state=state,
        kind=file.kind,
        evidence=file.evidence,
        ranks=list(file.ranks),
        why=file.why,
    )


def _stacks(tops: Sequence[StackBranch]) -> list[StackData]:
    """Merged stacks as data: what a line called follows it, one deeper."""
    reported = []
    fresh = [(0, top) for top in reversed(tops)]
    while fresh:
        depth, branch = fresh.pop()
        reported.append(
            StackData(
                depth=depth,
                file=branch.file,
                line=branch.line,
                function=branch.function,
                ranks=list(branch.ranks),
                doing={words: list(ranks) for words, ranks in branch.ending if words},
            )
        )
        fresh += [(depth + 1, inner) for inner in reversed(branch.branches)]
    return reported


def _raised(raised: Raised) -> RaisedData:
    failure, at = raised.failure, raised.failure.place
    location = None
    if at is not None:
        ranks, remark = list(raised.ranks), f"raised {failure.error}"
        role = str(Role.CULPRIT)
        location = LocationData(at.file, at.line, at.function, ranks, role, remark)
    return RaisedData(
        error=failure.error,
        message=failure.message,
        ranks=list(raised.ranks),
        location=location,
    )


def _finding(root: RootFinding, run: Run) -> FindingData:
    sick, finding = root.sick, root.finding
    stacks = any(isinstance(event, Busy | Stranded) for event in finding.exhibits)
    reported = testimonies(run, finding)
    kinds = [one.evidence for one in reported] or run.evidence
    source = not finding.details.keys().isdisjoint({GUARD, SOURCE})
    return FindingData(
        code=sick.code,
        name=sick.name,
        severity=str(root.severity),
        summary=finding.message,
        ranks=list(finding.culprits),
        victims=list(finding.victims),
        locations=[
            LocationData(
                location.place.file,
                location.place.line,
                location.place.function,
                list(location.ranks),
                str(location.role),
                location.remark,
            )
            for location in finding.locations
        ],
        certainty=str(finding.certainty),
        evidence=list(
            dict.fromkeys([*kinds, *["stack"] * stacks, *["source"] * source])
        ),
        remedy=finding.remedy or sick.remedy,
        details={
            **finding.details,
            **_standing(finding, run),
            **_outlook(finding, run),
        },
        consequences=[_finding(one, run) for one in root.consequences],
        told_by=[
            TestimonyData(one.evidence, list(one.files), one.count, one.what)
            for one in reported
        ],
    )


def _standing(finding: Finding, run: Run) -> dict[str, object]:
    """Where the ranks of a finding wait that cannot go on, and since when."""
    ranks = {*finding.culprits, *finding.victims}
    ranks |= {rank for location in finding.locations for rank in location.ranks}
    waits = [
        {
            "ranks": list(one.ranks),
            "call": str(one.call),
            "group": one.call.group,
            "at": str(one.call.place or ""),
            "since_s": one.since_s,
        }
        for one in standing(run, ranks)[:_MOST_STANDINGS_TOLD]
    ]
    return {"waiting": waits} if waits else {}


def _outlook(finding: Finding, run: Run) -> dict[str, object]:
    """What ranks of a finding would have done next, where their past tells."""
    ranks = [*finding.culprits, *finding.victims][:_MOST_RANKS_TOLD]
    following = {rank: next_calls(run, rank) for rank in ranks}
    outlook = {
        str(rank): [f"{run.call(row)} at {run.call(row).place}" for row in rows]
        for rank, rows in following.items()
        if rows
    }
    return {"next": outlook} if outlook else {}


def _compared(run: Run) -> ComparedData | None:
    """What came of another run; None if there was none."""
    every = [one for rank in run.seen for one in run.of(Compared, rank)]
    if not every:
        return None
    differences: list[Unrepeated | Unrestored] = []
    for rank in run.seen:
        differences += [*run.of(Unrepeated, rank), *run.of(Unrestored, rank)]
    compared = every[0]
    departed = any(run.of(Departed, rank) for rank in run.seen)
    return ComparedData(
        how=compared.how,
        steps=compared.steps,
        begun=compared.begun,
        same=bool(compared.steps)
        and not compared.why
        and not departed
        and not any(map(has_effect, differences)),
        why=compared.why,
    )


def _run(run: Run, manifest: Manifest, kept: str) -> RunData:
    joined = [event for rank in run.seen for event in run.of(Started, rank)]
    joined = [event for event in joined if event.joined]
    codes: dict[str, int | None] = dict.fromkeys(map(str, range(run.world_size)))
    for rank in run.life:
        ended = run.of(Ended, rank)
        codes[str(rank)] = ended[-1].status if ended else None
        if ended and ended[-1].status is None and ended[-1].orderly:
            codes[str(rank)] = 0
    return RunData(
        steps=min(run.steps.values(), default=0),
        seconds=manifest.seconds,
        exit_codes=codes,
        exit_code=manifest.exit_code,
        stopped=manifest.stopped,
        calls=len(run.calls),
        proof_ms=manifest.proof_ms,
        torch=joined[0].torch if joined else "",
        backend=joined[0].backend if joined else "",
        device=joined[0].device if joined else "",
        record=kept,
        simulated=sorted(run.simulated - run.unseen.keys()),
    )
