"""Which findings follow from which: one fault, one finding.

A fault shows in several places: gradients that DDP was told not to average are also
replicas that drift apart, and optimizer states that differ. Each of these is seen by a
check of its own. What the user has to mend is the first of them; the others are told
under it. The collectives' own diseases (DD1xx, DD2xx) are not in the table, since one
explanation is chosen among them before a finding is made (`analysis.causes`), but for
those that a fault of another kind brings about.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from distdoctor.model.findings import Certainty, Finding, Severity, Sick, Verdict

WHY_RANKS_WAIT = (
    *("DD101", "DD102", "DD103", "DD104", "DD105", "DD106", "DD107", "DD108"),
    *("DD109", "DD111", "DD112", "DD201", "DD202", "DD203", "DD204", "DD205"),
    *("DD206", "DD207", "DD208", "DD211", "DD212", "DD612"),
)
"""Diseases that tell why ranks wait for ever."""

CAUSES: Mapping[str, tuple[str, ...]] = {
    # Who died of what another rank did to a file, or of what Horovod refused; see
    # `_AT_ONE_LINE`. Or of an error of its GPU, a limit, or a GPU that is taken.
    "DD202": ("DD606", "DD603", "DD604", "DD409", "DD312", "DD119", "DD415"),
    # NCCL sees that a peer is gone, and calls it an error of the network: it died,
    # raised, left the job, or gave up a call in which it waited in vain.
    "DD605": ("DD118", *WHY_RANKS_WAIT),
    # An average that one rank has left out is missing in the end; see `_OF_SOME`.
    **dict.fromkeys(("DD101", "DD102", "DD108", "DD201"), ("DD505",)),
    # Ranks gave up a call; whatever tells why they waited comes first, and before that
    # what a log of NCCL shows to be the reason.
    "DD609": (
        *("DD606", "DD603", "DD604", "DD601", "DD602", "DD605", "DD607", "DD608"),
        *WHY_RANKS_WAIT,
    ),
    # Who is missing where a communicator is made; calls tell why, where they are known.
    "DD607": WHY_RANKS_WAIT,
    # What was read.
    "DD208": ("DD307", "DD305"),  # datasets of other lengths give uneven batches
    "DD301": ("DD305",),
    "DD307": ("DD409", "DD312"),  # a file that some read before it was written
    "DD303": ("DD307", "DD304", "DD305"),
    "DD304": ("DD307",),
    "DD312": ("DD409",),  # the clashing file is the checkpoint
    # Weights of replicas: what parts them comes first, in the order of a step.
    "DD401": ("DD409", "DD410", "DD411"),
    "DD402": (
        *("DD113", "DD314", "DD406", "DD407", "DD404", "DD505", "DD418", "DD405"),
        *("DD514", "DD521", "DD522", "DD523", "DD412", "DD414"),
        *("DD409", "DD410", "DD411"),
        # A round or a step that only some ranks make changes the weights of these, and
        # so does an average over gradients of different parameters.
        *("DD107", "DD108", "DD115", "DD116", "DD208", "DD211"),
    ),
    "DD403": ("DD404", "DD402", "DD406", "DD418"),
    # DDP does not know the parameter; or it was averaged with another one.
    "DD404": ("DD113", "DD505", "DD406", "DD107", "DD314"),
    "DD405": ("DD113", "DD501"),
    "DD418": ("DD113", "DD505", "DD406", "DD107", "DD314"),
    "DD408": (
        "DD107",
        *("DD113", "DD314", "DD406", "DD407", "DD404", "DD505", "DD418", "DD405"),
        *("DD514", "DD521", "DD522", "DD412", "DD410", "DD411", "DD402"),
    ),
    "DD414": ("DD409", "DD410", "DD411"),  # what was read was not what was written
    # Values and steps.
    # Of a message that is larger than it was sent, the rest is whatever lay there.
    "DD416": (
        "DD111",
        "DD113",
        "DD511",
        "DD512",
        "DD513",
        "DD516",
        "DD507",
        "DD405",
        "DD533",
    ),
    "DD417": ("DD406", "DD407", "DD503", "DD513", "DD516"),
    "DD407": ("DD406",),  # the optimizer holds what the parameter was before
    "DD521": ("DD404",),
    "DD533": ("DD532",),
    "DD541": ("DD506",),
    "DD552": ("DD523", "DD402"),  # so one process computes something else
}
"""By code, the diseases that explain it, the first cause first."""

_AT_ONE_LINE = frozenset(
    ("DD202", code) for code in ("DD409", "DD312", "DD119", "DD415")
)
"""Effects and causes that belong together only where they are about one line.

A rank may raise anything anywhere; of a file that was not whole it dies where it reads.
"""

_OF_SOME = frozenset((code, "DD505") for code in ("DD101", "DD102", "DD108", "DD201"))
"""Effects and causes that belong together only where the cause has culprits.

Where no rank averages, no call is missing.
"""

_IF_PROVED = frozenset({("DD605", "DD202")})
"""Effects and causes that belong together only where the cause is proved.

A rank that left nothing may have been cut off by the network that failed.
"""

_EARLY = "DD113"
"""A result that is likely read too early may be a figure that is but logged, and
explains nothing then; what was seen to be changed, or not waited for, does."""

_RANK_OF = {Severity.ERROR: 2, Severity.WARNING: 1, Severity.NOTE: 0}


@dataclass(frozen=True, slots=True)
class RootFinding:
    """A finding, and those that follow from it."""

    sick: Sick
    finding: Finding
    consequences: tuple[RootFinding, ...] = ()

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return self.sick.severity_of(self.finding)


def root_findings(verdicts: Iterable[Verdict]) -> list[RootFinding]:
    """The findings of all sick verdicts, each under its cause.

    Args:
        verdicts: Of one run; their order is kept among findings of one severity.

    Returns:
        The findings that follow from no other, errors first. A finding follows from one
        of the first code in `CAUSES` that was found, concerns a rank of its own, and is
        no milder: advice does not explain an error away.
    """
    found = [
        RootFinding(verdict, finding)
        for verdict in verdicts
        if isinstance(verdict, Sick)
        for finding in verdict.findings
    ]
    cause = [_cause(found, n) for n in range(len(found))]
    roots = [n for n in range(len(found)) if cause[n] is None]
    roots.sort(key=lambda n: -_RANK_OF[found[n].severity])
    return [_with_consequences(found, cause, n) for n in roots]


def flat(findings: Iterable[RootFinding]) -> Iterator[RootFinding]:
    """Findings and all that follows from them, each cause before its consequences."""
    for one in findings:
        yield one
        yield from flat(one.consequences)


def _cause(found: Sequence[RootFinding], n: int) -> int | None:
    """Which of the findings explains another; None: it stands for itself."""
    effect = found[n]
    for code in CAUSES.get(effect.sick.code, ()):
        for m, other in enumerate(found):
            if other.sick.code == code and _may_explain(other, effect):
                return m
    return None


def _may_explain(cause: RootFinding, effect: RootFinding) -> bool:
    if _RANK_OF[cause.severity] < _RANK_OF[effect.severity]:
        return False
    if (effect.sick.code, cause.sick.code) in _AT_ONE_LINE:
        lines = {one.place for one in cause.finding.locations}
        if not any(one.place in lines for one in effect.finding.locations[:1]):
            return False
    if cause.sick.code == _EARLY and cause.finding.certainty is Certainty.LIKELY:
        return False
    pair = effect.sick.code, cause.sick.code
    if pair in _IF_PROVED and cause.finding.certainty is Certainty.LIKELY:
        return False
    if (effect.sick.code, cause.sick.code) in _OF_SOME:
        return bool(cause.finding.culprits)
    mine, theirs = _ranks(cause.finding), _ranks(effect.finding)
    return not (mine and theirs) or not mine.isdisjoint(theirs)


def _ranks(finding: Finding) -> set[int]:
    """Whom a finding concerns; none: all ranks."""
    return {*finding.culprits, *finding.victims} if finding.culprits else set()


def _with_consequences(
    found: Sequence[RootFinding], cause: Sequence[int | None], n: int
) -> RootFinding:
    following = tuple(
        _with_consequences(found, cause, m) for m, by in enumerate(cause) if by == n
    )
    return RootFinding(found[n].sick, found[n].finding, following)
