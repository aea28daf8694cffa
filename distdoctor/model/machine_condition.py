"""What a machine can do, as values: one thing that jobs or distdoctor use of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MachineState(StrEnum):
    """How something stands on a machine."""

    OK = "ok"
    LIMITS = "limits"  # it is there, and some jobs will want more
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class MachineCondition:
    """One thing that jobs, or distdoctor, use of a machine."""

    name: str
    state: MachineState
    found: str  # what was seen, with its figures
    means: str = ""  # what follows from it; empty: nothing to be said
    cure: str = ""  # empty: there is none, or none is called for
    needed: bool = False  # without it, no job can be checked here

    @property
    def prevents(self) -> bool:
        """Whether no job can be checked for want of it."""
        return self.needed and self.state is MachineState.ABSENT
