"""What a check declares: its code, its severity, its needs, its manual.

A check is a module of `checks/`; `Check` is that module as a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from distdoctor.model.findings import Finding, Severity
from distdoctor.model.manual import Manual
from distdoctor.model.run import Run


@dataclass(frozen=True, slots=True)
class Check:
    """A module of `checks/`, as a value."""

    name: str  # file name without ".py", e.g. "dd101_mismatched_collective"
    code: str  # e.g. "DD101"
    severity: Severity
    needs: tuple[type, ...]  # kinds of event without which it cannot decide
    manual: Manual
    examine: Callable[[Run], Iterable[Finding]]

    @property
    def disease(self) -> str:
        """Its name for readers, e.g. "mismatched-collective"."""
        return self.name.partition("_")[2].replace("_", "-")
