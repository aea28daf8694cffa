"""How many steps one rank would make alone, of which each of several makes a part."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from math import ceil

from distdoctor.analysis.data.passes import LoaderPass, passes
from distdoctor.analysis.source.syntax_trees import parsed
from distdoctor.model.events import Shortened
from distdoctor.model.run import Run


@dataclass(frozen=True, slots=True)
class Alone:
    """Steps of a job whose ranks share the samples.

    Attributes:
        steps: That each rank makes; in full, where distdoctor has shortened the epochs.
        wanted: That one rank would make with all samples, as people work them out.
        sizes: Numbers that mean something else: of samples, of a batch, of epochs.
    """

    steps: int
    wanted: set[int]
    sizes: set[int]


def steps_alone(run: Run, rank: int, epochs: int) -> Alone | None:
    """What is known of a rank that trains on its share of each epoch's samples.

    Args:
        run: What happened.
        rank: Whose steps are asked for.
        epochs: Passes that it trained on.
    """
    world = run.world_size
    trained = [one for one in passes(run, rank) if one.steps]
    if world < 2 or not trained:
        return None
    first, samples = trained[0], trained[0].read.length
    if samples < 1 or any(one.read.resumed for one in trained):
        return None
    if not _is_share(first, world):
        return None
    mine = ceil(ceil(samples / world) / first.batch) * epochs
    kept = _kept(run, trained[-1])
    if kept:
        window = max(1, round(kept / trained[-1].steps))
    elif any(one.read.unfinished for one in trained):
        return None
    else:
        window = max(1, round(mine / sum(one.steps for one in trained)))
    steps = mine // window if kept else sum(one.steps for one in trained)
    wanted = _wanted(samples, first.batch, epochs, window)
    return Alone(steps, wanted, {samples, first.batch, epochs})


def _is_share(one: LoaderPass, world: int) -> bool:
    """Whether a pass goes through one of as many shares as there are ranks."""
    read = one.read
    if read.replicas or not one.whole:
        return read.replicas == world
    # A part that the job itself took of the dataset.
    return abs(len(one.samples) * world - read.length) <= world * one.batch


def _kept(run: Run, one: LoaderPass) -> int:
    """Batches of a pass that distdoctor has left; 0: all."""
    kept = [
        event.kept for event in run.of(Shortened, one.rank) if event.place == one.place
    ]
    return kept[-1] if kept else 0


def _wanted(samples: int, batch: int, epochs: int, window: int) -> set[int]:
    found: set[int] = set()
    for each in {samples // batch, ceil(samples / batch)}:
        found |= {epochs * (each // window), epochs * ceil(each / window)}
        found |= {epochs * each // window, ceil(epochs * each / window)}
    return found | {epochs * samples // batch // window}


def divides_samples(run: Run) -> bool:
    """Whether the source divides a length by something, as by the size of a batch."""
    return any(
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Div | ast.FloorDiv)
        and any(
            isinstance(part, ast.Call)
            and isinstance(part.func, ast.Name)
            and part.func.id == "len"
            for part in ast.walk(node.left)
        )
        for text in run.sources.values()
        for node in ast.walk(parsed(text))
    )
