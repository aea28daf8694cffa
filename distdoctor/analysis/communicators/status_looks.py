"""The looks at a job that NCCL's RAS gave, communicator by communicator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from distdoctor.analysis.memoize import memoize
from distdoctor.model.events import Observation
from distdoctor.model.observations.communicators import (
    AilingMember,
    CommunicatorLook,
    LaunchedCount,
    MemberWaits,
    TransferTime,
)
from distdoctor.model.run import Run

_Kind = TypeVar("_Kind", bound=Observation)

_ONE_SIDED = {"Send", "Recv", "SendRecv"}
"""Operations of which ranks rightly launch unequally many."""


@dataclass(slots=True)
class StatusLook:
    """What one look tells of one communicator.

    Attributes:
        whole: Of all of it.
        ailing: Members that are not well.
        counts: By operation, what members have launched, where they differ.
    """

    whole: CommunicatorLook
    ailing: list[AilingMember] = field(default_factory=list)
    counts: dict[str, list[LaunchedCount]] = field(default_factory=dict)

    @property
    def picture(self) -> object:
        """All counts that are known of it; equal ones: nothing has moved."""
        differing = {
            (one.op, one.launched, one.count, one.members)
            for of in self.counts.values()
            for one in of
        }
        return self.whole.operations, frozenset(differing)


def observed(run: Run, kind: type[_Kind]) -> Iterator[_Kind]:
    """All observations of a kind, whichever rank they stand under.

    Args:
        run: The run that is judged.
        kind: A class.

    Yields:
        Each; without ranks of the job, where the job is larger than its largest
        communicator: a member's number is no rank of the job then.
    """
    is_whole = _largest(run) == run.world_size
    for key in sorted(run.life):
        for one in run.of(kind, key):
            if is_whole:
                yield one
            elif isinstance(one, (AilingMember, MemberWaits)):
                yield replace(one, known=-1)
            elif isinstance(one, LaunchedCount):
                yield replace(one, known=())
            else:
                yield one


@memoize
def _largest(run: Run) -> int:
    """The size of the largest communicator that is told of."""
    sizes = [0]
    for key in run.life:
        sizes += [one.size for one in run.of(CommunicatorLook, key)]
        sizes += [one.size for one in run.of(MemberWaits, key)]
        sizes += [one.size for one in run.of(TransferTime, key)]
    return max(sizes)


@memoize
def looks_at(run: Run) -> dict[str, list[StatusLook]]:
    """By communicator, the looks at it in order; the largest communicators first.

    Args:
        run: The run that is judged.
    """
    found: dict[str, dict[int, StatusLook]] = {}
    for whole in observed(run, CommunicatorLook):
        found.setdefault(whole.comm, {})[whole.look] = StatusLook(whole)
    for ailing in observed(run, AilingMember):
        if look := found.get(ailing.comm, {}).get(ailing.look):
            look.ailing.append(ailing)
    for count in observed(run, LaunchedCount):
        look = found.get(count.comm, {}).get(count.look)
        if look and count.op not in _ONE_SIDED:
            look.counts.setdefault(count.op, []).append(count)
    ordered = {
        comm: [of[number] for number in sorted(of)] for comm, of in found.items()
    }
    return dict(sorted(ordered.items(), key=lambda one: -one[1][-1].whole.size))


def seconds_between(first: StatusLook, last: StatusLook) -> int:
    """How far two looks are apart; 0: not known.

    Args:
        first: A look.
        last: A later one.
    """
    if not first.whole.at_s or not last.whole.at_s:
        return 0
    return max(last.whole.at_s - first.whole.at_s, 0)
