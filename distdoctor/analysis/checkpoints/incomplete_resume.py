"""What a resumed job did not get back of the state it had."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from distdoctor.analysis.causes import capital
from distdoctor.analysis.checkpoints.checkpoint_files import short
from distdoctor.analysis.checkpoints.restarts import Resume, resumes
from distdoctor.analysis.leading_lines import with_callers
from distdoctor.model.events import Event, Place
from distdoctor.model.findings import Certainty, Finding, Location, Role
from distdoctor.model.observations.checkpoints import Continued
from distdoctor.model.run import Run, named

_STATES = {"optimizer", "scheduler", "scaler"}


@dataclass(frozen=True, slots=True)
class UnrestoredPart:
    """A part of the state that starts anew, on one rank.

    Attributes:
        what: Which part.
        resume: Where.
        story: What was seen, as a clause that follows the ranks' names or stands alone.
        exhibits: What proves it.
        lines: Where it belongs, most telling first, with a few words each.
        certainty: How sure.
    """

    what: str
    resume: Resume
    story: str
    exhibits: tuple[Event, ...]
    lines: tuple[tuple[Place | None, str], ...]
    certainty: Certainty = Certainty.PROVED
    details: dict[str, object] = field(default_factory=dict)


def incomplete(run: Run) -> Iterator[Finding]:
    """Parts of the state that were not restored; once for all ranks and legs.

    Args:
        run: The run that is judged.

    Yields:
        A finding for each part and line.
    """
    found: dict[tuple[object, ...], list[UnrestoredPart]] = {}
    for resume in resumes(run):
        for one in _forgotten(resume):
            key = one.what, *(place for place, _ in one.lines[:1])
            found.setdefault(key, []).append(one)
    everyone = {resume.rank for resume in resumes(run)}
    for several in found.values():
        yield _finding(run, several, everyone)


def _finding(run: Run, several: list[UnrestoredPart], everyone: set[int]) -> Finding:
    first = several[0]
    ranks = sorted({one.resume.rank for one in several})
    partly = len(ranks) < len(everyone)
    role = Role.CULPRIT if partly else Role.PARTY
    seen: dict[Place, str] = {}
    for place, remark in first.lines:
        if place is not None:
            seen.setdefault(place, remark)
    who = f"{capital(named(ranks))}: " if partly else ""
    story = first.story if partly else capital(first.story)
    return Finding(
        message=f"{who}{story}.",
        exhibits=first.exhibits,
        culprits=tuple(ranks) if partly else (),
        locations=with_callers(
            run,
            [
                Location(place, tuple(ranks), role, remark)
                for place, remark in seen.items()
            ],
        ),
        certainty=first.certainty,
        details={"state": first.what, "file": first.resume.source.file} | first.details,
    )


def _forgotten(resume: Resume) -> Iterator[UnrestoredPart]:
    yield from _schedule(resume)
    yield from _optimizer(resume)
    yield from _scale(resume)
    yield from _epochs(resume)
    yield from _random(resume)


def _lines(
    resume: Resume, *more: tuple[Place | None, str]
) -> tuple[tuple[Place | None, str], ...]:
    """Where the siblings got their state, and what stands beside."""
    beside = resume.given("optimizer", "scheduler", "scaler", "model")
    return (
        *(((beside.place, f"restores the {beside.what}"),) if beside else ()),
        *more,
        (resume.source.place, "reads the checkpoint"),
    )


def _store_line(resume: Resume) -> tuple[tuple[Place | None, str], ...]:
    origin = resume.origin
    return () if origin is None else ((origin.stored.place, "writes the checkpoint"),)


# --- the scheduler ---


def _schedule(resume: Resume) -> Iterator[UnrestoredPart]:
    source, held, origin = resume.source, resume.held, resume.origin
    if "scheduler" in resume.kinds or not resume.goes_on:
        return
    saved = "scheduler" in held.parts
    if saved:
        was, schedule = held.position, held.schedule
    elif origin is not None:
        was, schedule = origin.stored.running, origin.stored.running_schedule
    else:
        return
    for now in resume.leg.continued:
        # One that was brought there by hand, or by `last_epoch`, is where it was.
        behind = now.position == 0 or now.position + 1 < was
        if now.scheduler < 0 or now.schedule != schedule or was < 1 or not behind:
            continue
        maker = resume.made.get(now.scheduler)
        name = "scheduler" if maker is None else maker.kind
        file = short(source.file)
        kept = "is in it and is" if saved else "is not in it, and so"
        story = (
            f"the learning rate schedule restarts: after the resume from {file} the "
            f"{name} is at {now.position}, and it was at {was} when that was written; "
            f"the scheduler state {kept} not restored (learning rate {now.lr:.4g})"
        )
        made = (None if maker is None else maker.place, "makes the scheduler anew")
        lines = _lines(resume, made)
        if not saved:
            lines = (*_store_line(resume), *lines)
        yield UnrestoredPart(
            "scheduler",
            resume,
            story,
            (source, now),
            lines,
            Certainty.PROVED if saved else Certainty.LIKELY,
            {"position": now.position, "was": was},
        )
        return


# --- the optimizer ---


def _optimizer(resume: Resume) -> Iterator[UnrestoredPart]:
    source, origin = resume.source, resume.origin
    # One that has stepped before has lost its state because the program emptied it.
    empty = [
        now
        for now in resume.leg.continued
        if not now.filled and now.number not in resume.stepped
    ]
    saved = resume.held.filled
    was = saved or (origin.stored.running_filled if origin is not None else 0)
    alive = sum(now.filled for now in resume.leg.continued)
    if not empty or alive >= was:
        return
    gives_state = bool(resume.kinds & _STATES)
    if not gives_state:
        # A new optimizer for weights that were read may be what is wanted.
        another = resume.origin is not None and not _same_training(resume, empty[0])
        if another or not (saved or resume.goes_on):
            return
        if resume.origin is None and not resume.goes_on:
            return
    now, file = empty[0], short(source.file)
    if "optimizer" in resume.kinds and alive == 0:
        why = "it was restored into another optimizer than the one that steps"
    elif saved:
        why = "it is in the file and is not restored"
    else:
        why = "it is not in the file, and so not restored"
    story = (
        f"the optimizer state is lost in the resume from {file}: the first step of "
        f"{now.kind} behind it finds no momentum or moments, which it had when the "
        f"file was written; {why}"
    )
    lines = _lines(resume, (now.place, "steps with an empty state"))
    if not saved:
        lines = (*_store_line(resume), *lines)
    sure = bool(saved) and gives_state
    yield UnrestoredPart(
        "optimizer",
        resume,
        story,
        (source, now),
        lines,
        Certainty.PROVED if sure else Certainty.LIKELY,
    )


def _same_training(resume: Resume, now: Continued) -> bool:
    """Whether the optimizer is made as the one was that this run saved."""
    if resume.origin is None or now.rules not in resume.origin.stored.rules:
        return False
    first = [one.lr for one in resume.first.continued if one.rules == now.rules]
    return now.lr in {resume.held.lr, *first}


# --- the loss scale ---


def _scale(resume: Resume) -> Iterator[UnrestoredPart]:
    source, scale = resume.source, resume.held.scale
    if "scaler" in resume.kinds or not scale or not resume.goes_on:
        return
    for now in resume.leg.continued:
        if now.scale and now.scale != scale:
            story = (
                f"the loss scale restarts: after the resume from {short(source.file)} "
                f"the GradScaler is at {now.scale:g}, and it was at {scale:g} "
                "when that was written; the scaler state is in it and is not restored"
            )
            yield UnrestoredPart("scaler", resume, story, (source, now), _lines(resume))
            return


# --- the epoch ---


def _epochs(resume: Resume) -> Iterator[UnrestoredPart]:
    if not resume.before or not resume.leg.shuffled:
        return
    if not resume.kinds & _STATES:
        return
    now = resume.leg.shuffled[0]
    same = [
        one for one in resume.before if (one.seed, one.length) == (now.seed, now.length)
    ]
    epochs = [one.epoch for one in same]
    counted = all(a <= b for a, b in pairwise(epochs))
    if not epochs or now.epoch >= epochs[-1] or now.epoch not in epochs or not counted:
        return
    file = short(resume.source.file)
    listed = ", ".join(str(one.epoch) for one in resume.leg.shuffled[:4])
    story = (
        f"the epoch counter is not restored: after the resume from {file} the sampler "
        f"is told epoch {listed}, and it had been told {epochs[0]} to {epochs[-1]} "
        "before that was written; so the same order of samples is replayed"
    )
    yield UnrestoredPart(
        "epoch",
        resume,
        story,
        (same[0], now),
        ((now.place, f"epoch {now.epoch} again"), *_lines(resume)),
        details={"epoch": now.epoch, "was": epochs[-1]},
    )


# --- random state ---


def _random(resume: Resume) -> Iterator[UnrestoredPart]:
    """Random state that was saved, and starts where the run did.

    Many jobs do not save it; that makes other numbers, and not worse ones.
    """
    origin, first, leg = resume.origin, resume.first, resume.leg
    if origin is None or "rng" not in origin.stored.parts or not resume.goes_on:
        return
    if leg is first or not first.continued or first.drawn is None:
        return
    now, then = leg.continued[0], first.continued[0]
    draws = first.drawn.rng != then.rng
    if now.rng == then.rng and draws:
        story = (
            "random numbers are replayed: at the first step after the resume from "
            f"{short(resume.source.file)} torch's random state is that of the run's "
            "first step; the state that was saved is not restored"
        )
        yield UnrestoredPart("rng", resume, story, (then, now), _lines(resume))
