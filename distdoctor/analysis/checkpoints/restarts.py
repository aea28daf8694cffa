"""Training in legs: each begins with what is read from a checkpoint and given back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from distdoctor.analysis.checkpoints.checkpoint_files import WrittenCheckpoint, written
from distdoctor.analysis.memoize import memoize
from distdoctor.model.observations.checkpoints import (
    Continued,
    Given,
    Opened,
    Reached,
    Scheduled,
    Shuffled,
    Stored,
)
from distdoctor.model.run import Run


@dataclass(slots=True)
class TrainingLeg:
    """What a rank did from one restoring to the next.

    Attributes:
        opened: The checkpoints it read, with parts of a job's state in them.
        given: What got a state.
        continued: Where its optimizers stood at their first steps behind.
        drawn: The step behind the first of these; None: there was none.
        shuffled: Epochs that samplers were told.
    """

    opened: list[Opened] = field(default_factory=list)
    given: list[Given] = field(default_factory=list)
    continued: list[Continued] = field(default_factory=list)
    drawn: Reached | None = None
    shuffled: list[Shuffled] = field(default_factory=list)


def training_legs(run: Run, rank: int) -> list[TrainingLeg]:
    """The legs of a rank; the first begins with the job.

    Args:
        run: The run that is judged.
        rank: A global rank of the run.

    Returns:
        The legs in order, at least one.
    """
    memory: dict[int, list[TrainingLeg]] = run.memory.setdefault("legs", {})
    if rank not in memory:
        memory[rank] = _legs(run, rank)
    return memory[rank]


def _legs(run: Run, rank: int) -> list[TrainingLeg]:
    found = [TrainingLeg()]
    told = run.told(Opened, Given, Continued, Reached, Shuffled, rank=rank)
    for _, event in told:
        if isinstance(event, (Opened, Given)) and found[-1].continued:
            if isinstance(event, Opened) and not event.parts:
                continue
            found.append(TrainingLeg())
        match event:
            case Opened(parts=parts) if parts:
                found[-1].opened.append(event)
            case Given():
                found[-1].given.append(event)
            case Continued():
                found[-1].continued.append(event)
            case Reached():
                found[-1].drawn = event
            case Shuffled():
                found[-1].shuffled.append(event)
            case _:
                pass
    return found


@dataclass(frozen=True, slots=True)
class Resume:
    """A leg in which a rank goes on from a checkpoint.

    Attributes:
        rank: Whose.
        leg: The leg.
        source: The checkpoint, the fullest of them if there are several.
        held: All that is in them, as if it was one.
        origin: How this run wrote it; None: another run did.
        before: Epochs that samplers had been told until it was written.
        first: Where the optimizer stood at the very first step of the run.
        made: Schedulers of the rank by number.
        stepped: Numbers of the optimizers that had made steps before.
    """

    rank: int
    leg: TrainingLeg
    source: Opened
    held: Opened
    origin: WrittenCheckpoint | None
    before: tuple[Shuffled, ...]
    first: TrainingLeg
    made: dict[int, Scheduled]
    stepped: frozenset[int] = frozenset()

    @property
    def kinds(self) -> set[str]:
        """What was given its state."""
        return {given.what for given in self.leg.given}

    @property
    def goes_on(self) -> bool:
        """Whether the job means to go on where it was, and not to begin something new.

        It does where it gives back more than weights, or counts its epochs on.
        """
        if self.kinds & {"optimizer", "scheduler", "scaler"}:
            return True
        epochs = [one.epoch for one in self.leg.shuffled[:1]]
        known = {*self.held.numbers, *(n + 1 for n in self.held.numbers)}
        return any(epoch > 0 and epoch in known for epoch in epochs)

    def given(self, *whats: str) -> Given | None:
        """The last object that was given a state, of the first of these sorts.

        Args:
            *whats: Sorts of objects, the most wanted first.

        Returns:
            The event, or None.
        """
        for what in whats:
            for given in reversed(self.leg.given):
                if given.what == what:
                    return given
        return None


@memoize
def resumes(run: Run) -> list[Resume]:
    """Where ranks train on from a checkpoint that a model was given.

    Args:
        run: The run that is judged.

    Returns:
        One for each leg and rank, by rank.
    """
    stores = [(rank, one) for rank in run.seen for one in written(run, rank)]
    return [found for rank in run.seen for found in _resumes(run, rank, stores)]


def _resumes(
    run: Run, rank: int, stores: list[tuple[int, WrittenCheckpoint]]
) -> list[Resume]:
    every = training_legs(run, rank)
    made = {event.number: event for event in run.of(Scheduled, rank)}
    found = []
    for n, leg in enumerate(every):
        models = [one for one in leg.given if one.what == "model" and not one.own]
        if not leg.opened or not leg.continued or not models:
            continue
        source = max(leg.opened, key=lambda one: len(one.parts))
        writer, origin = _origin(source, stores)
        before: tuple[Shuffled, ...] = ()
        if origin is not None:
            before = _before(run, writer, origin, rank)
        held = _together(leg.opened)
        stepped = {one.number for each in every[:n] for one in each.continued}
        found.append(
            Resume(
                *(rank, leg, source, held, origin, before, every[0], made),
                frozenset(stepped),
            )
        )
    return found


def _together(opened: list[Opened]) -> Opened:
    """What several files hold; the last word counts."""
    held = opened[0]
    for one in opened[1:]:
        held = replace(
            held,
            parts=tuple(sorted({*held.parts, *one.parts})),
            filled=max(held.filled, one.filled),
            position=max(held.position, one.position),
            schedule=one.schedule or held.schedule,
            scale=one.scale or held.scale,
            lr=one.lr if one.lr >= 0 else held.lr,
            numbers=(*held.numbers, *one.numbers),
        )
    return held


def _origin(
    source: Opened, stores: list[tuple[int, WrittenCheckpoint]]
) -> tuple[int, WrittenCheckpoint | None]:
    """Who wrote what was read, and how; the last before."""
    fitting = [
        (rank, one)
        for rank, one in stores
        if (one.file, one.stored.disk) == (source.file, source.disk)
        and one.ended_ns <= source.ended_ns
        and one.stored.parts == source.parts
    ]
    if not fitting:
        return -1, None
    return max(fitting, key=lambda one: one[1].ended_ns)


def _before(
    run: Run, writer: int, origin: WrittenCheckpoint, rank: int
) -> tuple[Shuffled, ...]:
    """Epochs that a rank's samplers were told before another rank wrote a file.

    Ranks tell their samplers equally many.
    """
    count = 0
    for _, event in run.told(Stored, Shuffled, rank=writer):
        if event is origin.stored:
            break
        count += isinstance(event, Shuffled)
    return tuple(run.of(Shuffled, rank)[:count])
