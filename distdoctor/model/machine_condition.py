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
    commands: tuple[str, ...] = ()  # what to type for the cure, where that is known
    optional: bool = False  # only jobs that use it want it

    @property
    def prevents(self) -> bool:
        """Whether no job can be checked for want of it."""
        return self.needed and self.state is MachineState.ABSENT


def enough(
    fine: object,
    name: str,
    found: str,
    means: str = "",
    cure: str = "",
    *,
    needed: bool = False,
    commands: tuple[str, ...] = (),
    optional: bool = False,
) -> MachineCondition:
    """A condition that is OK if something is fine; else it limits some jobs."""
    if fine:
        return MachineCondition(name, MachineState.OK, found, needed=needed)
    state = MachineState.LIMITS
    return MachineCondition(name, state, found, means, cure, needed, commands, optional)


def present(
    version: object,
    name: str,
    lacking: str,
    means: str,
    cure: str = "",
    *,
    needed: bool = False,
    commands: tuple[str, ...] = (),
    optional: bool = False,
) -> MachineCondition:
    """A condition that is OK if there is a version, or a path, of something.

    Args:
        version: What there is; anything false: it is absent.
        name: Of the condition.
        lacking: What is said to be found where it is absent.
        means: What follows from that.
        cure: What would help.
        needed: Without it, no job can be checked here.
        commands: What to type for that.
        optional: Only jobs that use it want it.
    """
    if version:
        return MachineCondition(name, MachineState.OK, str(version), needed=needed)
    state = MachineState.ABSENT
    return MachineCondition(
        name, state, lacking, means, cure, needed, commands, optional
    )
