"""What ranks evaluate in shares, and how they put their results together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from distdoctor.analysis.data.passes import (
    LoaderPass,
    LoopMeeting,
    evaluates,
    meetings,
    passes,
    same_dataset,
)
from distdoctor.analysis.data.split_leaks import leaks
from distdoctor.analysis.metrics.averaged_averages import contributed
from distdoctor.model.events import Call
from distdoctor.model.observations.metrics import Contributed
from distdoctor.model.run import Run

_REDUCING = frozenset(("all_reduce", "reduce"))
_GATHERING = frozenset(("all_gather", "all_gather_into_tensor", "gather"))
_ADDING = frozenset(("sum", "avg"))
_FEWEST = 2


@dataclass(frozen=True, slots=True)
class Padded:
    """An evaluation in which samples were counted more than once.

    Args:
        meeting: The pass of evaluation.
        repeated: Samples that were evaluated more than once.
        evaluated: Samples, each as often as it was.
        combined: By rank, the call that put the results together.
        counted: Their number was put together as well, with those that come twice.
    """

    meeting: LoopMeeting
    repeated: int
    evaluated: int
    combined: tuple[Call, ...]
    counted: bool


def padded(run: Run) -> Iterator[Padded]:
    """Evaluations whose shares were filled up with samples that others have.

    Args:
        run: The run that is judged.

    Yields:
        One for each loop.
    """
    reported = set()
    split = {leak.ranks for leak in leaks(run)}  # their shares are of several splits
    for meeting in meetings(run):
        place = meeting.passes[0].place
        if not evaluates(meeting) or not meeting.whole or place in reported:
            continue
        if meeting.ranks in split:
            continue
        repeated = _repeated(run, meeting)
        if not repeated:
            continue
        combined = [_combined(run, one) for one in meeting.passes]
        calls = tuple(call for call in combined if call is not None)
        if len(calls) < len(combined):
            continue
        evaluated = sum(len(one.samples) for one in meeting.passes)
        sums = list(_sums(run, meeting))
        counted = any(_counts(one, evaluated, evaluated - repeated) for one in sums)
        if not counted and any(
            _counts(one, evaluated - repeated, evaluated) for one in sums
        ):
            continue  # those that come twice were left out
        reported.add(place)
        yield Padded(meeting, repeated, evaluated, calls, counted)


def _sums(run: Run, meeting: LoopMeeting) -> Iterator[float]:
    """What the numbers come to that ranks put together after an evaluation."""
    given: dict[tuple[str, int], list[Contributed]] = {}
    for one in meeting.passes:
        for call, contribution in contributed(run, one.rank):
            if one.read.number in contribution.passes:
                given.setdefault((call.group, call.ordinal), []).append(contribution)
    for some in given.values():
        if len(some) == len(meeting.passes):
            yield sum(contribution.total for contribution in some)
            yield from map(
                sum, zip(*(contribution.values for contribution in some), strict=False)
            )


def _counts(total: float, this: int, not_that: int) -> bool:
    """Whether a number is so many, or as many times something; and not the other."""
    return total > 0.0 and total % this == 0.0 and total % not_that != 0.0


def _repeated(run: Run, meeting: LoopMeeting) -> int:
    """How many samples came on several ranks, where that is no more than padding."""
    some = meeting.passes
    if not all(len(one.samples) >= _FEWEST for one in some):
        return 0
    if not all(same_dataset(run, some[0], one) for one in some[1:]):
        return 0
    once = [np.unique(one.samples) for one in some]
    if any(len(own) < len(one.samples) for own, one in zip(once, some, strict=True)):
        return 0  # drawn with replacement
    read = np.concatenate(once)
    repeated = len(read) - len(np.unique(read))
    if repeated < len(some):
        return repeated  # DistributedSampler repeats fewer than there are ranks
    heads = np.concatenate([one.samples[: -one.batch] for one in some])
    even = len(heads) > 0 and len(np.unique(heads)) == len(heads)
    return repeated if even and repeated <= sum(one.batch for one in some) else 0


def _combined(run: Run, one: LoaderPass) -> Call | None:
    """The call by which a rank's results were added up with others'; None: none was.

    Nor if something was gathered that may be the outcome of each sample: whoever has
    that can leave out what comes twice.
    """
    rows = run.rows_of(one.rank)
    number = one.read.number
    later = [
        other.begin for other in passes(run, one.rank) if other.read.number > number
    ]
    stop = max(one.end, min(later, default=len(rows)))
    share = len(one.samples)
    found = None
    for at, row in enumerate(rows[one.begin : stop], start=one.begin):
        call = run.call(row)
        if call.layer == "backward" and at >= one.end:
            break  # training goes on
        if call.layer or call.place is None:
            continue
        small = all(tensor.numel < share for tensor in call.tensors)
        by_bytes = any(tensor.dtype == "uint8" for tensor in call.tensors)
        if call.op in _GATHERING and (by_bytes or not small):
            return None
        adds = call.op in _REDUCING and call.reduce_op in _ADDING
        # A matrix of what was taken for what has more elements than there are samples.
        counts = adds and all(tensor.dtype == "int64" for tensor in call.tensors)
        if (adds or call.op in _GATHERING) and (small or counts) and found is None:
            found = call
    return found
