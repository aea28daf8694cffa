"""Where replicas of a model part, and what explains it.

Replicas are known by their wrapper, or by what they do: they make steps with one
gradient (see `replicas`). They part at one moment, and have one explanation, so that
one fault is one finding; each check asks for the explanation it is named for. Replicas
that come together again, as they do where weights are averaged now and then, are well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.amp.overflow_splits import first_split, splits
from distdoctor.analysis.collectives.early_use import raced
from distdoctor.analysis.gradients.trust_ratios import trusted_apart
from distdoctor.analysis.memoize import memoize
from distdoctor.analysis.replicas import whole_parts
from distdoctor.analysis.replicas.replica_sets import (
    averaging_gradients,
    optimizers_of,
    sharing,
)
from distdoctor.analysis.replicas.shard_dimensions import are_shards
from distdoctor.analysis.replicas.weight_history import (
    Numbers,
    WeightHistory,
    together,
    weight_history,
)
from distdoctor.model.observations.gradients import Gradients
from distdoctor.model.run import Run


class DivergenceCause(StrEnum):
    """What explains that replicas have different weights."""

    START = "different from the start"
    LOADED = "loaded by some ranks"
    OUTSIDE_SOME = "changed outside of a step by some ranks"
    OUTSIDE_ALL = "changed outside of a step by each rank in its own way"
    SKIPPED = "a step left out"
    ADDED = "a step more"
    STATE = "another state of the optimizer"
    STEP = "a step with other results"
    UNSEEN = "a change that nobody saw"
    # What checks of gradients, hyperparameters and scaling tell, and none of weights:
    OVERFLOW = "a step left out for what overflowed on some ranks"
    GRADIENTS = "other gradients"
    SETTINGS = "other hyperparameters"
    TRUST = "lengths of steps that follow each rank's own gradients"
    # What the check of meshes tells:
    MESH = "shards that were averaged along another dimension of the mesh"
    WHOLE = "gradients of each rank's own beside layers that they share"
    # What the check of asynchronous calls tells:
    RACED = "a step that overtook a call"


_MADE_BY_STEPS = {
    *(
        DivergenceCause.SKIPPED,
        DivergenceCause.ADDED,
        DivergenceCause.STATE,
        DivergenceCause.STEP,
        DivergenceCause.UNSEEN,
    ),
    DivergenceCause.GRADIENTS,
}


@dataclass(frozen=True, slots=True)
class ReplicaDivergence:
    """Replicas of a model have different weights.

    Attributes:
        cause: What explains it.
        ranks: The replicas.
        seen: By rank, what was seen of the model.
        step: Before or in which they part, from 1; 0: before the first.
        culprits: Ranks that did what others did not; empty if all did.
        names: Parameters that differ, in the order of the model.
        wrapped: DDP had made the weights alike.
    """

    cause: DivergenceCause
    ranks: tuple[int, ...]
    seen: Mapping[int, WeightHistory]
    step: int
    culprits: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    wrapped: bool = False

    @property
    def model(self) -> int:
        """Number of the model."""
        return self.seen[self.ranks[0]].trained.model


@memoize
def replica_divergences(run: Run) -> tuple[ReplicaDivergence, ...]:
    """Where replicas part; each set of replicas of a model once.

    Args:
        run: The run that is judged.

    Returns:
        One for each set, worked out once per run; none of a simulated run.
    """
    return () if run.simulated else tuple(_partings(run))


def _partings(run: Run) -> Iterator[ReplicaDivergence]:
    for seen in weight_history(run).values():
        sets = _replicas(run, seen)
        # Ranks that part at their first step have no gradient in common.
        sets += [one.ranks for one in splits(run) if one.ranks not in sets]
        parts = [
            {rank: seen[rank] for rank in ranks}
            for ranks in sets
            if seen.keys() >= set(ranks)
        ]
        by_hand = {rank: one for rank, one in seen.items() if not one.trained.wrapped}
        parts += [
            {rank: seen[rank].of(names) for rank in ranks}
            for ranks, names in sharing(run, by_hand)
        ]
        found_here: list[ReplicaDivergence] = []
        for part in parts:
            ranks = tuple(part)
            found = _parting(part)
            if found is None or _come_together(part, found):
                continue
            split = first_split(run, ranks)
            if (
                split is not None
                and found.cause in _MADE_BY_STEPS
                and split.step <= found.step
            ):
                found = replace(
                    found, cause=DivergenceCause.OVERFLOW, culprits=split.left_out
                )
            elif found.cause in {
                DivergenceCause.STATE,
                DivergenceCause.STEP,
            } and _trusts(run, ranks):
                found = replace(found, cause=DivergenceCause.TRUST)
            elif found.cause is DivergenceCause.GRADIENTS and _entered_alike(
                run, part, found
            ):
                found = replace(found, cause=DivergenceCause.STEP)
            elif found.cause is not DivergenceCause.START and raced(run, ranks):
                found = replace(found, cause=DivergenceCause.RACED)
            found_here.append(found)
        yield from _along_the_mesh(run, found_here)
    for team, step, names in whole_parts.apart(run):
        yield ReplicaDivergence(
            DivergenceCause.WHOLE, tuple(team), team, step, names=names
        )


def _along_the_mesh(
    run: Run, found: list[ReplicaDivergence]
) -> list[ReplicaDivergence]:
    """The same, where what began differently are the shards of a model."""
    begun = [
        one for one in found if one.cause is DivergenceCause.START and not one.wrapped
    ]
    prints = {
        rank: one.seen[rank].weights[one.step].prints
        for one in begun
        for rank in one.ranks
        if one.step in one.seen[rank].weights
    }
    if not are_shards(run, [one.ranks for one in begun], prints):
        return found
    return [
        replace(one, cause=DivergenceCause.MESH) if one in begun else one
        for one in found
    ]


def _entered_alike(
    run: Run, seen: Mapping[int, WeightHistory], found: ReplicaDivergence
) -> bool:
    """Whether all ranks gave the optimizer the same gradients, which it changed then.

    So does one of the user's, which adds noise in its `step`, and calls torch's then.
    Steps that used the same gradients say nothing of the one that did not.
    """
    common = set.intersection(*(set(one.weights) for one in seen.values()))
    used_apart = {
        step
        for step in common
        if len({one.weights[step].gradients for one in seen.values()}) > 1
    }
    looks: dict[int, list[tuple[int, ...]]] = {}
    for rank, one in seen.items():
        among = optimizers_of(run, rank, one)
        for look in run.of(Gradients, rank):
            if (
                look.optimizer in among
                and look.step >= found.step
                and look.step in used_apart
            ):
                looks.setdefault(look.step, []).append(look.prints)
    whole = [of for of in looks.values() if len(of) == len(seen)]
    return bool(whole) and all(len(set(of)) == 1 for of in whole)


def _trusts(run: Run, ranks: tuple[int, ...]) -> bool:
    """Whether these ranks scale steps, layer by layer, by gradients of their own."""
    return any(set(ranks) >= set(one.meetings[0].ranks) for one in trusted_apart(run))


def _replicas(run: Run, seen: Mapping[int, WeightHistory]) -> list[tuple[int, ...]]:
    """Sets of ranks that are to have the same weights of a model."""
    wrapped: dict[object, list[int]] = {}
    for rank, one in seen.items():
        if one.trained.wrapped:
            wrapped.setdefault((one.trained.ranks, one.alike), []).append(rank)
    by_hand = {rank: one for rank, one in seen.items() if not one.trained.wrapped}
    sets = [tuple(ranks) for ranks in wrapped.values() if len(ranks) > 1]
    return sets + averaging_gradients(run, by_hand)


# --- where they part ---


def _parting(seen: Mapping[int, WeightHistory]) -> ReplicaDivergence | None:
    """Where these replicas part first; None: nowhere."""
    steps = sorted(set.intersection(*(set(one.weights) for one in seen.values())))
    first = next((step for step in steps if _differ(seen, step)), None)
    if first is not None and first <= 1:
        return _from_the_start(seen, steps, first)
    at = _on_the_trail(seen)
    if at is not None:
        return _explained(seen, *at)
    if first is None:
        return None
    return _unseen(seen, steps, first)


def _differ(seen: Mapping[int, WeightHistory], step: int) -> tuple[str, ...]:
    """Names of what differs at a step that all have told of."""
    tables = [one.weights[step].prints for one in seen.values()]
    if len(set(tables)) == 1:
        return ()
    names = next(iter(seen.values())).trained.names
    return tuple(
        name
        for name, prints in zip(names, zip(*tables, strict=False), strict=False)
        if len(set(prints)) > 1
    )


def _from_the_start(
    seen: Mapping[int, WeightHistory], steps: Sequence[int], first: int
) -> ReplicaDivergence | None:
    """They have different weights before the first step already."""
    names, ranks = _differ(seen, first), tuple(seen)
    if not names:  # one of them has fewer tensors: it is another model
        return None
    wrapped = all(one.trained.wrapped for one in seen.values())
    culprits: tuple[int, ...] = ()
    cause = DivergenceCause.START
    if first and 0 in steps:
        changed = {
            rank: hash(one.weights[first].prints)
            for rank, one in seen.items()
            if one.weights[0].prints != one.weights[first].prints
        }
        culprits = _odd(changed, ranks)
        if _loaded_by_some(seen, changed, first):
            cause = DivergenceCause.LOADED
    return ReplicaDivergence(cause, ranks, seen, first, culprits, names, wrapped)


def _on_the_trail(seen: Mapping[int, WeightHistory]) -> tuple[int, bool] | None:
    """The first step at which they differ: before it (True), or after it."""
    before = together([one.before for one in seen.values()])
    after = together([one.after for one in seen.values()])
    parted = _unequal(before), _unequal(after)
    steps = np.flatnonzero(parted[0] | parted[1])
    if not len(steps):
        return None
    return int(steps[0]), bool(parted[0][steps[0]])


def _unequal(numbers: Numbers) -> NDArray[np.bool_]:
    """Steps at which ranks differ, of which all ranks know: [steps] bool."""
    known: NDArray[np.bool_] = (numbers != 0).all(axis=0)
    differ: NDArray[np.bool_] = (numbers != numbers[0]).any(axis=0)
    return known & differ


def _explained(
    seen: Mapping[int, WeightHistory], step: int, is_before: bool
) -> ReplicaDivergence | None:
    """They were alike up to a step: what was it?"""
    ranks = tuple(seen)
    names = _names_from(seen, step)
    wrapped = all(one.trained.wrapped for one in seen.values())
    if is_before and step <= 1:
        return ReplicaDivergence(
            DivergenceCause.START, ranks, seen, step, (), names, wrapped
        )
    if is_before:
        changed = {
            rank: int(one.before[step])
            for rank, one in seen.items()
            if one.before[step] != one.after[step - 1]
        }
        if _caught_up(seen, changed, step):
            return None
        culprits = _odd(changed, ranks)
        some = set(changed) != set(ranks)
        cause = DivergenceCause.OUTSIDE_SOME if some else DivergenceCause.OUTSIDE_ALL
        if _loaded_by_some(seen, changed, step):
            cause = DivergenceCause.LOADED
        return ReplicaDivergence(cause, ranks, seen, step, culprits, names, wrapped)
    if (late := _left_out(seen, step)) is not None:
        cause, culprits = DivergenceCause.SKIPPED, late
        if len(late) > len(ranks) / 2:
            cause = DivergenceCause.ADDED
            culprits = tuple(rank for rank in ranks if rank not in late)
        return ReplicaDivergence(cause, ranks, seen, step, culprits, names, wrapped)
    if len({int(one.gradients[step]) for one in seen.values()}) > 1:
        return ReplicaDivergence(
            DivergenceCause.GRADIENTS, ranks, seen, step, (), names, wrapped
        )
    return _by_the_step(seen, step, names, wrapped)


def _loaded_by_some(
    seen: Mapping[int, WeightHistory], changed: Iterable[int], step: int
) -> bool:
    """Whether those that changed loaded the model before this step, and no other."""
    loading = {
        rank
        for rank, one in seen.items()
        if any(not load.state and load.steps == step - 1 for load in one.loaded)
    }
    return loading == set(changed) and 0 < len(loading) < len(seen)


def _caught_up(
    seen: Mapping[int, WeightHistory], changed: Mapping[int, int], step: int
) -> bool:
    """Whether those that changed came to what others have after more steps.

    So does `Join`, at the end of uneven inputs: ranks count their steps apart then.
    """
    later = {
        rank: {int(n) for n in one.after[step:] if n} for rank, one in seen.items()
    }
    return bool(changed) and all(
        any(to in numbers for other, numbers in later.items() if other != rank)
        for rank, to in changed.items()
    )


def _by_the_step(
    seen: Mapping[int, WeightHistory], step: int, names: tuple[str, ...], wrapped: bool
) -> ReplicaDivergence:
    """With the same weights and gradients, a step gave other weights."""
    ranks = tuple(seen)
    common = set.intersection(*(set(one.weights) for one in seen.values()))
    next_known = min((one for one in common if one >= step), default=None)
    if next_known is not None:
        weights = {rank: one.weights[next_known] for rank, one in seen.items()}
        if len({one.gradients for one in weights.values()}) > 1:
            return ReplicaDivergence(
                DivergenceCause.GRADIENTS, ranks, seen, step, (), names, wrapped
            )
        states = {rank: hash(one.states) for rank, one in weights.items()}
        # After the step another state may be what came of it.
        apart = next_known == step and len(set(states.values())) > 1
        if len({one.settings for one in weights.values()}) > 1 and not (
            apart
            and state_loaded_by_some(seen, step)  # settings are a part of what it loads
        ):
            return ReplicaDivergence(
                DivergenceCause.SETTINGS, ranks, seen, step, (), names, wrapped
            )
        if apart:
            having = {rank for rank in ranks if any(weights[rank].states)}
            culprits = _odd(states, ranks)
            if having != set(ranks):
                culprits = _without_state(seen, having, step)
            return ReplicaDivergence(
                DivergenceCause.STATE, ranks, seen, step, culprits, names, wrapped
            )
    return ReplicaDivergence(
        DivergenceCause.STEP, ranks, seen, step, (), names, wrapped
    )


def state_loaded_by_some(seen: Mapping[int, WeightHistory], step: int) -> bool:
    """Whether some of the ranks loaded a state of the optimizer, and others none.

    Args:
        seen: By rank, what is known of the model.
        step: Before which, from 1.
    """
    loading = {
        rank
        for rank, one in seen.items()
        if any(load.state and load.steps < step for load in one.loaded)
    }
    return 0 < len(loading) < len(seen)


def _without_state(
    seen: Mapping[int, WeightHistory], having: set[int], step: int
) -> tuple[int, ...]:
    """Ranks to blame where some alone have a state before a step.

    Those that lack what the others have loaded, or have had since the step before; but
    those that have it if it comes from nowhere, as that of a warm-up does.
    """
    kept = step > 1 or any(
        load.state and load.steps < step
        for rank in having
        for load in seen[rank].loaded
    )
    return tuple(rank for rank in seen if (rank in having) is not kept)


def _left_out(seen: Mapping[int, WeightHistory], step: int) -> tuple[int, ...] | None:
    """Ranks whose gradient of this step is the others' next one; None: it is not so."""
    by_gradient: dict[int, list[int]] = {}
    for rank, one in seen.items():
        by_gradient.setdefault(int(one.gradients[step]), []).append(rank)
    for gradient, ranks in by_gradient.items():
        others = [one for rank, one in seen.items() if rank not in ranks]
        if (
            gradient
            and others
            and all(gradient in one.gradients[step + 1 : step + 3] for one in others)
        ):
            return tuple(ranks)
    return None


def _unseen(
    seen: Mapping[int, WeightHistory], steps: Sequence[int], first: int
) -> ReplicaDivergence | None:
    """Parameters differ that the trail does not follow."""
    names = _differ(seen, first)
    earlier = [step for step in steps if step < first]
    order = next(iter(seen.values())).trained.names
    places = [order.index(name) for name in names]
    wrapped = all(one.trained.wrapped for one in seen.values())
    ranks = tuple(seen)
    if not names:
        return None
    changing = _changing(seen, names, max(earlier, default=0), first)
    if 0 < len(changing) < len(ranks):
        return ReplicaDivergence(
            DivergenceCause.OUTSIDE_SOME, ranks, seen, first, changing, names, wrapped
        )
    # Of gradients that are averaged, other weights have the same on all ranks, too.
    for step in [*earlier, first]:
        weights = [one.weights[step] for one in seen.values()]
        if any(
            len({one.gradients[at] for one in weights if at < len(one.gradients)}) > 1
            for at in places
        ):
            return ReplicaDivergence(
                DivergenceCause.GRADIENTS, ranks, seen, first, (), names, wrapped
            )
    # A rank that was killed has told of no trail, but of its last looks.
    if first - 1 in earlier:
        parted = _by_the_step(seen, first - 1, names, wrapped)
        if parted.cause in {DivergenceCause.STATE, DivergenceCause.SETTINGS}:
            return parted
    return ReplicaDivergence(
        DivergenceCause.UNSEEN, ranks, seen, first, (), names, wrapped
    )


def _changing(
    seen: Mapping[int, WeightHistory], names: Sequence[str], after: int, first: int
) -> tuple[int, ...]:
    """Ranks that were seen to change one of these parameters between two steps."""
    return tuple(
        rank
        for rank, one in seen.items()
        if any(
            after < each.step <= first and set(each.names) & set(names)
            for each in one.changed
        )
    )


def _names_from(seen: Mapping[int, WeightHistory], step: int) -> tuple[str, ...]:
    """What differs when all was looked at the next time."""
    steps = set.intersection(*(set(one.weights) for one in seen.values()))
    for later in sorted(one for one in steps if one >= step):
        if names := _differ(seen, later):
            return names
    return ()


def _odd(by_rank: Mapping[int, int], ranks: Sequence[int]) -> tuple[int, ...]:
    """Of ranks that changed, those to blame: all of them, or the minority; or none.

    Args:
        by_rank: What those that changed came to.
        ranks: All of them.
    """
    if len(by_rank) < len(ranks):
        return tuple(sorted(by_rank))
    counts = Counter(by_rank.values()).most_common()
    if len(counts) > 1 and counts[0][1] > len(ranks) / 2:
        return tuple(sorted(r for r, one in by_rank.items() if one != counts[0][0]))
    return ()


def _come_together(
    seen: Mapping[int, WeightHistory], parting: ReplicaDivergence
) -> bool:
    """Whether they had the same weights again, or may have had, at a later moment."""
    step = parting.step
    before = together([one.before for one in seen.values()])
    after = together([one.after for one in seen.values()])
    parted = _unequal(before) | _unequal(after)
    if parted[step : step + 1].any():
        known = (before != 0).all(axis=0)[step + 1 :]
        if (
            parting.cause in {DivergenceCause.STEP, DivergenceCause.STATE}
            and not known.any()
        ):
            return True  # what each rank made of its part may have been sent since
        return bool((known & ~_unequal(before)[step + 1 :]).any())
    # The trail follows a part of the tensors alone, and not those that differ.
    steps = set.intersection(*(set(one.weights) for one in seen.values()))
    return any(not _differ(seen, later) for later in steps if later > step)
