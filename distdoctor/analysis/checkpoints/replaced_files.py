"""Checkpoints that several ranks replace, each by a file of its own.

Such a file is never torn. Whose it is in the end is chance, and no matter where all
write the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.causes import capital
from distdoctor.analysis.checkpoints.checkpoint_files import (
    WrittenCheckpoint,
    short,
    written,
)
from distdoctor.analysis.collectives.happens_before import is_ordered
from distdoctor.analysis.leading_lines import with_all_callers
from distdoctor.model.events import Place
from distdoctor.model.findings import Certainty, Finding, Location, Role, Severity
from distdoctor.model.run import Run, named

_MOST_TURNS = 64  # in which ranks replace one file

_By = dict[int, list[WrittenCheckpoint]]


def replaced(run: Run) -> Iterator[Finding]:
    """Files that ranks replace with nothing that orders them, by what is not the same.

    What differs is seen: numbers, texts, random states, weights.

    Args:
        run: The run that is judged.

    Yields:
        A finding for each line that writes.
    """
    if run.simulated:
        return
    by_file: dict[tuple[int, str], _By] = {}
    for rank in run.seen:
        for one in written(run, rank):
            if one.moved is not None:
                its = by_file.setdefault((one.stored.disk, one.file), {})
                its.setdefault(rank, []).append(one)
    reported: set[Place | None] = set()
    for its in by_file.values():
        turn = _unlike(run, its)
        place = None if turn is None else next(iter(turn.values())).stored.place
        if turn is not None and place not in reported:
            reported.add(place)
            yield _finding(run, turn)


def _unlike(run: Run, its: _By) -> dict[int, WrittenCheckpoint] | None:
    """What ranks wrote in one turn, of which none came first, if it is not the same."""
    turns = min(map(len, its.values()))
    for turn in range(min(turns, _MOST_TURNS)):
        wrote = {rank: those[turn] for rank, those in its.items()}
        first, *others = wrote
        racing = {
            rank: wrote[rank]
            for rank in others
            if not _ordered(run, wrote, first, rank)
            and not _ordered(run, wrote, rank, first)
        }
        if any(_differ(wrote[first], one) for one in racing.values()):
            return {first: wrote[first], **racing}
    return None


def _ordered(
    run: Run, wrote: dict[int, WrittenCheckpoint], one: int, other: int
) -> bool:
    return is_ordered(run, (one, wrote[one].count), (other, wrote[other].count))


def _differ(one: WrittenCheckpoint, other: WrittenCheckpoint) -> list[str]:
    """What is known of both and is not the same."""
    return [
        name
        for name in ("values", "weights")
        if 0 not in (both := {getattr(each.stored, name) for each in (one, other)})
        and len(both) > 1
    ]


def _finding(run: Run, turn: dict[int, WrittenCheckpoint]) -> Finding:
    first, *others = turn.values()
    what = dict.fromkeys(name for one in others for name in _differ(first, one))
    named_so = {"values": "numbers, texts or random states", "weights": "weights"}
    places: dict[tuple[Place, str], list[int]] = {}
    for rank, one in turn.items():
        assert one.moved is not None
        for place, remark in (
            (one.stored.place, "writes a file of its own"),
            (one.moved.place, "gives it the common name"),
        ):
            if place is not None:
                places.setdefault((place, remark), []).append(rank)
    everyone = len(turn) == run.world_size
    return Finding(
        message=(
            f"{capital(named(turn))} each replace the checkpoint {short(first.file)} "
            "by a file of their own, with nothing that orders them, and what they "
            f"write is not the same ({' and '.join(named_so[one] for one in what)}): "
            "it is that of whoever came last"
        ),
        exhibits=tuple(one.stored for one in turn.values())[:_MOST_SHOWN],
        culprits=() if everyone else tuple(turn),
        locations=with_all_callers(
            run,
            [
                Location(place, tuple(who), Role.PARTY, remark)
                for (place, remark), who in places.items()
            ],
        ),
        certainty=Certainty.LIKELY,
        severity=Severity.WARNING,
        details={"file": first.file, "differing": list(what)},
    )


_MOST_SHOWN = 8
