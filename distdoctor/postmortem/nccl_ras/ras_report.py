"""A report of NCCL's RAS as values, whichever form it had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from distdoctor.model.observations.communicators import MemberState


@dataclass(frozen=True, slots=True)
class RasProcess:
    """The process and GPU of a member; an empty host and pid 0: not known."""

    host: str = ""
    pid: int = 0
    device: int = -1


@dataclass(frozen=True, slots=True)
class RasAilment:
    """What is wrong with a member.

    Attributes:
        member: Its rank in the communicator.
        state: What it is.
        error: What NCCL says, for `MemberState.FAILED`.
    """

    member: int
    state: MemberState
    error: str = ""


@dataclass(slots=True)
class RasCommunicator:
    """A communicator.

    Attributes:
        comm: NCCL's hash of it, in hexadecimal digits.
        size: Of how many members; 0: not known.
        answered: How many told of themselves.
        processes: By member, its process; a text tells only those of a few.
        ailments: Members that are not well.
        counts: By operation, by how many of them were launched, the members of whom
            that is so, and their number; only operations of which the counts differ.
        ending: Whether a member is aborting or finalizing it.
        operations: The sum of all counts; 0 in a text, which does not tell it.
    """

    comm: str
    size: int = 0
    answered: int = 0
    processes: dict[int, RasProcess] = field(default_factory=dict)
    ailments: list[RasAilment] = field(default_factory=list)
    counts: dict[str, dict[int, tuple[tuple[int, ...], int]]] = field(
        default_factory=dict
    )
    ending: bool = False
    operations: int = 0


@dataclass(slots=True)
class RasReport:
    """One look at a job.

    Attributes:
        version: Of NCCL.
        taken: When, in the server's local time; empty: not told.
        communicators: By NCCL's hash.
        timeouts: How often collecting it took too long.
    """

    version: str = ""
    taken: str = ""
    communicators: dict[str, RasCommunicator] = field(default_factory=dict)
    timeouts: int = 0

    @property
    def is_suspicious(self) -> bool:
        """Whether anything in it asks for a second look."""
        return any(one.ailments or one.counts for one in self.communicators.values())


def differing(
    counts: Mapping[int, Mapping[str, int]],
) -> dict[str, dict[int, tuple[tuple[int, ...], int]]]:
    """The operations of which not all members launched equally many.

    Args:
        counts: By member, by operation.

    Returns:
        As in `RasCommunicator.counts`.
    """
    found = {}
    for op in dict.fromkeys(op for of in counts.values() for op in of):
        by_count: dict[int, list[int]] = {}
        for member, of in sorted(counts.items()):
            by_count.setdefault(of.get(op, 0), []).append(member)
        if len(by_count) > 1:
            found[op] = {n: (tuple(who), len(who)) for n, who in by_count.items()}
    return found
