"""How a fault of reading is told: its lines, who read what, a picture of it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from distdoctor.analysis.data import sample_origins
from distdoctor.analysis.data.coverage import CoverageCause, CoverageFault, Tally
from distdoctor.analysis.data.passes import LoaderPass
from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.source.program import called, calls_in
from distdoctor.analysis.source.value_flow import ValueFlow
from distdoctor.model.events import Place
from distdoctor.model.findings import Location, Role
from distdoctor.model.observations.data import (
    DATASET,
    ITERATED,
    LOADER,
    ROLES,
    SAMPLER,
    SET_EPOCH,
    Read,
)
from distdoctor.model.run import Run, named

LOOP = "loop"
"""The way to the line of the loop itself; the others are `ROLES` and `origins`."""

_MOST_ORIGINS = 4  # lines that only the text of the source points to
_WIDE = 40  # columns of a picture
_TALL = 8  # ranks of a picture
_SHADES = " ░▒▓█"
_LONGEST = 10_000_000  # samples of a dataset of which those never read are drawn


def locations(
    run: Run, passes: Sequence[LoaderPass], ways: Iterable[str], ranks: Iterable[int]
) -> tuple[Location, ...]:
    """Lines to look at, in the order of some ways to find them, each once.

    Args:
        run: With the text of the source.
        passes: That are at fault.
        ways: Roles of `Made`, `LOOP`, or names of sets in `origins`.
        ranks: At fault; those whose passes they are if none are told apart.

    Returns:
        The locations, maybe none.
    """
    at_fault = tuple(sorted(ranks))
    found: dict[tuple[str, int], Location] = {}
    for way in ways:
        for place, remark in _on_way(run, passes, way):
            who = at_fault or tuple(sorted({one.rank for one in passes}))
            location = Location(place, who, Role.CULPRIT, remark)
            found.setdefault((place.file, place.line), location)
    return tuple(found.values())


def shares_come_from(
    run: Run, passes: Sequence[LoaderPass], ranks: Iterable[int]
) -> tuple[Location, ...]:
    """Where the number of shares, and of a rank's share, come from that a sampler got.

    What asks torch.distributed for them is as it should be.

    Args:
        run: The run that is judged.
        passes: The passes that were compared.
        ranks: Who is at fault; empty: nobody in particular.

    Returns:
        A few lines, each once.
    """
    who = tuple(sorted(ranks)) or tuple(sorted({one.rank for one in passes}))
    split = {one.read.replicas for one in passes}
    names = {"rank": 2} if split == {len(passes)} else {"num_replicas": 1, "rank": 2}
    program = program_of(run)
    made = {
        (each.place, each.kind)
        for one in passes
        for each in one.made
        if each.role == SAMPLER and each.place is not None and one.read.replicas
    }
    found: dict[Place, None] = {}
    for rank in who[:_MOST_ASKED]:
        ways = ValueFlow(program, rank, run.world_size)
        for place, kind in sorted(made, key=str):
            assert place is not None
            for name, position in names.items():
                way = ways.argument(place, name, position, kind)
                if way is None:
                    continue
                if not _is_asked(way.end.node):
                    found |= dict.fromkeys(way.last(_MOST_STEPS))
                elif split != {run.world_size}:  # it was not that which was given
                    found |= dict.fromkeys(way.others())
    lines = list(found) if len(found) <= _MOST_ORIGINS else []
    return tuple(Location(line, who, Role.CULPRIT, "comes from here") for line in lines)


def _is_asked(node: ast.expr) -> bool:
    """Whether an expression is the rank, or the number of ranks, of the job."""
    match node:
        case ast.Call(args=[], keywords=[]):
            return called(node) in _RIGHT
        case ast.Subscript(slice=ast.Constant(value=name)):
            return name in _RIGHT
        case ast.Call(args=[ast.Constant(value=name), *_]):
            return name in _RIGHT
    return False


_RIGHT = frozenset({"get_rank", "get_world_size", "RANK", "WORLD_SIZE"})

_MOST_ASKED = 2  # ranks of those at fault whose ways are gone

_MOST_STEPS = 2  # of the way of a value


def unheard(
    run: Run, passes: Sequence[LoaderPass], ranks: Iterable[int]
) -> tuple[Location, ...]:
    """Lines that speak of `set_epoch`, where no epoch has come to the sampler.

    A sampler with a `set_epoch` of the user's own may have heard it there, unseen; that
    of torch, which it may go through, has not.

    Args:
        run: The run that is judged.
        passes: The passes that were compared.
        ranks: Who is at fault; empty: nobody in particular.

    Returns:
        A few lines; empty if the sampler was told an epoch, or may have been.
    """
    made = [each for one in passes for each in one.made]
    heard = any(each.role == SET_EPOCH for each in made)
    place = next((one.place for one in passes if one.place is not None), None)
    if heard or place is None or not all(one.read.replicas for one in passes):
        return ()
    program = program_of(run)
    own = {function.name.split(".")[-2:][0] for function in program.named("set_epoch")}
    kinds = {each.kind for each in made}
    if own & kinds and _OF_TORCH not in kinds - own:
        return ()
    who = tuple(sorted(ranks)) or tuple(sorted({one.rank for one in passes}))
    remark = f"does not reach the sampler read at line {place.line}"
    return tuple(
        Location(line, who, Role.CULPRIT, remark)
        for line in sample_origins.speaking_of(program, "set_epoch")[:_MOST_ORIGINS]
    )


_OF_TORCH = "DistributedSampler"

_DRAWING = sample_origins.ORDERING | sample_origins.SEEDING

_MOST_DRAWS = 2


def drawn_by(
    run: Run, passes: Sequence[LoaderPass], ranks: Iterable[int]
) -> tuple[Location, ...]:
    """Lines of a sampler of the user's that seed, or draw, the order it gives.

    Args:
        run: The run that is judged.
        passes: The passes that were compared.
        ranks: Who is at fault; empty: nobody in particular.

    Returns:
        A few lines, each once.
    """
    program = program_of(run)
    kinds = {each.kind for one in passes for each in one.made if each.role == SAMPLER}
    lines = [
        Place(function.file, node.lineno, function.name)
        for function in program.named("__iter__")
        if function.name.split(".")[-2:][0] in kinds
        for node in calls_in(function)
        if called(node) in _DRAWING
    ]
    lines.sort(key=lambda place: place.line)
    who = tuple(sorted(ranks)) or tuple(sorted({one.rank for one in passes}))
    return tuple(
        Location(place, who, Role.CULPRIT, "the sampler's order comes from here")
        for place in [*dict.fromkeys(lines)][:_MOST_DRAWS]
    )


def _on_way(
    run: Run, passes: Sequence[LoaderPass], way: str
) -> Iterable[tuple[Place, str]]:
    if way == LOOP:
        places = dict.fromkeys(one.place for one in passes if one.place is not None)
        return [(place, "goes through the loader") for place in places]
    if way in ROLES:
        return _made(run, passes, way)
    names, remark = _ORIGINS[way]
    lines = [
        place
        for file in _files(passes)
        for place in sample_origins.calls(run, file, names)
    ]
    return [(place, remark) for place in lines[:_MOST_ORIGINS]]


def _files(passes: Sequence[LoaderPass]) -> list[str]:
    """Where passes are made, and what they are made with."""
    found = dict.fromkeys(
        place.file
        for one in passes
        for place in (one.place, *(made.place for made in one.made))
        if place is not None
    )
    return list(found)


def may_shuffle(run: Run, passes: Sequence[LoaderPass]) -> bool:
    """Whether the text of the source shuffles anything, or is not known.

    Args:
        run: The run that is judged.
        passes: The passes that were compared.

    Returns:
        Whether it may.
    """
    files = _files(passes)
    return not all(file in run.sources for file in files) or any(
        sample_origins.calls(run, file, sample_origins.ORDERING) for file in files
    )


def _made(
    run: Run, passes: Sequence[LoaderPass], role: str
) -> Iterable[tuple[Place, str]]:
    made = [each for one in passes for each in one.made if each.role == role]
    places = list(dict.fromkeys(each.place for each in made if each.place is not None))
    if role == SAMPLER:  # what the loader made for itself is no sampler of the user's
        loaders = {at for at, _ in _made(run, passes, LOADER)}
        places = [one for one in places if one not in loaders] or places
    if role != ITERATED:
        return [(place, ROLES[role]) for place in places]
    inner = [
        place for begin in places for place in sample_origins.splitting(run, begin)
    ]
    return [
        *((place, "gives the samples") for place in inner),
        *((place, ROLES[role]) for place in places),
    ]


_ORIGINS = {
    "ordering": (sample_origins.ORDERING, "puts samples in an order"),
    "seeding": (sample_origins.SEEDING, "says where random numbers begin"),
    "listing": (sample_origins.LISTING, "may give another order in each process"),
    "making": (sample_origins.MAKING, "draws random numbers"),
}


def class_of(one: LoaderPass) -> str:
    """The class of the dataset that a pass reads, as the user calls it.

    Args:
        one: The pass.

    Returns:
        The name, or "the dataset".
    """
    return next((made.kind for made in one.made if made.role == DATASET), "the dataset")


def exhibits(fault: CoverageFault) -> tuple[Read, ...]:
    """What proves it: the passes of a few ranks that have it.

    Args:
        fault: What is wrong with the loop.

    Returns:
        At most a few events.
    """
    sharing = set(fault.sharing)
    read = [one.read for one in fault.meeting.passes if one.rank in sharing]
    return tuple(read[:_TALL])


def epochs(fault: CoverageFault) -> str:
    """In how many epochs a fault was seen, as the beginning of a sentence.

    Args:
        fault: What is wrong with the loop.

    Returns:
        Words in small letters.
    """
    having, compared = fault.epochs
    if having == compared:
        return "in each epoch" if compared > 1 else "in the epoch that was seen"
    return f"in {having} of {compared} epochs"


def who_read(fault: CoverageFault) -> str:
    """How many samples each rank read.

    Args:
        fault: What is wrong with the loop.

    Returns:
        Words for a few different counts.
    """
    by_count: dict[int, list[int]] = {}
    for rank, count in zip(fault.meeting.ranks, fault.tally.read, strict=True):
        by_count.setdefault(count, []).append(rank)
    phrases = [
        f"{named(ranks)} read {count:,}{' each' if len(ranks) > 1 else ''}"
        for count, ranks in list(by_count.items())[:_TALL]
    ]
    return ", ".join(phrases)


def likewise(fault: CoverageFault) -> str:
    """The end of a sentence: which other groups of ranks have the same fault.

    Args:
        fault: What is wrong with the loop.

    Returns:
        Words, "" if there are no others.
    """
    if not fault.likewise:
        return ""
    groups = [named(ranks) for ranks in fault.likewise[:_MOST_GROUPS]]
    groups += ["more"] * (len(fault.likewise) > _MOST_GROUPS)
    return f"; likewise {', '.join(groups)}"


_MOST_GROUPS = 4


def how_often(tally: Tally) -> str:
    """How many samples were read by several ranks, and how many by none.

    Args:
        tally: How often the samples of one epoch were read.

    Returns:
        Words; of samples read by none only where their number is known.
    """
    text = f"{tally.twice:,} of them by more than one"
    return text + (f", and {tally.never:,} samples by none" if tally.never > 0 else "")


def details(fault: CoverageFault) -> dict[str, object]:
    """Figures for machines, and a picture for people.

    Args:
        fault: What is wrong with the loop.

    Returns:
        Values that JSON can hold, by name.
    """
    having, compared = fault.epochs
    figures: dict[str, object] = {
        "explanation": str(fault.why),
        "epochs": {"with": having, "compared": compared},
        "read": dict(zip(map(str, fault.meeting.ranks), fault.tally.read, strict=True)),
        "read_by_several": fault.tally.twice,
    }
    if fault.tally.never >= 0:
        figures["read_by_none"] = fault.tally.never
    # Where datasets differ, an index is not the same sample on all ranks.
    drawn = [] if fault.why is CoverageCause.DATASET else picture(fault.meeting.passes)
    return figures | ({"picture": drawn} if drawn else {})


def picture(passes: Sequence[LoaderPass]) -> list[str]:
    """Who read what of the dataset, from its first sample on the left to its last.

    >>> picture([])
    []

    Args:
        passes: One pass of each rank.

    Returns:
        A line for each of a few ranks, and two for samples read twice and never; empty
        if indices are not known.
    """
    length = max((one.read.length for one in passes), default=0)
    if length <= 0 or not all(len(one.samples) for one in passes):
        return []
    edges = np.linspace(0, length, min(_WIDE, length) + 1)
    once = [_inside(one, length) for one in passes]
    read, times = np.unique(np.concatenate(once), return_counts=True)
    rows = [(f"rank {one.rank}", each) for one, each in zip(passes, once, strict=True)]
    rows = rows[:_TALL]
    rows.append(("twice", read[times > 1]))
    missed = np.setdiff1d(np.arange(length), read) if length < _LONGEST else read[:0]
    rows.append(("never", missed))
    left = max(len(name) for name, _ in rows)
    return [f"{name:<{left}} |{_strip(which, edges)}|" for name, which in rows]


def _inside(one: LoaderPass, length: int) -> NDArray[np.int64]:
    there = (one.samples >= 0) & (one.samples < length)
    return np.unique(one.samples[there])


def _strip(which: NDArray[np.int64], edges: NDArray[np.float64]) -> str:
    """How much of each part of the dataset a set of samples is."""
    sizes = np.diff(np.ceil(edges))
    shares = np.histogram(which, bins=edges)[0] / np.maximum(sizes, 1)
    last = len(_SHADES) - 1
    levels = np.minimum(last, np.ceil(shares * last)).astype(int)
    return "".join(_SHADES[level] for level in levels)
