"""Operations of Horovod to which not all ranks had come where its timeline ends.

A timeline is a beginning of what happened: its last event is always kept back, and
where the job ended by itself, more of them. So what is open at its end need not have
been so for long. Only time that went by in the timeline itself tells of a hang.
"""

from __future__ import annotations

from dataclasses import dataclass

from distdoctor.analysis.deadlock.ranks_behind import LONGER, SILENT_S
from distdoctor.analysis.evidence import ended_well
from distdoctor.analysis.failures.deaths import died
from distdoctor.model.events import Ended
from distdoctor.model.observations.failures import OpenNegotiation
from distdoctor.model.run import Run


@dataclass(frozen=True, slots=True)
class HeldUp:
    """An operation that waits for ranks.

    Attributes:
        negotiation: What the timeline tells of it.
        absent: Ranks that had not come; empty: the timeline does not tell who they are.
        is_unsure: One of those absent may have come.
        other: Another operation in which one of those absent may wait; empty: none.
    """

    negotiation: OpenNegotiation
    absent: tuple[int, ...]
    is_unsure: bool
    other: str = ""

    @property
    def culprits(self) -> tuple[int, ...]:
        """Those absent, if they are known, not the most, and nowhere else."""
        if self.is_unsure or self.other:
            return ()
        return self.absent if len(self.absent) <= len(self.negotiation.came) else ()


def called(one: OpenNegotiation) -> str:
    """An operation as a sentence names it.

    Args:
        one: It.
    """
    return f"{one.op or 'an operation'} ({one.tensor})" if one.tensor else one.op


def open_negotiations(run: Run) -> list[HeldUp]:
    """Operations that wait for ranks at the end of a timeline, the oldest first.

    Args:
        run: The run that is judged.
    """
    found = [one for rank in run.seen for one in run.of(OpenNegotiation, rank)]
    held = [HeldUp(one, *_absent(run, one)) for one in found]
    # Ranks that came to all that is open need not be missing: nothing is held up.
    held = [one for one in held if one.absent or not _is_complete(run, one.negotiation)]
    return [_beside(one, held) for one in held]


def held_up_for_long(run: Run) -> HeldUp | None:
    """The oldest operation that waits, if nothing moved for long before the end.

    Args:
        run: The run that is judged.

    Returns:
        None: nothing waits, or not for long enough; or a rank had died, which explains
        it; or all ended well.
    """
    held = open_negotiations(run)
    if not held or any(died(run, rank) for rank in run.seen):
        return None
    if all(run.of(Ended, rank) and ended_well(run, rank) for rank in run.seen):
        return None
    one = held[0].negotiation
    is_long = one.seconds >= max(SILENT_S, LONGER * one.longest)
    return held[0] if is_long else None


def _absent(run: Run, one: OpenNegotiation) -> tuple[tuple[int, ...], bool]:
    """Who had not come, and whether one of them may have."""
    size = one.members or run.world_size
    if one.mixed or not one.came or size != run.world_size or one.came[-1] >= size:
        return (), False  # of which ranks it is, or who came, is not told
    absent = tuple(rank for rank in range(size) if rank not in one.came)
    # Had the last one come, that would have been told by what follows from it.
    return absent, one.kept_back and len(absent) > 1


def _is_complete(run: Run, one: OpenNegotiation) -> bool:
    return len(one.came) >= (one.members or run.world_size)


def _beside(one: HeldUp, held: list[HeldUp]) -> HeldUp:
    """The same, with what those absent may wait in instead."""
    for other in held:
        came = other.negotiation.came
        is_of_the_same = bool(came) and set(came) <= set(one.negotiation.came)
        if other is one or is_of_the_same:
            continue
        return HeldUp(
            one.negotiation, one.absent, one.is_unsure, called(other.negotiation)
        )
    return one
