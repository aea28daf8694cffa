"""Who read what through pipelines of `tf.data`, and whether ranks share it out rightly.

Ranks that average gradients are to read different samples. Where each keeps a shard of
a pipeline, the shards are parts of a whole only if all ranks have the same samples in
the same order before they are cut: a `shuffle` of each rank's own in front of `shard`
makes them overlap, and leaves others out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.horovod.trained_variables import METRIC, SUMMING
from distdoctor.analysis.memoize import memoize
from distdoctor.model.events import Place
from distdoctor.model.observations.data import Fed
from distdoctor.model.observations.horovod import (
    GraphUnclear,
    PipelineRead,
    PipelineStage,
    VariablePrints,
)
from distdoctor.model.operations import OPERATIONS
from distdoctor.model.run import Run, Spec

FEWEST = 8
"""Different samples that a rank must have read to be compared."""

_CHANCE = 5.0
"""How much more often than within a rank a sample has to come on two ranks."""

_SHARE = 0.02
"""Share of what a rank reads that others have to read, too."""

_GATHERING = [
    code
    for code, operation in enumerate(OPERATIONS)
    if operation.name.startswith(("all_gather", "all_to_all"))
]

_OF_GRADIENTS = "_Allreduce/"
"""In names of what Horovod does with gradients. Source: tensorflow/__init__.py."""

_MOST_TURNS = 64
_LEAST_FED = 2


@dataclass(frozen=True, slots=True)
class PipelinePass:
    """A pass of a rank over a pipeline.

    Attributes:
        first: What was told as it began.
        contents: Fingerprints of samples, in the order of reading.
        steps: Of optimizers, meanwhile.
        begin: How many calls the rank had made when it began.
        end: The same, when it was told last.
        stages: What shuffles and splits there, in the order of the pipeline.
    """

    first: PipelineRead
    contents: NDArray[np.uint64]
    steps: int
    begin: int
    end: int
    stages: tuple[PipelineStage, ...]

    @property
    def shard(self) -> PipelineStage | None:
        """The last stage that keeps one of several shards."""
        found = [one for one in self.stages if one.kind == "shard" and one.size > 1]
        return found[-1] if found else None

    def before(self, shard: PipelineStage, kind: str) -> list[PipelineStage]:
        """Stages of a kind that the samples pass before they are split."""
        return [
            one
            for one in self.stages
            if one.kind == kind and shard.first <= one.at < shard.at
        ]


@dataclass(frozen=True, slots=True)
class PipelineFault:
    """One thing that is wrong with a loop over a pipeline.

    Attributes:
        passes: By rank, of the first epoch that has it.
        sharing: Ranks that read the same; for overlapping shards, all.
        epochs: How many epochs have it, and how many were compared.
        twice: Samples that several ranks read; -1: samples were not seen.
        shuffles: By rank, what gives the samples an order of its own before they are
            split.
        sure: Nothing else can explain it.
    """

    passes: tuple[PipelinePass, ...]
    sharing: tuple[int, ...]
    epochs: tuple[int, int] = (1, 1)
    twice: int = -1
    shuffles: tuple[PipelineStage, ...] = ()
    sure: bool = True


@memoize
def _trained_passes(run: Run) -> list[list[tuple[PipelinePass, ...]]]:
    """Loops in which all ranks train one model: the passes of each epoch, by rank."""
    ranks = tuple(range(run.world_size))
    if run.simulated or len(ranks) < 2 or not run.has_seen(ranks):
        return []
    loops = [_by_loop(run, rank) for rank in ranks]
    found = []
    for key in loops[0]:
        turns = list(zip(*(one.get(key, ()) for one in loops), strict=False))
        trained = [
            turn
            for turn in turns[:_MOST_TURNS]
            if all(_trains(run, rank, turn[rank]) for rank in ranks)
        ]
        if trained:
            found.append(trained)
    return found


def _by_loop(run: Run, rank: int) -> dict[object, list[PipelinePass]]:
    parts: dict[int, list[tuple[int, PipelineRead]]] = {}
    stages: dict[int, list[PipelineStage]] = {}
    for at, event in run.told(PipelineRead, PipelineStage, rank=rank):
        if isinstance(event, PipelineRead):
            parts.setdefault(event.number, []).append((at, event))
        elif isinstance(event, PipelineStage):
            stages.setdefault(event.pipeline, []).append(event)
    loops: dict[object, list[PipelinePass]] = {}
    for _, told in sorted(parts.items()):
        begin, first = told[0]
        contents = [one for _, part in told for one in part.contents]
        one = PipelinePass(
            first,
            np.array(contents, np.uint64),
            sum(part.steps for _, part in told),
            begin,
            told[-1][0],
            tuple(sorted(stages.get(first.pipeline, ()), key=lambda stage: stage.at)),
        )
        loops.setdefault((first.place, first.stages), []).append(one)
    return loops


def _trains(run: Run, rank: int, one: PipelinePass) -> bool:
    """Whether a rank made steps in a pass, each with gradients that ranks reduced."""
    if not one.steps:
        return False
    reduced = _reduced(run, rank, one.begin, one.end)
    if _gathered(run, rank, one.begin, one.end) * 2 >= one.steps:
        return False  # they may share the work on the same samples
    if reduced * 2 >= one.steps:
        return True
    # Nobody knows what is reduced in branches, but Horovod's optimizer may do it.
    hidden = bool(run.of(GraphUnclear, rank)) and _is_one_set(run)
    return hidden and any(seen.wrapped for seen in run.of(VariablePrints, rank))


def _is_one_set(run: Run) -> bool:
    """Whether all ranks are in all groups: else they may train several models."""
    return all(len(group.ranks) == run.world_size for group in run.groups)


def _reduced(run: Run, rank: int, begin: int, end: int) -> int:
    """How often a rank reduced more than a metric has, among all ranks."""
    return sum(1 for _ in _large(run, rank, begin, end, SUMMING))


def _gathered(run: Run, rank: int, begin: int, end: int) -> int:
    """How often it gathered more than that, sparse gradients left out."""
    specs = _large(run, rank, begin, end, _GATHERING)
    return sum(not any(_OF_GRADIENTS in name for name in one.names) for one in specs)


def _large(
    run: Run, rank: int, begin: int, end: int, codes: Sequence[int]
) -> Iterator[Spec]:
    """What a rank's calls among all ranks move, of those with more than a metric."""
    rows = run.rows_of(rank)
    calls = run.calls[rows.start + begin : min(rows.start + end, rows.stop)]
    for row in calls[np.isin(calls["op"], codes)]:
        spec = run.specs[row["spec"]]
        if len(run.groups[row["group"]].ranks) == run.world_size and any(
            not one.numel or one.numel > METRIC for one in spec.tensors
        ):
            yield spec


# --- the same samples ---------------------------------------------------------------


def same_samples(run: Run) -> Iterator[PipelineFault]:
    """Loops in which ranks train on the same samples in the same order.

    Args:
        run: The run that is judged.

    Yields:
        One for each loop.
    """
    return _in_most_epochs(run, _shared)


def _in_most_epochs(
    run: Run, judge: Callable[[tuple[PipelinePass, ...]], PipelineFault | None]
) -> Iterator[PipelineFault]:
    """The first fault of each loop of which half of the epochs or more have one."""
    for turns in _trained_passes(run):
        found = [fault for turn in turns if (fault := judge(turn)) is not None]
        if found and len(found) * 2 >= len(turns):
            yield replace(found[0], epochs=(len(found), len(turns)))


def _shared(turn: tuple[PipelinePass, ...]) -> PipelineFault | None:
    """Ranks whose samples are those of another, in the same order."""
    shortest = min(len(one.contents) for one in turn)
    heads = [one.contents[:shortest] for one in turn]
    if any(not _tell_apart(head) for head in heads):
        return None
    groups: dict[bytes, list[int]] = {}
    for rank, head in enumerate(heads):
        groups.setdefault(head.tobytes(), []).append(rank)
    alike = tuple(r for ranks in groups.values() if len(ranks) > 1 for r in ranks)
    shuffles = tuple(one for each in turn for one in each.stages)
    return PipelineFault(turn, alike, shuffles=shuffles) if alike else None


def _tell_apart(contents: NDArray[np.uint64]) -> bool:
    """Whether equal contents mean equal samples: within a rank they seldom repeat."""
    different = len(np.unique(contents))
    return different >= FEWEST and different * 2 > len(contents)


# --- shards that overlap ------------------------------------------------------------


def overlapping_shards(run: Run) -> Iterator[PipelineFault]:
    """Loops whose shards are no parts of one whole.

    Args:
        run: The run that is judged.

    Yields:
        One for each loop.
    """
    return _in_most_epochs(run, _overlap)


def _overlap(turn: tuple[PipelinePass, ...]) -> PipelineFault | None:
    shards = [one.shard for one in turn]
    known = [shard for shard in shards if shard is not None]
    if len(known) < len(turn):
        return None
    if len({shard.size for shard in known}) > 1 or known[0].size < len(turn):
        return None
    if len({shard.index for shard in known}) < len(turn):
        return None
    ranks, both = tuple(range(len(turn))), list(zip(turn, known, strict=True))
    shuffles = _shuffled_apart([one.before(shard, "shuffle") for one, shard in both])
    repeated = any(one.before(shard, "repeat") for one, shard in both)
    if all(_tell_apart(one.contents) for one in turn) and not repeated:
        twice = _twice(turn, _SHARE if not shuffles else 0.0)
        if not twice:
            return None
        return PipelineFault(turn, ranks, twice=twice, shuffles=shuffles)
    if not shuffles or (any(len(one.contents) for one in turn) and not repeated):
        return None
    sources = {one.first.source for one in turn}
    if len(sources) > 1:
        return None  # each has samples of its own
    return PipelineFault(turn, ranks, shuffles=shuffles, sure=False)


def _shuffled_apart(
    shuffles: Sequence[Sequence[PipelineStage]],
) -> tuple[PipelineStage, ...]:
    """The first shuffles that give samples another order on each rank."""
    for same in zip(*shuffles, strict=False):
        random = any(not any(one.seeds) for one in same)
        if max(one.size for one in same) > 1 and (
            random or len({one.seeds for one in same}) > 1
        ):
            return same
    return ()


def _twice(turn: Sequence[PipelinePass], least: float) -> int:
    """Samples that several ranks read, if they are more than chance explains."""
    once = [np.unique(one.contents) for one in turn]
    repeats = max(
        1 - len(one) / len(each.contents) for one, each in zip(once, turn, strict=True)
    )
    _, times = np.unique(np.concatenate(once), return_counts=True)
    twice = int((times > 1).sum())
    share = twice / min(map(len, once))
    return twice if twice > 2 and share > _CHANCE * repeats + least else 0


# --- the same batches, read in another way ------------------------------------------


@dataclass(frozen=True, slots=True)
class SameInputs:
    """Ranks that gave their training functions the same tensors at every step.

    Attributes:
        ranks: Who did.
        fed: What the first of them was seen to give.
    """

    ranks: tuple[int, ...]
    fed: tuple[Fed, ...]

    @property
    def places(self) -> tuple[Place, ...]:
        """Lines that call the function."""
        places = dict.fromkeys(one.place for one in self.fed)
        return tuple(place for place in places if place is not None)


def same_inputs(run: Run) -> Iterator[SameInputs]:
    """Ranks that train on the same batches, where no pipeline tells of samples.

    Args:
        run: The run that is judged.

    Yields:
        At most one.
    """
    ranks = tuple(range(run.world_size))
    if run.simulated or len(ranks) < 2 or not run.has_seen(ranks):
        return
    if any(one.contents for rank in ranks for one in run.of(PipelineRead, rank)):
        return
    if not all(run.of(VariablePrints, rank) for rank in ranks):
        return
    fed = [{one.step: one for one in run.of(Fed, rank)} for rank in ranks]
    steps = sorted(set.intersection(*(set(one) for one in fed)))
    inputs = {tuple(one[step].inputs for step in steps) for one in fed}
    if len(steps) < _LEAST_FED or len(inputs) > 1 or len(set(*inputs)) < _LEAST_FED:
        return
    last = [max(one.step for one in run.of(VariablePrints, rank)) for rank in ranks]
    for rank in ranks:
        end = len(run.rows_of(rank))
        if _reduced(run, rank, 0, end) < last[rank]:
            return
        if _gathered(run, rank, 0, end) * 2 >= last[rank]:
            return
    yield SameInputs(ranks, tuple(fed[0][step] for step in steps))
