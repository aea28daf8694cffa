"""Whether ranks that train one model give it the same batches, read in any way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distdoctor.analysis.replicas.data_parallel import data_parallel
from distdoctor.model.observations.data import Fed, Read
from distdoctor.model.run import Run

LEAST_STEPS = 2
"""Steps at which the inputs must have been looked at."""


@dataclass(frozen=True, slots=True)
class Feeding:
    """Ranks that gave their models the same inputs at every step that was looked at.

    Attributes:
        ranks: All that train the model together.
        sharing: Those that have the same inputs.
        steps: That were looked at.
        fed: What the first of them was seen to do.
    """

    ranks: tuple[int, ...]
    sharing: tuple[int, ...]
    steps: tuple[int, ...]
    fed: tuple[Fed, ...]

    @property
    def everyone(self) -> bool:
        """Whether all that train the model together have the same inputs."""
        return len(self.sharing) == len(self.ranks)


def fed_alike(run: Run, ranks: Sequence[int]) -> bool | None:
    """Whether the models of some ranks got the same inputs when that was looked at.

    Args:
        run: The run that is judged.
        ranks: Global ranks of the run.

    Returns:
        None if that was never seen of all of them at one step.
    """
    by_step: dict[int, list[int]] = {}
    for rank in ranks:
        for fed in run.of(Fed, rank):
            if fed.inputs:
                by_step.setdefault(fed.step, []).append(fed.inputs)
    met = [inputs for inputs in by_step.values() if len(inputs) == len(ranks)]
    return all(len(set(inputs)) == 1 for inputs in met) if met else None


def same_batches(run: Run) -> Iterator[Feeding]:
    """Where ranks train on the same batches, and no DataLoader tells of them.

    A batch that is the same at each step is one to try a model with, and is left alone.

    Args:
        run: The run that is judged.

    Yields:
        One for each set of ranks that share them.
    """
    for ranks in data_parallel(run):
        if not run.has_seen(ranks):
            continue
        if any(read.steps for rank in ranks for read in run.of(Read, rank)):
            continue
        by_rank = {rank: {one.step: one for one in run.of(Fed, rank)} for rank in ranks}
        steps = sorted(set.intersection(*(set(one) for one in by_rank.values())))
        by_inputs: dict[tuple[int, ...], list[int]] = {}
        for rank, fed in by_rank.items():
            inputs = tuple(fed[step].inputs for step in steps)
            by_inputs.setdefault(inputs, []).append(rank)
        for inputs, sharing in by_inputs.items():
            changing = len(set(inputs)) > 1 and 0 not in inputs
            if len(sharing) > 1 and changing and len(steps) >= LEAST_STEPS:
                first = tuple(by_rank[sharing[0]][step] for step in steps)
                yield Feeding(ranks, tuple(sharing), tuple(steps), first)
