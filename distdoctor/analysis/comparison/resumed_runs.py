"""Whether a resumed job does what the uninterrupted one does, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from distdoctor.analysis.checkpoints.checkpoint_files import (
    WrittenCheckpoint,
    short,
    written,
)
from distdoctor.analysis.comparison.repeated_runs import (
    common_steps,
    differences,
    figures,
    has_effect,
)
from distdoctor.analysis.comparison.traces import (
    differing,
    idle_streams,
    pairs,
    parted_streams,
    steps_before,
    steps_of,
)
from distdoctor.errors import MissingEvidence
from distdoctor.model.events import Observation, Place
from distdoctor.model.findings import Finding, Location, Role, Severity
from distdoctor.model.observations.checkpoints import Given, Opened, Scheduled, Shuffled
from distdoctor.model.observations.comparison import (
    RESUME,
    STANDING,
    WHATS,
    Compared,
    Traced,
    Unrestored,
)
from distdoctor.model.observations.rng import Seeded
from distdoctor.model.run import Run, named

AnyKind = TypeVar("AnyKind", bound=Observation)

_FURTHER = 2  # steps behind the checkpoint, which the interrupted job makes

_STATE = {*STANDING, "input"}
"""What a job is to get back; the rest follows from it."""

_ON_THEIR_OWN = {"rate", "input"}
"""What need not follow from something that differed at an earlier step."""


# --- where to interrupt ---


def cut(whole: Run) -> int:
    """After how many steps to interrupt a job: some behind its first checkpoint.

    Args:
        whole: The uninterrupted run.

    Returns:
        The number of steps, from 1.

    Raises:
        MissingEvidence: It wrote none that leaves steps to compare.
    """
    total = min((steps_of(whole, rank) for rank in whole.seen), default=0)
    if not total:
        raise MissingEvidence("no rank made a step of an optimizer")
    begun = [
        steps_before(whole, rank, one.stored)
        for rank in whole.seen
        for one in written(whole, rank)
        if one.stored.parts
    ]
    if not begun:
        raise MissingEvidence(
            f"the job wrote no checkpoint in {total} steps (by torch.save or "
            "safetensors)"
        )
    fitting = [steps for steps in begun if 0 < steps < total - 1]
    if not fitting:
        raise MissingEvidence(
            f"the job is too short: it made {total} steps, and wrote a checkpoint "
            f"after {', '.join(map(str, sorted(set(begun))[:3]))} of them; there must "
            "be a step before it and two behind it"
        )
    return min(min(fitting) + _FURTHER, total - 1)


# --- what the resumed job does otherwise ---


def resumed(
    whole: Run, interrupted: Run, again: Run
) -> tuple[Compared, list[Unrestored]]:
    """What a resumed job does otherwise than the uninterrupted one.

    Args:
        whole: The uninterrupted job.
        interrupted: The same, ended some steps behind its first checkpoint.
        again: What went on from there.

    Returns:
        How far both came, and the differences.

    Raises:
        MissingEvidence: They cannot be compared; why.
    """
    _require_repeated(whole, interrupted)
    begun = _begun(whole, interrupted, again)
    steps = common_steps(whole, again, begun)
    if not steps:
        raise MissingEvidence(
            f"the resumed job made no step behind the checkpoint at step {begun}"
        )
    found: list[Unrestored] = []
    for rank in whole.seen:
        if rank in again.seen:
            idle = idle_streams(whole, rank) | parted_streams(whole, interrupted, rank)
            found += _on_rank(_Sides(whole, again, rank, begun, idle))
    compared = Compared(rank=whole.seen[0], how=RESUME, steps=steps, begun=begun)
    return compared, found


def _require_repeated(whole: Run, interrupted: Run) -> None:
    for one in differences(whole, interrupted):
        if has_effect(one):
            name = f" ({one.name})" if one.name else ""
            raise MissingEvidence(
                "the job does not repeat itself: two runs of it differ before anything "
                f"is resumed, in {WHATS.get(one.what, one.what)}{name} in step "
                f"{one.step + 1}; --twice tells more"
            )


def _begun(whole: Run, interrupted: Run, again: Run) -> int:
    """Steps before the checkpoint that was resumed from.

    Raises:
        MissingEvidence: It read none that is known.
    """
    opened = [
        event
        for rank in again.seen
        for event in again.of(Opened, rank)
        if event.parts and not event.error
    ]
    stores: list[tuple[int, WrittenCheckpoint]] = [
        (rank, one) for rank in interrupted.seen for one in written(interrupted, rank)
    ]
    for event in sorted(opened, key=lambda one: -len(one.parts)):
        for rank, one in reversed(stores):
            if one.file == event.file:
                return steps_before(interrupted, rank, one.stored)
    alike = _alike(whole, again)
    if alike:
        return alike
    if not opened:
        raise MissingEvidence("the resume command read no checkpoint")
    raise MissingEvidence(
        f"the resume command read {short(opened[0].file)}, which the interrupted job "
        "has not written"
    )


def _alike(whole: Run, again: Run) -> int:
    """After how many steps the job had the weights that the resumed one begins with."""
    for rank in again.seen[:1]:
        first = next(iter(again.of(Traced, rank)), None)
        for one in whole.of(Traced, rank) if first is not None else ():
            if one.step > 1 and _weights(one) == _weights(first):
                return one.step - 1
    return 0


def _weights(traced: Traced | None) -> int | None:
    if traced is None:
        return None
    return dict(zip(traced.names, traced.prints, strict=False)).get("weights")


class _Sides:
    """A rank of both jobs."""

    def __init__(
        self, whole: Run, again: Run, rank: int, begun: int, idle: set[str]
    ) -> None:
        self.whole, self.again, self.rank = whole, again, rank
        self.begun, self.idle = begun, idle
        self.restoring = _line(again.of(Given, rank)) or _line(again.of(Opened, rank))


def _on_rank(sides: _Sides) -> Iterator[Unrestored]:
    first: dict[tuple[str, str], tuple[Traced, Traced, str]] = {}
    both = pairs(sides.whole, sides.again, sides.rank, sides.begun)
    for one, other in both:
        for what, name in differing(one, other, sides.idle):
            key = what, name if what == "random" else ""
            first.setdefault(key, (one, other, name))
    if not first:
        return
    earliest = min(one.step for one, _, _ in first.values())
    keys = [
        key
        for key, (one, _, _) in first.items()
        if (one.step == earliest and key[0] in _STATE) or key[0] in _ON_THEIR_OWN
    ]
    for key in keys or [next(iter(first))]:
        one, other, name = first[key]
        yield _unrestored(sides, key[0], name, one, other, first)


def _unrestored(
    sides: _Sides,
    what: str,
    name: str,
    one: Traced,
    other: Traced,
    first: dict[tuple[str, str], tuple[Traced, Traced, str]],
) -> Unrestored:
    here, there = figures(what, one, other)
    place = sides.restoring
    again, rank = sides.again, sides.rank
    if what == "rate":
        place = _line(again.of(Scheduled, rank)) or place
    elif what == "input" and (epochs := _epochs(sides, one, other)):
        here, there = str(epochs[0].epoch), str(epochs[1].epoch)
        place = epochs[1].place or place
    elif what == "random":
        of_stream = [seed for seed in again.of(Seeded, rank) if seed.stream == name]
        place = place or _line(of_stream)
        there = _effect(first)
    return Unrestored(
        rank=rank,
        step=one.step - 1,
        what=what,
        name=name,
        here=here,
        there=there,
        place=place,
    )


def _effect(first: dict[tuple[str, str], tuple[Traced, Traced, str]]) -> str:
    """The first thing computed that differs; "": nothing does."""
    order = [*WHATS]
    computed = [
        (one.step, order.index(what), name)
        for (what, stream), (one, _, name) in first.items()
        if not stream
    ]
    if not computed:
        return ""
    step, at, name = min(computed)
    of = f" of {name}" if name else ""
    return f"{WHATS[order[at]]}{of} in step {step}"


def _epochs(
    sides: _Sides, one: Traced, other: Traced
) -> tuple[Shuffled, Shuffled] | None:
    """What samplers had been told last before a step, if they were told otherwise."""
    here = _last_shuffled(sides.whole, sides.rank, one)
    there = _last_shuffled(sides.again, sides.rank, other)
    if here is None or there is None or here.epoch == there.epoch:
        return None
    return here, there


def _last_shuffled(run: Run, rank: int, step: Traced) -> Shuffled | None:
    last = None
    for _, event in run.told(Traced, Shuffled, rank=rank):
        if event is step:
            break
        if isinstance(event, Shuffled):
            last = event
    return last


def _line(events: Sequence[AnyKind]) -> Place | None:
    """The last line that did something."""
    places = [event.place for event in events if event.place is not None]
    return places[-1] if places else None


# --- what is told of it ---


def unequal(run: Run) -> Iterator[Finding]:
    """Parts of the state that a resumed job did not get back.

    Args:
        run: The run that is judged.

    Yields:
        A finding for each part.
    """
    by_part: dict[str, list[Unrestored]] = {}
    for rank in run.seen:
        for one in run.of(Unrestored, rank):
            by_part.setdefault(one.what, []).append(one)
    steps = [one for rank in run.seen for one in run.of(Compared, rank)]
    for what, several in by_part.items():
        others = by_part.keys() - {"random"}
        explained = any(other != "input" or by_part[other][0].there for other in others)
        mild = what == "random" and (explained or not several[0].there)
        yield _finding(run, steps[0], several, mild=mild)


def _finding(
    run: Run, compared: Compared, several: list[Unrestored], *, mild: bool
) -> Finding:
    first = min(several, key=lambda one: one.step)
    ranks = sorted({one.rank for one in several})
    everyone = len(ranks) == len(run.seen)
    behind = first.step + 1 - compared.begun
    who = "" if everyone else f" on {named(ranks)}"
    role = Role.PARTY if everyone else Role.CULPRIT
    places = dict.fromkeys(one.place for one in several if one.place is not None)
    rest = ""
    if first.what == "random":
        rest = "; nothing else differs"
        if first.there:
            rest = f"; the first thing computed that differs is {first.there}"
    return Finding(
        message=(
            f"{_lost(first, at_once=behind == 1)}{who}, from step {first.step + 1} on, "
            f"the {_nth(behind)} behind the checkpoint{rest}; the resumed job "
            f"was compared with the uninterrupted one over {compared.steps} steps"
        ),
        exhibits=(first,),
        culprits=() if everyone else tuple(ranks),
        locations=tuple(
            Location(place, tuple(ranks), role, _REMARKS.get(first.what, _RESTORES))
            for place in places
        ),
        details={
            "state": first.what,
            "name": first.name,
            "step": first.step,
            "begun": compared.begun,
            "steps": compared.steps,
        },
        # Other numbers that nothing depends on, or not alone.
        severity=Severity.NOTE if mild else None,
    )


def _lost(one: Unrestored, *, at_once: bool) -> str:
    name = f" (first {one.name})" if one.name else ""
    figures = f": {one.there}, and {one.here} without the interruption"
    was = "was not restored" if at_once else "goes another way"
    were = "were not restored" if at_once else "go another way"
    match one.what:
        case "rate" | "scale":
            return f"The {WHATS[one.what]} {was}{figures}"
        case "weights" | "buffer":
            return f"The {WHATS[one.what]} {were}{name}"
        case "state":
            return f"The {WHATS[one.what]} {was}{name}"
        case "random":
            return f"The {WHATS[one.what]} of {one.name} {was}"
        case "input" if one.there:
            return (
                f"The epoch of the sampler {was}{figures}: samples come in another "
                "order"
            )
        case "input":
            return f"The order of samples {was}: the model is given other ones"
    return (
        f"Something else {was} than what is compared: the "
        f"{WHATS.get(one.what, one.what)}{name} differs"
    )


_RESTORES = "restores the state"

_REMARKS = {"rate": "makes the scheduler", "input": "what samples it gets"}


def _nth(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
