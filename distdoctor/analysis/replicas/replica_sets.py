"""Which ranks train one model together, each on its part of the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.memoize import memoize
from distdoctor.analysis.replicas.weight_history import WeightHistory, weight_history
from distdoctor.model.events import Wrapped
from distdoctor.model.observations.gradients import Gradients, Holds, Sent
from distdoctor.model.operations import OPERATIONS
from distdoctor.model.run import Run

_SHARE = 0.25
"""Of a model's elements, that averaging by hand sends in each step at the least.

Less is a metric, or a loss. Source: chosen; gradients in half precision, and those of
all layers but a few, are more.
"""

_LEAST_STEPS = 2
"""At which ranks must have stepped with the same gradient of a parameter, if they have
others of the rest."""

_LEAST_SHARED = 17
"""Elements of parameters that ranks share, if not all: fewer may be equal by chance."""

_SENDS = np.zeros(256, np.bool_)  # by code of an operation
_SENDS[: len(OPERATIONS)] = [bool(one.payload and one.c10d) for one in OPERATIONS]

_REDUCING = [
    code
    for code, operation in enumerate(OPERATIONS)
    if operation.name in {"all_reduce", "reduce"}
]


@memoize
def replicas(run: Run) -> tuple[tuple[int, ...], ...]:
    """Sets of ranks, each of at least two, that average their gradients or weights.

    Ranks that share a model in another way, as tensor and pipeline parallelism do, read
    the same data on purpose.

    Args:
        run: The run that is judged.

    Returns:
        Each set ascending, and the sets in order.
    """
    return _replicas(run)


def _replicas(run: Run) -> tuple[tuple[int, ...], ...]:
    sets = wrapped_together(
        run, (event for rank in run.seen for event in run.of(Wrapped, rank))
    )
    for seen in weight_history(run).values():
        sets.update(averaging_gradients(run, seen))
        sets.update(_averaging_weights(seen))
    return tuple(sorted(ranks for ranks in sets if len(ranks) > 1))


def wrapped_together(run: Run, events: Iterable[Wrapped]) -> set[tuple[int, ...]]:
    """The sets of ranks that wrappers connect; each is hashed as often as it is told.

    Args:
        run: The run that is judged.
        events: Wrapped models, of all ranks.

    Returns:
        Each set as the wrappers told it; all ranks where one told none.
    """
    told = {event.ranks for event in events}
    everyone = tuple(range(run.world_size))
    return {ranks or everyone for ranks in told}


def averaging_gradients(
    run: Run, seen: Mapping[int, WeightHistory]
) -> list[tuple[int, ...]]:
    """Sets of ranks that make steps with one gradient, and send enough to have it.

    Ranks also have the same gradient, bit by bit, when they compute the same, each for
    itself: therefore they must have communicated in that very step; and what they sent
    must have been gradients if backward gave the same on all of them.

    Args:
        run: The run.
        seen: By rank, what was seen of one model.

    Returns:
        Sets of at least two ranks, each ascending.
    """
    by_gradient: dict[object, list[int]] = {}
    for rank, one in seen.items():
        sent = _sent(run, rank, one)
        if len(sent) > 1 and len({gradients for _, gradients in sent}) == 1:
            continue  # of a linear loss, say: it depends on neither data nor weights
        for step, gradients in sent:
            key = step, gradients, one.alike
            by_gradient.setdefault(key, []).append(rank)
    sets = {
        tuple(ranks)
        for ranks in by_gradient.values()
        if len(ranks) > 1
        and _can_meet(run, ranks)
        and (
            not _compute_alike(run, ranks, {rank: seen[rank] for rank in ranks})
            or all(_sends_gradients(run, rank, seen[rank]) for rank in ranks)
        )
    }
    # Ranks that part later are one set until then.
    return [one for one in sets if not any(set(one) < set(other) for other in sets)]


def sharing(
    run: Run, seen: Mapping[int, WeightHistory]
) -> list[tuple[tuple[int, ...], tuple[str, ...]]]:
    """Sets of ranks that step with one gradient of some parameters, and their names.

    The other parameters belong to one rank each, as experts do. Ranks that compute the
    same gradient, as they do with the parts that tensor parallelism leaves whole, are
    no such set; neither are those that meet by chance, as gradients of very few
    elements do, or at one step alone.

    Args:
        run: The run.
        seen: By rank, what was seen of one model.

    Returns:
        Pairs of the ranks, ascending, and the names.
    """
    whole = [set(ranks) for ranks in averaging_gradients(run, seen)]
    by_trace: dict[tuple[str, object], list[int]] = {}
    for rank, one in seen.items():
        for name, trace in _traces(one):
            by_trace.setdefault((name, trace), []).append(rank)
    names: dict[tuple[int, ...], list[str]] = {}
    for (name, _), ranks in by_trace.items():
        if len(ranks) > 1:
            names.setdefault(tuple(ranks), []).append(name)
    return [
        (ranks, tuple(shared))
        for ranks, shared in names.items()
        if not any(set(ranks) <= one for one in whole)
        and _can_meet(run, ranks)
        and all(_sends_for(run, rank, seen[rank], shared) for rank in ranks)
        and not _compute_parts_alike(run, ranks, shared)
    ]


def _traces(seen: WeightHistory) -> Iterator[tuple[str, object]]:
    """Each parameter that always has a gradient, and what that was at all steps."""
    steps = [step for step in sorted(seen.weights) if step]
    gradients = [seen.weights[step].gradients for step in steps]
    whole = all(len(one) == len(seen.trained.names) for one in gradients)
    if len(steps) < _LEAST_STEPS or not whole:
        return
    for n, name in enumerate(seen.trained.names):
        trace = tuple(one[n] for one in gradients)
        if all(trace) and len(set(trace)) > 1:
            yield name, (seen.trained.numels[n], tuple(steps), trace)


def _sends_for(run: Run, rank: int, seen: WeightHistory, names: Sequence[str]) -> bool:
    """Whether a rank sends before each step about as much as these have."""
    numels = dict(zip(seen.trained.names, seen.trained.numels, strict=True))
    shared = sum(numels[name] for name in names)
    volume = sent_by(run, rank)
    calls = last = 0
    for step in sorted(seen.weights):
        sent = int(volume[seen.calls[step]] - volume[calls])
        if step and sent < _SHARE * shared * (step - last):
            return False
        calls, last = seen.calls[step], step
    return shared >= _LEAST_SHARED


def _compute_parts_alike(run: Run, ranks: Sequence[int], names: Sequence[str]) -> bool:
    """Whether backward gave the same of one of these parameters on all ranks."""
    gave = [_own(run, rank) for rank in ranks]
    common = set(gave[0]).intersection(*gave[1:])
    return any(
        key[2] in names and len({one[key] for one in gave}) == 1 for key in common
    )


def _own(run: Run, rank: int) -> dict[tuple[int, int, str], float]:
    """By optimizer, step and parameter, what backward gave on a rank."""
    found: dict[tuple[int, int, str], float] = {}
    names: dict[int, tuple[str, ...]] = {}
    for _, event in run.told(Holds, Gradients, rank=rank):
        if isinstance(event, Holds):
            names[event.optimizer] = event.names
        elif isinstance(event, Gradients) and event.optimizer in names:
            held = names[event.optimizer]
            for n, number in zip(event.probed, event.own, strict=False):
                if n < len(held):
                    found[event.optimizer, event.step, held[n]] = number
    return found


def _sent(
    run: Run, rank: int, seen: WeightHistory
) -> list[tuple[int, tuple[int, ...]]]:
    """Steps before which a rank sent about as much as the model has, with gradients."""
    known: dict[WeightHistory, list[tuple[int, tuple[int, ...]]]]
    known = run.memory.setdefault("sent before steps", {})
    if seen not in known:
        known[seen] = list(_sent_before(run, rank, seen))
    return known[seen]


def _sent_before(
    run: Run, rank: int, seen: WeightHistory
) -> Iterator[tuple[int, tuple[int, ...]]]:
    least = sum(seen.trained.numels) * _SHARE
    volume = sent_by(run, rank)
    calls, last = 0, 0
    for step, weights in seen.weights.items():
        sent = volume[seen.calls[step]] - volume[calls]
        if step and sent >= least * (step - last) and any(weights.gradients):
            yield step, weights.gradients
        calls, last = seen.calls[step], step


def sent_by(run: Run, rank: int) -> NDArray[np.int64]:
    """Elements that a rank had sent before each of its calls, and at the end.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.

    Returns:
        Shape [calls + 1], int64, ascending; not to be changed.
    """
    rows = run.rows_of(rank)
    mine = slice(rows.start, rows.stop)
    # Most ranks do what the one before did.
    key = tuple(run.column(name)[mine].tobytes() for name in ("spec", "op"))
    before = run.memory.get("sent by a rank")
    if before is None or before[0] != key:
        sent = sent_in_each(run, rank)
        volume = np.zeros(len(sent) + 1, np.int64)
        np.cumsum(sent, out=volume[1:])
        run.memory["sent by a rank"] = before = key, volume
    known: NDArray[np.int64] = before[1]
    return known


def sent_in_each(run: Run, rank: int) -> NDArray[np.int64]:
    """Elements that a rank sent in each of its calls.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.

    Returns:
        Shape [calls], int64; 0 where a call only receives.
    """
    if "numels" not in run.memory:
        numels = [sum(one.numel for one in spec.tensors) for spec in run.specs]
        run.memory["numels"] = np.array(numels, np.int64)
    rows = run.rows_of(rank)
    mine = slice(rows.start, rows.stop)
    sent: NDArray[np.int64] = run.memory["numels"][run.column("spec")[mine]]
    sent *= _SENDS[run.column("op")[mine]]
    return sent


def _compute_alike(
    run: Run, ranks: Sequence[int], seen: Mapping[int, WeightHistory]
) -> bool:
    """Whether backward gave the same on all ranks, so that no averaging is needed.

    Of other models, such as one that is sharded among ranks, it may give what differs.
    """
    known: dict[object, bool] = run.memory.setdefault("computed alike", {})
    key = tuple(ranks), tuple(seen[rank] for rank in ranks)
    if key not in known:
        known[key] = _gave_alike(run, ranks, seen)
    return known[key]


def _gave_alike(
    run: Run, ranks: Sequence[int], seen: Mapping[int, WeightHistory]
) -> bool:
    own = []
    for rank in ranks:
        among = optimizers_of(run, rank, seen[rank])
        looks = [one for one in run.of(Gradients, rank) if one.optimizer in among]
        own.append({(one.optimizer, one.step): one.own for one in looks if one.own})
    common = set(own[0]).intersection(*own[1:])
    return bool(common) and all(len({one[key] for one in own}) == 1 for key in common)


def optimizers_of(run: Run, rank: int, seen: WeightHistory) -> set[int]:
    """The optimizers that hold a model, by names, or else by the elements of each.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.
        seen: What was seen of the model on that rank.

    Returns:
        The numbers of the optimizers; all of the rank's where neither names nor sizes
        tell.
    """
    holds = run.of(Holds, rank)
    names, numels = set(seen.trained.names), Counter(seen.trained.numels)
    return (
        {one.optimizer for one in holds if names <= set(one.names)}
        or {one.optimizer for one in holds if numels <= Counter(one.sizes)}
        or {one.optimizer for one in run.of(Gradients, rank)}
    )


def _sends_gradients(run: Run, rank: int, seen: WeightHistory) -> bool:
    """Whether what a rank sent, by lines of its own or by hooks, were its gradients."""
    sizes: dict[int, tuple[int, ...]] = {}
    for _, event in run.told(Holds, Sent, rank=rank):
        if isinstance(event, Holds):
            sizes[event.optimizer] = event.sizes
        elif isinstance(event, Sent) and event.optimizer in sizes:
            numels = sizes[event.optimizer]
            pairs = zip(event.positions, event.factors, strict=False)
            sent = [numels[n] for n, multiple in pairs if multiple and n < len(numels)]
            # Of a few elements nobody knows whether they are a multiple.
            if 2 * sum(sent) > sum(numels):
                return True
    return _reduces_each(run, rank, seen)


def _reduces_each(run: Run, rank: int, seen: WeightHistory) -> bool:
    """Whether a rank reduced something of each parameter's size, again and again."""
    rows = run.rows_of(rank)
    mine = slice(rows.start, rows.stop)
    reducing = np.isin(run.column("op")[mine], _REDUCING)
    specs = run.column("spec")[mine][reducing]
    times: dict[int, int] = {}
    for at, count in zip(*np.unique(specs, return_counts=True), strict=True):
        for tensor in run.specs[at].tensors:
            times[tensor.numel] = times.get(tensor.numel, 0) + int(count)
    return all(times.get(numel, 0) > 1 for numel in seen.trained.numels)


def _can_meet(run: Run, ranks: Sequence[int]) -> bool:
    """Whether there is a group that has all of these ranks."""
    wanted = set(ranks)
    return any(wanted <= set(group.ranks) for group in run.groups)


def _averaging_weights(seen: Mapping[int, WeightHistory]) -> Iterator[tuple[int, ...]]:
    """Sets of ranks whose weights differed after a step, and not before the next."""
    joined: dict[object, dict[int, int]] = {}
    for rank, one in seen.items():
        for step in one.changes().tolist():
            key = step, int(one.before[step]), one.alike
            joined.setdefault(key, {})[rank] = int(one.after[step - 1])
    for after in joined.values():
        if len(set(after.values())) > 1:
            yield tuple(after)
