"""Sums in half precision that ranks keep, and that are wrong or will be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from distdoctor.analysis.data.passes import meetings
from distdoctor.analysis.metrics.averaged_averages import contributed, evaluated
from distdoctor.analysis.metrics.undivided_sums import Sum, sums
from distdoctor.model.events import Call, Place
from distdoctor.model.observations.metrics import AddedUp, Tallied
from distdoctor.model.run import Run

_DIGITS = {"bfloat16": 8, "float16": 11}
"""Binary ones of a number. Source: IEEE 754; torch.finfo."""

_NEAR = 0.05  # relative difference of a sum from what is given to the other ranks


@dataclass(frozen=True, slots=True)
class Coarse:
    """A sum that is kept in half precision on some ranks.

    Args:
        ranks: On which.
        tallies: By rank, the last that was seen of it; wrong ones first.
        calls: By which ranks add it up.
    """

    ranks: tuple[int, ...]
    tallies: tuple[Tallied, ...]
    calls: tuple[Call, ...]

    @property
    def wrong(self) -> bool:
        """Whether it is known to be, and the ranks put it together."""
        return self.tallies[0].wrong and bool(self.calls)


def coarse(run: Run) -> list[Coarse]:
    """Sums in half precision, by the line that adds to them.

    Args:
        run: The run that is judged.

    Returns:
        One for each line and name, with all ranks on which it is so.
    """
    found: dict[tuple[Place | None, str], dict[int, Tallied]] = {}
    for rank in run.seen:
        for one in run.of(Tallied, rank):
            by_rank = found.setdefault((one.place, one.name), {})
            if not by_rank.get(rank, one).wrong or one.wrong:
                by_rank[rank] = one
    cases = []
    for by_rank in found.values():
        every = sorted(by_rank.values(), key=lambda one: (not one.wrong, one.rank))
        calls = [call for one in every for call in _exchanged(run, one)]
        cases.append(Coarse(tuple(sorted(by_rank)), tuple(every), tuple(calls)))
    return cases


def _exchanged(run: Run, tally: Tallied) -> list[Call]:
    """The first call by which a rank gives the sum to others, or the mean of it."""
    count = max(tally.additions, 1)
    rows, seen = run.rows_of(tally.rank), False
    for at, event in run.life.get(tally.rank, ()):
        seen = seen or event is tally
        if not seen or not isinstance(event, AddedUp) or not 0 < at <= len(rows):
            continue
        if any(
            abs(value - one) <= _NEAR * one
            for value in event.values
            for one in (tally.value, tally.value / count)
        ):
            return [run.call(rows[at - 1])]
    return []


@dataclass(frozen=True, slots=True)
class Rounded:
    """Numbers of samples that ranks add up in half precision.

    Args:
        one: The sum, and what is given to it.
        counts: By rank, samples of the evaluation.
        dtype: In which they are added up.
        apart: How far neighbouring numbers of that size are from each other.
    """

    one: Sum
    counts: tuple[int, ...]
    dtype: str
    apart: int


def rounded(run: Run) -> Iterator[Rounded]:
    """Counts of evaluations that are rounded as they are added up, each line once.

    Args:
        run: The run that is judged.

    Yields:
        One for each line.
    """
    passes = {
        (rank, call.group, call.ordinal): contribution.passes
        for rank in run.seen
        for call, contribution in contributed(run, rank)
    }
    lines = set()
    for (group, ordinal), one in sums(run, frozenset(("sum",))).items():
        call = one.calls[0]
        dtype = call.tensors[0].dtype if call.tensors else ""
        if dtype not in _DIGITS or call.place in lines:
            continue
        numbers = [passes.get((rank, group, ordinal), ()) for rank in one.ranks]
        apart = 1 << max(0, _largest(one).bit_length() - _DIGITS[dtype])
        for meeting in meetings(run):
            about = meeting.ranks == one.ranks and all(
                each.read.number in given
                for each, given in zip(meeting.passes, numbers, strict=True)
            )
            counts = tuple(evaluated(run, each) for each in meeting.passes)
            if apart > 1 and about and all(counts) and _is_of(one, counts):
                lines.add(call.place)
                yield Rounded(one, counts, dtype, apart)
                break


def _largest(one: Sum) -> int:
    """The largest number that ranks add up to."""
    width = len(one.given[0].values)
    return int(max(abs(sum(one.column(number))) for number in range(width)))


def _is_of(one: Sum, counts: tuple[int, ...]) -> bool:
    """Whether there is a column of just so many samples, as far as digits go."""
    return any(
        all(
            value == round(value) and abs(value - count) <= _CLOSE * count
            for value, count in zip(one.column(number), counts, strict=True)
        )
        for number in range(len(one.given[0].values))
    )


_CLOSE = 1 / 256  # half of what neighbouring numbers in bfloat16 differ by
