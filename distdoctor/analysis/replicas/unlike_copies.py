"""Copies of a model that ranks use together, and that are not the same on them.

They evaluate them and join the results, or train by what they compute, as by a teacher.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.replicas.compared_evaluations import Begun, combined, compared
from distdoctor.analysis.replicas.replica_sets import replicas
from distdoctor.analysis.replicas.weight_history import weight_history
from distdoctor.analysis.source.singled_ranks import by_guards
from distdoctor.model.events import Call, Wrapped
from distdoctor.model.observations.gradients import Gradients
from distdoctor.model.observations.replicas import Changed, Copied, Weights
from distdoctor.model.run import Run


@dataclass(frozen=True, slots=True)
class UnlikeCopies:
    """Ranks used copies that differ, and combined what came of it.

    Attributes:
        ranks: All of them.
        begun: By rank, when its copy was put into evaluation mode, or used.
        names: Parameters that differ.
        combined: By rank, the call that combined the results; empty if they were
            trained by.
        culprits: Ranks that alone changed their copy, or alone did not.
        changes: By rank, a line that changes the copy.
        moved: Ranks that did.
        wrapping: By rank, the wrapper that made the model alike, where the copies have
            begun with other weights; empty if that is not known.
    """

    ranks: tuple[int, ...]
    begun: Mapping[int, Copied]
    names: tuple[str, ...]
    combined: Mapping[int, Call]
    culprits: tuple[int, ...]
    changes: Mapping[int, Changed]
    moved: tuple[int, ...]
    wrapping: Mapping[int, Wrapped] = field(default_factory=dict)


def unlike_copies(run: Run) -> Iterator[UnlikeCopies]:
    """Copies that some ranks keep up to date, and all evaluate; each once.

    Args:
        run: The run that is judged.

    Yields:
        One for each copy and line of evaluation.
    """
    lines = set()
    for one in compared(run, _begun, _compare):
        # A copy that is made for each evaluation is another one each time.
        begun = one.begun[one.ranks[0]]
        if (begun.model, begun.place) not in lines:
            lines.add((begun.model, begun.place))
            yield one


def _begun(run: Run, rank: int) -> dict[tuple[int, int], Begun[Copied]]:
    """A rank's evaluations by the number of the copy, and in their order."""
    found: dict[tuple[int, int], Begun[Copied]] = {}
    counts: dict[int, int] = {}
    if not run.told(Copied, rank=rank):
        return found
    for calls, event in run.told(Weights, Gradients, Copied, rank=rank):
        if isinstance(event, Weights | Gradients):  # training goes on
            for key, (at, first, end) in found.items():
                found[key] = at, first, min(end, calls)
        if not isinstance(event, Copied):
            continue
        last = event.copy, counts.get(event.copy, 0)
        if last in found:
            begun, first, end = found[last]
            found[last] = begun, first, min(end, calls)
        if not event.over:
            counts[event.copy] = last[1] + 1
            key = event.copy, last[1] + 1
            found[key] = event, calls, len(run.rows_of(rank))
    return found


def _compare(run: Run, begun: Mapping[int, Begun[Copied]]) -> UnlikeCopies | None:
    found = _unlike(run, {rank: one[0] for rank, one in begun.items()})
    if found is None:
        return None
    calls = combined(run, begun)
    return replace(found, combined=calls) if len(calls) == len(begun) else None


def _unlike(run: Run, events: Mapping[int, Copied]) -> UnlikeCopies | None:
    """Copies of one model, as they were used once, that only some ranks had changed."""
    copies = list(events.values())
    if len({(one.model, one.names, one.steps) for one in copies}) > 1:
        return None
    moved = tuple(rank for rank, one in events.items() if one.moved)
    if not 0 < len(moved) < len(events):
        moved = _advanced(run, events)
    if not 0 < len(moved) < len(events):
        return None
    names = _names_apart(run, copies, tuple(events))
    if not names:
        return None
    changes = {
        rank: change
        for rank in moved
        for change in run.of(Changed, rank)
        if change.model == events[rank].copy
    }
    culprits = _culprits(run, tuple(events), moved, changes)
    return UnlikeCopies(tuple(events), events, names, {}, culprits, changes, moved)


def _out_of_step(run: Run, events: Mapping[int, Copied]) -> UnlikeCopies | None:
    """Copies that all ranks had changed, at times of their own each."""
    copies = list(events.values())
    if len({(one.model, one.names, one.steps) for one in copies}) > 1:
        return None
    names = _names_apart(run, copies, tuple(events))
    if not names or not all(one.moved for one in copies):
        return None
    changes = {
        rank: change
        for rank, one in events.items()
        for change in run.of(Changed, rank)
        if change.model == one.copy
    }
    return UnlikeCopies(tuple(events), events, names, {}, (), changes, tuple(events))


def _names_apart(
    run: Run, copies: Sequence[Copied], ranks: tuple[int, ...]
) -> tuple[str, ...]:
    """Parameters that the model has alike on all ranks, and its copies have not."""
    common = _alike(run, copies[0].model, ranks)
    return tuple(
        name
        for name, *numbers in zip(
            copies[0].names, *(one.prints for one in copies), strict=False
        )
        if len(set(numbers)) > 1 and name in common
    )


def _culprits(
    run: Run,
    ranks: tuple[int, ...],
    moved: tuple[int, ...],
    changes: Mapping[int, Changed],
) -> tuple[int, ...]:
    """The fewer; of as many, those that the source gives a way of their own."""
    others = tuple(rank for rank in ranks if rank not in moved)
    if len(moved) != len(others):
        return min(moved, others, key=len)
    for change in changes.values():
        if change.place is not None:
            single = by_guards(program_of(run), change.place)
            if single & set(others) and not single & set(moved):
                return others
    return moved


def _advanced(run: Run, events: Mapping[int, Copied]) -> tuple[int, ...]:
    """Ranks that do not use the weights that the model was trained from, in a copy.

    It may be filled on each rank, from a moving average that only some keep up to date.
    """
    by_rank = weight_history(run).get(next(iter(events.values())).model, {})
    found = []
    for rank, one in events.items():
        model = by_rank.get(rank)
        start = model.weights.get(0) if model else None
        if model is None or start is None:
            return ()
        first = dict(zip(model.trained.names, start.prints, strict=False))
        if any(
            first.get(name) != now
            for name, now in zip(one.names, one.prints, strict=False)
        ):
            found.append(rank)
    return tuple(found)


def unlike_teachers(run: Run) -> Iterator[UnlikeCopies]:
    """Copies that all ranks train by, and do not keep up to date alike; each once.

    In each step they compute something, of which backward follows. What is computed in
    each step is told behind steps 1, 2, 4, 8 and so on; evaluations lie evenly apart.

    Args:
        run: The run that is judged.

    Yields:
        One for each copy and set of replicas.
    """
    for ranks in () if run.simulated else replicas(run):
        if not run.has_seen(ranks):
            continue
        uses = {rank: _uses(run, rank) for rank in ranks}
        for copy in sorted(set.intersection(*map(set, uses.values()))):
            by_rank = {rank: of_rank[copy] for rank, of_rank in uses.items()}
            steps = set.intersection(*map(set, by_rank.values()))
            if len(steps) < _LEAST_USES or not all(
                map(_in_each_step, by_rank.values())
            ):
                continue
            last = {rank: one[max(steps)] for rank, one in by_rank.items()}
            found = _unlike(run, last) or _out_of_step(run, last)
            if found is None or len({one.place for one in last.values()}) > 1:
                continue
            first = {rank: one[min(steps)] for rank, one in by_rank.items()}
            if len(found.moved) == len(ranks) and _begun_apart(run, first):
                found = replace(found, wrapping=_wrapping(run, ranks))
            yield found


def _begun_apart(run: Run, first: Mapping[int, Copied]) -> bool:
    """Whether copies were unlike from the start, and not for the times of an update.

    Who takes over the model's weights as they are has what the model weighed at one of
    its steps; two ranks that hold neither that nor the same have begun with other
    weights, or move them otherwise.
    """
    by_rank = weight_history(run).get(next(iter(first.values())).model, {})
    strange = set()
    for rank, one in first.items():
        if one.steps > _FIRST_USES or rank not in by_rank:
            return False
        weighed = {
            tuple(
                dict(zip(by_rank[rank].trained.names, each.prints, strict=False)).get(
                    name
                )
                for name in one.names
            )
            for each in by_rank[rank].weights.values()
        }
        if one.prints not in weighed:
            strange.add(one.prints)
    return len(strange) > 1


def _wrapping(run: Run, ranks: tuple[int, ...]) -> dict[int, Wrapped]:
    """What made the model of each rank alike; empty if more than one may have."""
    found = {
        rank: [one for one in run.of(Wrapped, rank) if one.how == "ddp"]
        for rank in ranks
    }
    if any(len(of_rank) != 1 for of_rank in found.values()):
        return {}
    return {rank: of_rank[0] for rank, of_rank in found.items()}


_LEAST_USES = 3
"""Steps behind which a copy was used by all: three powers of two lie unevenly."""

_FIRST_USES = 2
"""Steps before which a copy is looked at, to say what it began with."""


def _uses(run: Run, rank: int) -> dict[int, dict[int, Copied]]:
    """Of each copy, by the steps done before, how it was when it began to compute."""
    found: dict[int, dict[int, Copied]] = {}
    for event in run.of(Copied, rank):
        if not event.over:
            found.setdefault(event.copy, {})[event.steps] = event
    return found


def _in_each_step(uses: Mapping[int, Copied]) -> bool:
    return all(step & (step - 1) == 0 for step in uses)


def _alike(run: Run, model: int, ranks: tuple[int, ...]) -> set[str]:
    """Parameters of a model that were the same on all ranks when last looked at."""
    by_rank = weight_history(run).get(model, {})
    seen = [by_rank[rank] for rank in ranks if rank in by_rank]
    if len(seen) < len(ranks) or len({one.alike for one in seen}) > 1:
        return set()
    steps = set.intersection(*(set(one.weights) for one in seen))
    if not steps:
        return set()
    tables = [one.weights[max(steps)].prints for one in seen]
    return {
        name
        for name, *numbers in zip(seen[0].trained.names, *tables, strict=False)
        if len(set(numbers)) == 1
    }
