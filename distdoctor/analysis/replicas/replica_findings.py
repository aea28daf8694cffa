"""What is told of replicas that part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from distdoctor.analysis.causes import capital, has
from distdoctor.analysis.data.fed_batches import fed_alike
from distdoctor.analysis.data.passes import passes
from distdoctor.analysis.data.reading_findings import locations
from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.replicas.replica_divergence import (
    DivergenceCause,
    ReplicaDivergence,
    replica_divergences,
)
from distdoctor.analysis.replicas.whole_parts import made_at
from distdoctor.analysis.source.program import called, calls_in
from distdoctor.analysis.source.rank_origins import DRAWS, guarded
from distdoctor.errors import CauseUnknown
from distdoctor.model.events import Event, Observation, Place
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.observations.data import LOADER, SAMPLER
from distdoctor.model.observations.gradients import Holds
from distdoctor.model.observations.replicas import Weights
from distdoctor.model.observations.rng import Seeded
from distdoctor.model.run import Run, named

ROUNDING = 1e-5
"""Relative difference of weights up to which they differ by rounding alone.

Source: chosen; float32 has 6e-8, and steps let it grow.
"""

_MOST_EXHIBITS = 8
_MOST_NAMES = 3


def findings(run: Run, *causes: DivergenceCause) -> Iterator[Finding]:
    """Replicas that part for one of these causes, each cause once.

    A job with several models has them made, or changed, by the same code.

    Args:
        run: The run that is judged.
        *causes: What is to explain them.

    Yields:
        A finding for each cause and its culprits.
    """
    by_cause: dict[
        tuple[DivergenceCause, tuple[int, ...]], list[ReplicaDivergence]
    ] = {}
    for parting in replica_divergences(run):
        if parting.cause in causes:
            key = parting.cause, parting.culprits
            by_cause.setdefault(key, []).append(parting)
    for (cause, _), same in by_cause.items():
        story = _STORIES[cause](same[0])
        if cause is DivergenceCause.WHOLE and fed_alike(run, same[0].ranks) is False:
            story += ", for they are given different batches"
        yield _finding(run, same[0], story, len(same) - 1)


def require_explained(run: Run) -> None:
    """Raise CauseUnknown if replicas part with their gradients.

    To be called after all that is proven has been yielded. What makes gradients differ
    is for checks of gradients to tell.

    Args:
        run: The run that is judged.

    Raises:
        CauseUnknown: It says which ranks, and from which step on.
    """
    for parting in replica_divergences(run):
        if parting.cause is DivergenceCause.GRADIENTS and not _is_rounding(parting):
            raise CauseUnknown(
                f"{named(parting.ranks)} step with different gradients, and their "
                f"weights part at step {parting.step}: {_figures(parting)}; why is "
                "not known"
            )


def _is_rounding(parting: ReplicaDivergence) -> bool:
    return 0 < _gap(parting)[1] <= ROUNDING


def _finding(run: Run, parting: ReplicaDivergence, story: str, more: int) -> Finding:
    gap, _, where = _gap(parting)
    figures = _figures(parting)
    if gap:
        figures += f", by up to {gap:.3g} in the elements looked at ({where})"
    others = "of the job's models"
    if parting.cause is DivergenceCause.WHOLE:
        others = "sets of ranks" if more > 1 else "set of ranks"
    also = f"; {more} more {others} likewise" if more else ""
    return Finding(
        message=f"{story}: {figures}{also}.",
        exhibits=_exhibits(parting),
        culprits=parting.culprits,
        victims=tuple(r for r in parting.ranks if r not in parting.culprits)
        if parting.culprits
        else (),
        locations=tuple(_locations(run, parting)),
        certainty=_certainty(parting),
        details={
            "cause": str(parting.cause),
            "model": parting.model,
            "step": parting.step,
            "parameters": list(parting.names[:_MOST_EXHIBITS]),
            "largest sampled difference": gap,
        },
        severity=Severity.WARNING if _is_rounding(parting) else None,
    )


def _certainty(parting: ReplicaDivergence) -> Certainty:
    unsure = {DivergenceCause.UNSEEN, DivergenceCause.STEP, DivergenceCause.WHOLE}
    return Certainty.LIKELY if parting.cause in unsure else Certainty.PROVED


def _figures(parting: ReplicaDivergence) -> str:
    """How many parameters differ, and which."""
    names = parting.names
    if not names:
        return f"the weights of {named(parting.ranks)} differ"
    whole = len(parting.seen[parting.ranks[0]].trained.names)
    listed = ", ".join(names[:_MOST_NAMES]) + ", …" * (len(names) > _MOST_NAMES)
    return f"{len(names)} of {whole} parameters differ ({listed})"


def _gap(parting: ReplicaDivergence) -> tuple[float, float, str]:
    """The largest difference in the elements that were sampled when last looked at.

    Returns:
        The difference, its ratio to the largest of these elements, and the parameter.
    """
    seen = parting.seen.values()
    steps = set.intersection(*(set(one.weights) for one in seen))
    for step in sorted(steps, reverse=True):
        samples = [one.weights[step].samples for one in seen]
        if (
            len({len(one) for one in samples}) > 1
            or not samples[0]
            or step < parting.step
        ):
            continue
        gaps = [max(values) - min(values) for values in zip(*samples, strict=True)]
        gap = max(gaps)
        place = gaps.index(gap) // (
            len(gaps) // len(parting.seen[parting.ranks[0]].trained.names)
        )
        scale = max(map(abs, chain.from_iterable(samples)))
        names = parting.seen[parting.ranks[0]].trained.names
        return gap, gap / scale if scale else 0.0, names[place]
    return 0.0, 0.0, ""


def _exhibits(parting: ReplicaDivergence) -> tuple[Event, ...]:
    """One rank for each state of the weights, and the lines of changes."""
    shown: dict[object, Event] = {}
    changes: list[Event] = []
    for rank, one in parting.seen.items():
        changes += one.changed[:1] if rank in parting.culprits else []
        weights = _at(one.weights, parting.step)
        if weights is not None:
            event = one.whole.weights[weights.step]
            shown.setdefault((weights.prints, rank in parting.culprits), event)
        else:
            shown.setdefault(rank in parting.culprits, one.whole.trained)
    return (*changes[:_MOST_EXHIBITS], *list(shown.values())[:_MOST_EXHIBITS])


def _at(weights: dict[int, Weights], step: int) -> Weights | None:
    """What was told at a step, or next after it, or last before."""
    later = [one for one in weights if one >= step]
    return weights[min(later) if later else max(weights)] if weights else None


# --- lines ---


def _locations(run: Run, parting: ReplicaDivergence) -> Iterator[Location]:
    """Lines, most telling first: of changes, of what was made, of the step."""
    seen = parting.seen
    blamed = parting.culprits or parting.ranks
    role = Role.CULPRIT if parting.culprits else Role.PARTY
    if parting.cause is DivergenceCause.LOADED:
        loads = _loads(parting, blamed, state=False)
        yield from _guards(run, parting, loads)
        yield from _grouped(loads, role, "loads on these ranks only")
    changes = [(r, one.place) for r in blamed for one in seen[r].changed[:1]]
    yield from _guards(run, parting, changes)
    yield from _grouped(changes, role, "changes the weights")
    steps = [(r, _place(_at(seen[r].weights, max(parting.step, 1)))) for r in blamed]
    if parting.cause is DivergenceCause.START and not parting.wrapped:
        if 0 < len(parting.names) < len(seen[parting.ranks[0]].trained.names):
            sent = [(r, p) for r in parting.ranks for p in _broadcasts(run, r)]
            yield from _grouped(sent, role, "broadcasts others, and not these")
        made = [(r, seen[r].trained.place) for r in parting.ranks]
        yield from _grouped(made, role, "makes the model")
        seeds = _seeds(run, parting)
        yield from _grouped(seeds, role, "gives each rank a seed of its own")
        yield from _grouped(_optimizers(parting, parting.ranks), role, _MAKES)
        yield from _grouped(steps, Role.PARTY, "makes the first step")
    elif parting.cause is DivergenceCause.START:
        yield from _grouped(_loads(parting, blamed, state=False), role, "loads it")
        wraps = [(r, _place(seen[r].weights.get(0))) for r in blamed]
        yield from _grouped(wraps, role, "wraps the model, which is changed later")
        yield from _grouped(steps, Role.PARTY, "makes the first step")
    elif parting.cause is DivergenceCause.STATE:
        loads = _loads(parting, parting.ranks, state=True)
        yield from _guards(run, parting, loads)
        yield from _grouped(loads, role, "loads the optimizer's state")
        yield from _grouped(_optimizers(parting, blamed), role, _MAKES)
        yield from _grouped(steps, Role.PARTY, "makes the step")
    elif parting.cause in {
        DivergenceCause.LOADED,
        DivergenceCause.OUTSIDE_SOME,
        DivergenceCause.OUTSIDE_ALL,
    }:
        if parting.cause is not DivergenceCause.LOADED:
            yield from _grouped(_loads(parting, blamed, state=False), role, "loads it")
        yield from _grouped(steps, role, "makes steps; the change is between two")
    elif parting.cause is DivergenceCause.WHOLE:
        if fed_alike(run, parting.ranks) is False:
            read = [one for rank in parting.ranks for one in passes(run, rank)]
            yield from locations(run, read, (SAMPLER, LOADER), parting.ranks)
        else:
            made = [(r, one) for r in blamed for one in made_at(run, parting.names)]
            yield from _grouped(made, role, "makes what each holds whole")
        yield from _grouped(steps, role, "makes the step")
    else:
        draws = [(r, one) for r in blamed for one in _draws(run, r)]
        yield from _grouped(draws, role, "draws in the optimizer's step")
        yield from _grouped(steps, role, "makes the step")
        yield from _grouped(_optimizers(parting, blamed), Role.PARTY, _MAKES)


def _draws(run: Run, rank: int) -> list[Place]:
    """Lines of an optimizer of the user's own that draw random numbers."""
    kinds = {one.kind for one in run.of(Holds, rank)}
    return [
        Place(function.file, call.lineno, function.name)
        for function in program_of(run).functions
        if function.is_method and function.name.split(".")[-2] in kinds
        for call in calls_in(function)
        if called(call) in DRAWS
    ][:_MOST_DRAWS]


_MOST_DRAWS = 3


_MAKES = "makes the optimizer"


def _guards(
    run: Run, parting: ReplicaDivergence, done: Sequence[tuple[int, Place | None]]
) -> Iterator[Location]:
    """Lines under a test of the rank by which only some come to what they did.

    Those are the culprits, or those that have done what the culprits lack.
    """
    doing = {rank for rank, _ in done}
    if doing & set(parting.culprits):
        doing |= set(parting.culprits)
    others = [rank for rank in parting.ranks if rank not in doing]
    if not parting.culprits or not others:
        return
    found: list[tuple[int, Place | None]] = []
    for rank, place in done:
        if place is not None:
            here = guarded(program_of(run), place, rank, others, run.world_size)
            found.append((rank, None if here == place else here))
    yield from _grouped(found, Role.CULPRIT, "only on these ranks")


def _seeds(run: Run, parting: ReplicaDivergence) -> list[tuple[int, Place | None]]:
    """Where the ranks last seeded torch before the model was made, if not alike."""
    last: dict[int, Seeded] = {}
    for rank in parting.ranks:
        for event in run.of(Observation, rank):
            if event is parting.seen[rank].trained:
                break
            if isinstance(event, Seeded) and event.stream == "torch":
                last[rank] = event
    unlike = len({event.seed for event in last.values()}) > 1
    whole = len(last) == len(parting.ranks)
    return [(rank, event.place) for rank, event in last.items() if unlike and whole]


def _broadcasts(run: Run, rank: int) -> list[Place]:
    """Lines of the user's own that broadcast floating-point tensors before any step."""
    rows = run.rows_of(rank)
    begun = [at for at, _ in run.told(Weights, rank=rank)]
    calls = [run.call(row) for row in rows[: min(begun, default=0)]]
    places = {
        call.place: None
        for call in calls
        if call.op == "broadcast" and not call.layer and call.place is not None
        if any("float" in tensor.dtype for tensor in call.tensors)
    }
    return list(places)[:_MOST_BROADCASTS]


_MOST_BROADCASTS = 2  # with more of them a list says nothing


def _place(weights: Weights | None) -> Place | None:
    return None if weights is None else weights.place


def _optimizers(
    parting: ReplicaDivergence, ranks: Iterable[int]
) -> list[tuple[int, Place | None]]:
    return [(r, one.place) for r in ranks for one in parting.seen[r].optimizers[:1]]


def _loads(
    parting: ReplicaDivergence, ranks: Iterable[int], *, state: bool
) -> list[tuple[int, Place | None]]:
    """Lines that loaded the model, or its optimizer, last before they parted."""
    return [
        (rank, one.place)
        for rank in ranks
        for one in [
            load
            for load in parting.seen[rank].loaded
            if load.state is state and load.steps < max(parting.step, 1)
        ][-1:]
    ]


def _grouped(
    places: Iterable[tuple[int, Place | None]], role: Role, remark: str
) -> Iterator[Location]:
    ranks: dict[Place, list[int]] = {}
    for rank, place in places:
        if place is not None:
            ranks.setdefault(place, []).append(rank)
    for place, who in ranks.items():
        yield Location(place, tuple(sorted(who)), role, remark)


# --- words ---


def _start(parting: ReplicaDivergence) -> str:
    who = named(parting.ranks)
    if not parting.wrapped:
        return (
            f"{capital(who)} average their gradients, and made the first step from "
            "different weights: nobody broadcast any, or they were changed behind that"
        )
    if not parting.step:
        return f"DistributedDataParallel left the weights of {who} different"
    changing = named(parting.culprits or parting.ranks)
    return (
        f"After DistributedDataParallel had made the weights of {who} alike, and "
        f"before step {parting.step}, {changing} changed them; they are out of sync "
        "from the start"
    )


def _loaded(parting: ReplicaDivergence) -> str:
    blamed = parting.culprits
    others = [rank for rank in parting.ranks if rank not in blamed]
    return (
        f"{capital(named(blamed))} alone loaded a checkpoint before step "
        f"{parting.step}, when the ranks' weights were alike; {named(others)} "
        f"{has(others)} the weights from before, and training goes on with both"
    )


def _outside_some(parting: ReplicaDivergence) -> str:
    blamed = parting.culprits or parting.ranks
    alone = " alone" if len(blamed) == 1 else ""
    return (
        f"{capital(named(blamed))}{alone} changed the weights in place between step "
        f"{parting.step - 1} and step {parting.step}, outside of the optimizer"
    )


def _outside_all(parting: ReplicaDivergence) -> str:
    return (
        f"{capital(named(parting.ranks))} changed the weights outside of the optimizer "
        f"between step {parting.step - 1} and step {parting.step}, each in its own way"
    )


def _skipped(parting: ReplicaDivergence) -> str:
    blamed = parting.culprits
    return (
        f"{capital(named(blamed))} left out the optimizer's step {parting.step} that "
        f"the others made with the same gradient, and {has(blamed)} other weights since"
    )


def _added(parting: ReplicaDivergence) -> str:
    blamed = parting.culprits
    return (
        f"{capital(named(blamed))} made step {parting.step} of the optimizer, which "
        f"the others did not make, and {has(blamed)} other weights since"
    )


def _state(parting: ReplicaDivergence) -> str:
    having = _having(parting)
    if parting.culprits and having and not set(having) & set(parting.culprits):
        blamed = parting.culprits
        loaded = any(_loads(parting, having, state=True))
        return (
            f"{capital(named(blamed))} {has(blamed)} no optimizer state before step "
            f"{parting.step}, and {named(having)} {has(having)} one"
            f"{', loaded and not broadcast' if loaded else ''}: with the same weights "
            "and gradients, the step gave other weights"
        )
    which = named(parting.culprits or parting.ranks)
    verb = "has" if len(parting.culprits) == 1 else "have"
    return (
        f"With the same weights and gradients, {which} {verb} another optimizer state "
        f"than the others before step {parting.step}, which was not broadcast, and the "
        "step gave other weights"
    )


def _having(parting: ReplicaDivergence) -> list[int]:
    """Ranks whose optimizer has a state before the step at which they part."""
    return [
        rank
        for rank, one in parting.seen.items()
        if (weights := one.weights.get(parting.step)) is not None
        and any(weights.states)
    ]


def _step(parting: ReplicaDivergence) -> str:
    who = named(parting.ranks)
    return (
        f"The weights of {who} drift apart in step {parting.step}, which began with "
        "the same weights and gradients: the step itself is not the same on all ranks"
    )


def _whole(parting: ReplicaDivergence) -> str:
    who = named(parting.ranks)
    return (
        f"{capital(who)} share layers of one model, and each steps with gradients of "
        "its own for parameters that all of them hold whole, which drift apart from "
        f"step {max(parting.step - 1, 1)} on"
    )


def _unseen(parting: ReplicaDivergence) -> str:
    who = named(parting.ranks)
    return (
        f"The weights of {who} drift apart before step {parting.step}, and no step "
        "that was looked at explains it"
    )


_STORIES: dict[DivergenceCause, Callable[[ReplicaDivergence], str]] = {
    DivergenceCause.START: _start,
    DivergenceCause.LOADED: _loaded,
    DivergenceCause.OUTSIDE_SOME: _outside_some,
    DivergenceCause.OUTSIDE_ALL: _outside_all,
    DivergenceCause.SKIPPED: _skipped,
    DivergenceCause.ADDED: _added,
    DivergenceCause.STATE: _state,
    DivergenceCause.STEP: _step,
    DivergenceCause.WHOLE: _whole,
    DivergenceCause.UNSEEN: _unseen,
}
