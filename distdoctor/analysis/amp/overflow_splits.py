"""Where ranks disagree whether to leave out a step because something was Inf or NaN."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.memoize import memoize
from distdoctor.analysis.replicas.replica_sets import replicas, sent_by
from distdoctor.analysis.replicas.weight_history import weight_history
from distdoctor.model.observations.amp import Overflow, Stride
from distdoctor.model.observations.gradients import Holds
from distdoctor.model.run import Run

_MOST_ROUNDS = 10_000_000  # a record that says more is damaged

_SHARE = 0.25
"""Of a model's elements, that ranks which average by hand send in each step."""

Rounds = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Split:
    """Some ranks of a set left out a step that others made.

    Attributes:
        ranks: The set; they train one model together.
        optimizer: Its number on each of them.
        sharded: Each of them has a part of the parameters, or steps for a part of them.
        left_out: Ranks that left out the step of the first such round.
        step: What it was for the others, from 1.
        rounds: All such rounds.
        overflows: Why it was left out, one of each rank and round.
        strides: Steps of those that made it.
    """

    ranks: tuple[int, ...]
    optimizer: int
    sharded: bool
    left_out: tuple[int, ...]
    step: int
    rounds: tuple[int, ...]
    overflows: tuple[Overflow, ...]
    strides: tuple[Stride, ...]

    @property
    def by_scaler(self) -> bool:
        """A GradScaler decided."""
        return any(one.scale for one in self.overflows)


@memoize
def splits(run: Run) -> tuple[Split, ...]:
    """Where ranks that train one model part over a step; one of each set.

    Args:
        run: The run that is judged.

    Returns:
        The splits, worked out once per run.
    """
    return tuple(_splits(run))


def first_split(run: Run, ranks: Iterable[int]) -> Split | None:
    """The first of those of ranks that train one model.

    Args:
        run: The run that is judged.
        ranks: Global ranks, all of which the set has to hold.

    Returns:
        The split at the lowest step, or None.
    """
    who = set(ranks)
    mine = [one for one in splits(run) if who <= set(one.ranks)]
    return min(mine, key=lambda one: one.step, default=None)


def _splits(run: Run) -> Iterator[Split]:
    if not any(run.of(Overflow, rank) for rank in run.seen):
        return
    for ranks in _sets(run):
        if not run.has_seen(ranks):
            continue
        by_rank = {rank: run.of(Stride, rank) for rank in ranks}
        numbers = [{one.optimizer for one in by_rank[rank]} for rank in ranks]
        for number in sorted(set.intersection(*numbers)):
            strides = {
                rank: [one for one in by_rank[rank] if one.optimizer == number]
                for rank in ranks
            }
            found = _split(run, ranks, number, strides)
            if found is not None:
                yield found


def _split(
    run: Run, ranks: tuple[int, ...], number: int, strides: dict[int, list[Stride]]
) -> Split | None:
    until = {max(one.until for one in of_rank) for of_rank in strides.values()}
    kinds = {one.kind for of_rank in strides.values() for one in of_rank}
    # Ranks count alike only if they have equally many rounds in all.
    if len(until) > 1 or len(kinds) > 1 or max(until) > _MOST_ROUNDS:
        return None
    made = {rank: _rounds(of_rank) for rank, of_rank in strides.items()}
    together = np.unique(np.concatenate(list(made.values())))
    reasons = {rank: _reasons(run, rank, number) for rank in ranks}
    by_round: dict[int, dict[int, Overflow]] = {}
    for rank in ranks:
        left = np.setdiff1d(together, made[rank])
        if 2 * len(left) > len(together):
            return None  # it takes another part, as a server of parameters does
        for at in left.tolist():
            if at in reasons[rank]:
                by_round.setdefault(at, {})[rank] = reasons[rank][at]
    if not by_round:
        return None
    first = min(by_round)
    left_out = tuple(rank for rank in ranks if first not in made[rank])
    others = [rank for rank in ranks if rank not in left_out]
    return Split(
        ranks=ranks,
        optimizer=number,
        sharded=_are_sharded(run, ranks, number) or _are_shared_out(run, ranks, number),
        left_out=left_out,
        step=int(np.searchsorted(made[others[0]], first)) + 1,
        rounds=tuple(sorted(by_round)),
        overflows=tuple(
            one for at in sorted(by_round) for one in by_round[at].values()
        ),
        strides=tuple(strides[rank][0] for rank in others),
    )


def _rounds(strides: Iterable[Stride]) -> Rounds:
    """The rounds in which an optimizer made a step, ascending: [steps] int64."""
    runs = [
        np.arange(one.first, one.first + one.every * one.count, max(one.every, 1))
        for one in strides
        if 0 < one.count <= _MOST_ROUNDS and 0 < one.every <= _MOST_ROUNDS
    ]
    found: Rounds = np.unique(np.concatenate([*runs, np.zeros(0, np.int64)]))
    return found


def _reasons(run: Run, rank: int, number: int) -> dict[int, Overflow]:
    """By round, why a step was left out."""
    return {
        one.round: one
        for one in run.of(Overflow, rank)
        if one.loss or one.optimizer == number
    }


# --- which ranks belong together ---


def _sets(run: Run) -> list[tuple[int, ...]]:
    known = list(replicas(run))
    everyone = tuple(range(run.world_size))
    if everyone in known or len(everyone) < 2 or len(run.seen) < len(everyone):
        return known
    numbers = {one.optimizer for rank in everyone for one in run.of(Holds, rank)}
    sharded = any(_are_sharded(run, everyone, number) for number in numbers)
    if sharded or (not known and _average_by_hand(run)):
        known.append(everyone)
    return known


def _are_sharded(run: Run, ranks: tuple[int, ...], number: int) -> bool:
    """Whether each rank has parts of the same parameters."""
    held = [
        [one for one in run.of(Holds, rank) if one.optimizer == number]
        for rank in ranks
    ]
    return all(
        of_rank and of_rank[0].sharded and of_rank[0].names == held[0][0].names
        for of_rank in held
    )


def _are_shared_out(run: Run, ranks: tuple[int, ...], number: int) -> bool:
    """Whether each rank's optimizer has parameters of its own, of a model all have."""
    held = [
        {
            name
            for one in run.of(Holds, rank)
            if one.optimizer == number
            for name in one.names
        }
        for rank in ranks
    ]
    every = set().union(*held)
    if not all(held) or sum(map(len, held)) > len(every):
        return False
    return any(
        seen.keys() >= set(ranks)
        and len({seen[rank].alike for rank in ranks}) == 1
        and every <= set(seen[ranks[0]].trained.names)
        for seen in weight_history(run).values()
    )


def _average_by_hand(run: Run) -> bool:
    """Whether all ranks began with one model, and send as much in each step.

    Ranks that part at their very first step have no gradient in common.
    """
    for seen in weight_history(run).values():
        if len(seen) < run.world_size:
            continue
        begun = {
            int(one.before[1]) if len(one.before) > 1 else 0 for one in seen.values()
        }
        if len(begun) > 1 or begun == {0}:
            continue
        if all(
            sent_by(run, rank)[-1]
            >= _SHARE * sum(one.trained.numels) * (len(one.before) - 1)
            for rank, one in seen.items()
        ):
            return True
    return False
