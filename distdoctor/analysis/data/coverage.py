"""Who read which samples: what of it is wrong, each fault once, and told once.

Ranks that train one model are to read different samples in each epoch, all of them
together each sample once, and evaluate on samples that none of them trained on. What
several of these have in common has one explanation, and each check asks for its own.

Samples are compared by index only where it is known that an index means the same on
both ranks; else by content, as far as contents tell samples apart within a rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.data.dataset_contents import (
    are_apart,
    are_reordered,
    share_of_others,
)
from distdoctor.analysis.data.passes import (
    Key,
    LoaderPass,
    LoopMeeting,
    by_loop,
    meetings,
    same_dataset,
    trains,
)
from distdoctor.analysis.data.sample_origins import SPLITTING, calls
from distdoctor.analysis.data.split_leaks import leaks
from distdoctor.model.observations.data import SUBSET, Made, Read
from distdoctor.model.observations.gradients import Gradients
from distdoctor.model.run import Run

FEWEST = 4
"""Different samples, at least, that a rank must have read to be compared."""

TWICE_SHARE = 0.02
"""Share of what a rank reads, beyond its last batch, that another has to read, too."""

CHANCE = 5.0
"""How much more often than within a rank a content has to come on two ranks.

Where contents are few (labels, small numbers), samples are alike by chance, on one rank
as often as on two.
"""

_NEARLY_ALL = 0.9


class CoverageCause(StrEnum):
    """What is wrong with who reads what."""

    SAME = "ranks read the same samples"
    OVERLAP = "samples are read twice, or never"
    SPLIT = "parts that are not the same on all ranks"
    STREAM = "a stream that is not split"
    DATASET = "datasets that differ"


@dataclass(frozen=True, slots=True)
class Tally:
    """How often the samples of one epoch were read, all ranks together.

    Args:
        read: By each rank, samples, each once.
        twice: Samples that several ranks read.
        never: Samples that none did; -1: it is not known how many there are.
    """

    read: tuple[int, ...]
    twice: int
    never: int = -1


@dataclass(frozen=True, slots=True)
class CoverageFault:
    """One thing that is wrong with a loop over a loader.

    Args:
        why: What.
        meeting: The first epoch in which it was seen.
        epochs: How many epochs of the loop have it, and how many were compared.
        sharing: Ranks that read the same; for other faults, those that take part.
        tally: Of the meeting.
        sure: Nothing else can explain it.
        by_worker: Workers of a rank read the same as each other.
        by_rank: Ranks read the same as each other.
        reordered: The datasets have the same samples in another order.
        split_by: Among how many a sampler splits where others train; 0: it is not that.
        in_order: They read the same in the same order.
        likewise: Ranks of other groups whose loop, the same, has the same fault, as
            the columns of a mesh whose rows share the work on their samples.
    """

    why: CoverageCause
    meeting: LoopMeeting
    epochs: tuple[int, int]
    sharing: tuple[int, ...]
    tally: Tally
    sure: bool = True
    by_worker: bool = False
    by_rank: bool = True
    reordered: bool = False
    split_by: int = 0
    in_order: bool = True
    likewise: tuple[tuple[int, ...], ...] = ()

    @property
    def has_it(self) -> tuple[int, ...]:
        """All ranks that have the fault."""
        others = (rank for ranks in self.likewise for rank in ranks)
        return tuple(sorted({*self.sharing, *others}))


def faults(run: Run, why: CoverageCause) -> list[CoverageFault]:
    """What is wrong in one way, in the order of the loops.

    Args:
        run: The run that is judged.
        why: What is wrong.

    Returns:
        The faults, worked out once per run.
    """
    if "coverage" not in run.memory:
        run.memory["coverage"] = _of_one_loop(_faults(run))
    return [fault for fault in run.memory["coverage"] if fault.why is why]


def _of_one_loop(found: Iterable[CoverageFault]) -> list[CoverageFault]:
    """The faults, those of one loop as one, whichever groups of ranks go through it."""
    one_per_loop: dict[tuple[object, ...], CoverageFault] = {}
    for fault in found:
        key = (
            *(fault.why, fault.meeting.key, fault.sure, fault.in_order),
            *(fault.by_worker, fault.by_rank, fault.reordered, fault.split_by),
            len(fault.sharing) == len(fault.meeting.ranks),
        )
        first = one_per_loop.get(key)
        if first is None or set(first.has_it) & set(fault.sharing):
            one_per_loop[key if first is None else (*key, fault.sharing)] = fault
        else:
            likewise = (*first.likewise, fault.sharing)
            one_per_loop[key] = replace(first, likewise=likewise)
    return list(one_per_loop.values())


_OF_LEAKS = {CoverageCause.OVERLAP, CoverageCause.SPLIT, CoverageCause.DATASET}
"""What follows from splits that differ, where the leak itself is seen."""


def _faults(run: Run) -> Iterator[CoverageFault]:
    loops: dict[tuple[Key, tuple[int, ...]], list[LoopMeeting]] = {}
    for meeting in meetings(run):
        if trains(meeting) and not _is_each_ones_own(run, meeting):
            loops.setdefault((meeting.key, meeting.ranks), []).append(meeting)
    split = {leak.ranks for leak in leaks(run)}
    for (_, ranks), turns in loops.items():
        judged = [_judge(run, meeting) for meeting in turns]
        found = [fault for fault in judged if fault is not None]
        # The explanation that most epochs have: one epoch may look otherwise.
        for why in dict.fromkeys(fault.why for fault in found):
            same = [fault for fault in found if fault.why is why]
            if why in _OF_LEAKS and ranks in split:
                continue  # their shares overlap because their splits do
            if len(same) * 2 >= len(found):
                yield _counted(same[0], len(same), len(turns))
                break


def _is_each_ones_own(run: Run, meeting: LoopMeeting) -> bool:
    """Whether each rank trained by itself there: no step had anything of the others.

    Such as a model that all ranks prepare alike before they train together.
    """
    return all(map(partial(_is_by_itself, run), meeting.passes))


def _is_by_itself(run: Run, one: LoaderPass) -> bool:
    """Whether steps were looked at in a pass, and nothing was exchanged for them."""
    steps: list[Gradients] = []
    within = 0  # of those, the ones before the pass was told of last
    begun = False
    for _, event in run.told(Read, Gradients, rank=one.rank):
        if isinstance(event, Read) and event.number == one.read.number:
            begun, within = True, len(steps)
        elif begun and isinstance(event, Gradients):
            steps.append(event)
    return within > 0 and not any(step.reduced or step.moved for step in steps[:within])


def _counted(fault: CoverageFault, having: int, compared: int) -> CoverageFault:
    return replace(fault, epochs=(having, compared))


def _judge(run: Run, meeting: LoopMeeting) -> CoverageFault | None:
    """What is wrong with one pass of the ranks, if anything is."""
    streams = [one.read.iterable for one in meeting.passes]
    if all(streams):
        return _of_stream(meeting)
    if any(streams):
        return None
    first = meeting.passes[0]
    alike = [same_dataset(run, first, one) for one in meeting.passes[1:]]
    if all(alike) and all(len(one.samples) for one in meeting.passes):
        values: list[NDArray[np.generic]] = [one.samples for one in meeting.passes]
        return (
            _same(CoverageCause.SAME, meeting, values, exact=True)
            or _of_splits(
                run, _overlap(CoverageCause.OVERLAP, meeting, values, exact=True)
            )
            or _split_by_others(run, meeting)
        )
    by_content = _by_content(meeting)
    if by_content is not None:
        same = _same(CoverageCause.SAME, meeting, by_content, exact=False)
        if same is not None:
            return same
    if False in alike:
        return _different(run, meeting, by_content)
    if by_content is not None:
        return _overlap(CoverageCause.DATASET, meeting, by_content, exact=False)
    return None


def _of_splits(run: Run, fault: CoverageFault | None) -> CoverageFault | None:
    """The same fault, as one of the parts that a sampler divides among the ranks.

    Each takes its own share of the positions: samples that are read twice are then at
    other positions, since each rank split the dataset in its own way.
    """
    if fault is None:
        return None
    passes = fault.meeting.passes
    shared = all(one.read.replicas == len(passes) for one in passes)
    divided = all(any(_splits(run, made) for made in one.made) for one in passes)
    return (
        replace(fault, why=CoverageCause.SPLIT, sure=False)
        if shared and divided
        else fault
    )


def _splits(run: Run, made: Made) -> bool:
    if made.role != SUBSET or made.place is None:
        return False
    lines = calls(run, made.place.file, SPLITTING)
    return any(line.line == made.place.line for line in lines)


def _by_content(meeting: LoopMeeting) -> list[NDArray[np.generic]] | None:
    """Contents by rank; None if not all of a rank's samples have one."""
    found: list[NDArray[np.generic]] = []
    for one in meeting.passes:
        read = max(len(one.samples), 1)
        contents = one.contents[one.contents != 0]
        if len(contents) < read and not (one.read.iterable and len(contents)):
            return None
        found.append(contents)
    return found


# --- the same samples ------------------------------------------------------------


def _same(
    why: CoverageCause,
    meeting: LoopMeeting,
    values: Sequence[NDArray[np.generic]],
    exact: bool,
) -> CoverageFault | None:
    """Ranks that read the same samples: in the same order, or all of them all."""
    shortest = min(map(len, values))
    groups: dict[bytes, list[int]] = {}
    for rank, value in zip(meeting.ranks, values, strict=True):
        groups.setdefault(value[:shortest].tobytes(), []).append(rank)
    sets = [np.unique(value) for value in values]
    telling = _are_identifying(values, sets, exact)
    if shortest >= FEWEST and telling:
        shared = [ranks for ranks in groups.values() if len(ranks) > 1]
        if shared:
            sharing = tuple(rank for ranks in shared for rank in ranks)
            return CoverageFault(
                why, meeting, (1, 1), sharing, _tally(meeting, values, exact)
            )
    each_all = all(np.array_equal(sets[0], one) for one in sets[1:])
    once = all(len(one) == len(value) for one, value in zip(sets, values, strict=True))
    if meeting.whole and each_all and once and len(sets[0]) >= FEWEST and telling:
        tally = _tally(meeting, values, exact)
        return CoverageFault(
            why, meeting, (1, 1), meeting.ranks, tally, sure=False, in_order=False
        )
    return None


def _are_identifying(
    values: Sequence[NDArray[np.generic]],
    sets: Sequence[NDArray[np.generic]],
    exact: bool,
) -> bool:
    """Whether equal values mean equal samples: within a rank they seldom repeat."""
    different = [len(one) for one in sets]
    if min(different, default=0) < FEWEST:
        return False
    return exact or all(
        known * 2 > len(value) for known, value in zip(different, values, strict=True)
    )


def _tally(
    meeting: LoopMeeting, values: Sequence[NDArray[np.generic]], exact: bool
) -> Tally:
    once = [np.unique(value) for value in values]
    _, times = np.unique(np.concatenate(once), return_counts=True)
    length = meeting.passes[0].read.length
    never = max(0, length - len(times)) if exact and length >= 0 else -1
    return Tally(tuple(map(len, once)), int((times > 1).sum()), never)


# --- an overlap ------------------------------------------------------------------


def _overlap(
    why: CoverageCause,
    meeting: LoopMeeting,
    values: Sequence[NDArray[np.generic]],
    exact: bool,
) -> CoverageFault | None:
    """Samples that several ranks read in one epoch, beyond what fills last batches."""
    if not meeting.whole:
        return None
    heads = [
        value[: max(0, len(value) - one.batch)]
        for one, value in zip(meeting.passes, values, strict=True)
    ]
    if min(map(len, heads)) < FEWEST:
        heads = [np.asarray(value) for value in values]
        if len(meeting.ranks) > min(map(len, heads)):
            return None  # a pass is hardly longer than what may fill it up
    once = [np.unique(head) for head in heads]
    repeats = max(
        1 - len(one) / len(head) for one, head in zip(once, heads, strict=True)
    )
    drawn = any(one.read.drawn for one in meeting.passes)
    if drawn or (exact and repeats > TWICE_SHARE):  # drawn by each rank on its own
        return None
    _, times = np.unique(np.concatenate(once), return_counts=True)
    twice = int((times > 1).sum())
    share = twice / min(map(len, once))
    if twice < 2 or share <= TWICE_SHARE:
        return None
    tally = _tally(meeting, values, exact)
    if not exact:
        chance = _chance(heads) if why is CoverageCause.STREAM else 0.0
        if share <= CHANCE * repeats + TWICE_SHARE or chance > _LIKELY:
            return None
        return CoverageFault(
            why, meeting, (1, 1), meeting.ranks, tally, chance < _CERTAIN
        )
    if all(map(_is_nearly_all, meeting.passes)):
        return CoverageFault(
            CoverageCause.SAME,
            meeting,
            (1, 1),
            meeting.ranks,
            tally,
            sure=False,
            in_order=False,
        )
    split = all(one.read.replicas for one in meeting.passes)
    if not split and _are_draws(meeting):
        return None
    return CoverageFault(why, meeting, (1, 1), meeting.ranks, tally, sure=split)


def _chance(values: Sequence[NDArray[np.generic]]) -> float:
    """How likely samples repeat so seldom within ranks, and so often among them.

    If each were drawn with replacement, any two would be as likely to be the same,
    whoever reads them.
    """
    sizes = np.array([len(value) for value in values], np.float64)
    within = float((sizes * (sizes - 1) / 2).sum())
    among = float(sizes.sum() ** 2 - (sizes**2).sum()) / 2
    times = [np.unique(value, return_counts=True)[1] for value in values]
    seen = sum(int((count * (count - 1) // 2).sum()) for count in times)
    _, every = np.unique(np.concatenate(values), return_counts=True)
    pairs = int((every * (every - 1) // 2).sum())
    share = within / max(1.0, within + among)
    if seen >= pairs * share:
        return 1.0
    # Hoeffding's bound, in the form of Chernoff, of a binomial distribution's tail.
    part = seen / pairs
    distance = (1 - part) * math.log((1 - part) / (1 - share))
    distance += part * math.log(part / share) if part else 0.0
    return math.exp(-pairs * distance)


_LIKELY, _CERTAIN = 1e-2, 1e-6


def _is_nearly_all(one: LoaderPass) -> bool:
    """Whether a pass goes through the whole dataset, but for a last batch."""
    length, read = one.read.length, len(one.samples)
    whole = 0 <= length - read < one.batch and read % one.batch == 0
    return whole and not one.read.replicas and 2 * read > length + 1


def _are_draws(meeting: LoopMeeting) -> bool:
    """Whether each rank may have drawn some of the samples at random, for itself.

    They are no parts of a whole by their number, and have as many in common as random
    draws would.
    """
    sizes = [len(one.samples) for one in meeting.passes]
    length = meeting.passes[0].read.length
    fill = sum(one.batch for one in meeting.passes) + len(sizes)
    if abs(sum(sizes) - length) <= fill or max(sizes) >= length:
        return False
    once = [np.unique(one.samples) for one in meeting.passes]
    seen = expected = variance = 0.0
    for one, other in combinations(once, 2):
        a, b = len(one), len(other)
        seen += len(np.intersect1d(one, other))
        expected += a * b / length
        variance += a * b * (length - a) * (length - b) / length**2 / (length - 1)
    return abs(seen - expected) <= _SIGMAS * math.sqrt(variance) + 1


_SIGMAS = 3.0


def _split_by_others(run: Run, meeting: LoopMeeting) -> CoverageFault | None:
    """A sampler splits among more than there are, and nobody reads the rest."""
    split = {one.read.replicas for one in meeting.passes}
    if len(split) != 1 or not meeting.whole:
        return None
    if len(run.seen) < run.world_size:
        return None  # as simulated ranks are few of many: the others read the rest
    others = set(run.seen) - set(meeting.ranks)
    if any(key[0] == meeting.key[0] for rank in others for key in by_loop(run, rank)):
        return None  # those read it, too, or have left after a while
    (among,) = split
    values: list[NDArray[np.generic]] = [one.samples for one in meeting.passes]
    tally = _tally(meeting, values, exact=True)
    allowed = sum(one.batch for one in meeting.passes) + among
    missed = tally.never - allowed
    if among <= len(meeting.ranks) or missed <= 0 or sum(tally.read) < FEWEST:
        return None
    return CoverageFault(
        CoverageCause.OVERLAP, meeting, (1, 1), meeting.ranks, tally, split_by=among
    )


# --- datasets that differ --------------------------------------------------------


def _different(
    run: Run, meeting: LoopMeeting, contents: Sequence[NDArray[np.generic]] | None
) -> CoverageFault | None:
    """Ranks whose datasets differ, though they are split as if they were one."""
    all_of_it = Tally(tuple(len(np.unique(one.samples)) for one in meeting.passes), 0)
    apart = are_apart(meeting)
    reordered = apart and are_reordered(run, meeting)
    others = share_of_others(run, meeting)
    if apart and (reordered or others):
        return CoverageFault(
            CoverageCause.DATASET,
            meeting,
            (1, 1),
            meeting.ranks,
            _tally(meeting, contents, exact=False) if contents else all_of_it,
            reordered=reordered,
            sure=reordered or others == 1,
        )
    if contents is None:
        return None
    return _overlap(CoverageCause.DATASET, meeting, contents, exact=False)


# --- streams ---------------------------------------------------------------------


def _of_stream(meeting: LoopMeeting) -> CoverageFault | None:
    """Ranks, or the workers of a rank, that go through the same stream."""
    contents: list[NDArray[np.generic]] = [
        one.contents[one.contents != 0] for one in meeting.passes
    ]
    by_worker = all(map(_read_by_each_worker, meeting.passes))
    first = [_first_times(value) for value in contents] if by_worker else contents
    shared = _same(CoverageCause.STREAM, meeting, first, exact=False)
    shared = shared or _overlap(CoverageCause.STREAM, meeting, first, exact=False)
    if shared is not None:
        return replace(shared, by_worker=by_worker)
    if by_worker:
        tally = Tally(tuple(len(one) for one in first), 0)
        return CoverageFault(
            CoverageCause.STREAM,
            meeting,
            (1, 1),
            meeting.ranks,
            tally,
            by_worker=True,
            by_rank=False,
        )
    return None


def _first_times(value: NDArray[np.generic]) -> NDArray[np.generic]:
    """Each value once, in the order in which they came."""
    _, first = np.unique(value, return_index=True)
    found: NDArray[np.generic] = value[np.sort(first)]
    return found


def _read_by_each_worker(one: LoaderPass) -> bool:
    """Whether nearly each content came just as often as there are workers."""
    if one.read.workers < 2:
        return False
    _, times = np.unique(one.contents[one.contents != 0], return_counts=True)
    if len(times) < FEWEST:
        return False
    return float((times == one.read.workers).mean()) >= _NEARLY_ALL
