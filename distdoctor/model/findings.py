"""What an examination concludes.

A verdict is one of four types rather than a flag with optional fields, so that a sick
verdict without findings, or an unknown one without a reason, cannot be built by
accident and a reporter that forgets a case does not pass mypy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from distdoctor.model.events import Event, Place


class Severity(StrEnum):
    """How bad the disease is, in the words of SARIF, so that no mapping is needed."""

    ERROR = "error"  # the job hangs, crashes, or trains on wrong numbers
    WARNING = "warning"  # it works today and breaks on more ranks, steps or data
    NOTE = "note"  # it works, and wastes time or memory


class Certainty(StrEnum):
    """How sure a finding is."""

    PROVED = "proved"  # it follows from what the ranks were seen to do
    LIKELY = "likely"  # another explanation remains, and the message names it


class Role(StrEnum):
    """What the ranks at a location have to do with the disease."""

    CULPRIT = "culprit"
    VICTIM = "victim"
    PARTY = "party"  # the ranks disagree and none of them is in the minority


@dataclass(frozen=True, slots=True)
class Location:
    """A line of the user's source and the ranks that stood there."""

    place: Place
    ranks: tuple[int, ...]
    role: Role
    remark: str = ""  # a few words: what the ranks did there


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing found wrong.

    Args:
        message: One sentence, with the figures seen; no advice (the manual has it).
        exhibits: The events that prove it, at least one.
        culprits: Ranks at fault, ascending; empty when all share it or none is in the
            minority.
        victims: Ranks that suffer, ascending.
        locations: Lines of the user's source, most telling first.
        certainty: How sure.
        details: Figures for machines, JSON-able.
        severity: If it is another than its check's.
        remedy: What would mend just this; empty: what the check's manual says.
    """

    message: str
    exhibits: tuple[Event, ...]
    culprits: tuple[int, ...] = ()
    victims: tuple[int, ...] = ()
    locations: tuple[Location, ...] = ()
    certainty: Certainty = Certainty.PROVED
    details: Mapping[str, object] = field(default_factory=dict)
    severity: Severity | None = None
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Sick:
    """The disease is there."""

    code: str
    name: str
    severity: Severity
    findings: tuple[Finding, ...]
    remedy: str

    def severity_of(self, finding: Finding) -> Severity:
        """How bad one of its findings is.

        Args:
            finding: One of `findings`.

        Returns:
            That of the finding, or that of the check if it has none of its own.
        """
        return finding.severity or self.severity


@dataclass(frozen=True, slots=True)
class Well:
    """Everything the check needs was seen, and the disease is not there."""

    code: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The check could not decide; `reason` names what is missing."""

    code: str
    reason: str
    internal: bool = False  # the check itself crashed; `reason` is its traceback
    seen: bool = False  # what the disease does is there: what explains it, decides


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """The run has nothing this check is about."""

    code: str
    reason: str


Verdict: TypeAlias = Sick | Well | Unknown | NotApplicable
