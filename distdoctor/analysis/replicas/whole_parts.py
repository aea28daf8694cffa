"""Parameters that ranks hold whole beside layers that lie on all of them in parts.

In tensor parallelism what no plan names is on every rank, and stays alike by itself:
all are given the same, so backward gives each the same gradient. Where their inputs
differ, as under sequence parallelism, gradients are parts, and are to be added up.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.replicas.data_parallel import at_work
from distdoctor.analysis.replicas.weight_history import WeightHistory, weight_history
from distdoctor.analysis.source.program import own_nodes
from distdoctor.model.events import Place
from distdoctor.model.observations.gradients import Holds, Within
from distdoctor.model.run import Run

_LEAST_LOOKS = 3
"""Steps before which weights were looked at; those that differ must go on to differ."""

_MOST_LINES = 2
"""That give an attribute one name; with more of them, which is meant is not known."""

_DISPATCHES = "all_to_all"
"""Of names of operations: experts get other samples on each rank, and are to part."""


def apart(
    run: Run,
) -> Iterator[tuple[Mapping[int, WeightHistory], int, tuple[str, ...]]]:
    """Ranks that share layers, whose whole parameters were alike and are no more.

    Args:
        run: The run that is judged.

    Yields:
        By rank, what is known of these parameters; the first step before which they
        differ; and their names.
    """
    for seen in weight_history(run).values():
        by_hand = {
            rank: one
            for rank, one in seen.items()
            if not one.trained.wrapped and _shares_layers(run, rank, one)
        }
        for team in sorted(at_work(run, tuple(by_hand), together=True)):
            of_team = {rank: by_hand[rank] for rank in team}
            if not _dispatches(run, team) and (found := _parted(of_team)):
                step, names = found
                yield (
                    {rank: one.of(names) for rank, one in of_team.items()},
                    step,
                    names,
                )


def _shares_layers(run: Run, rank: int, seen: WeightHistory) -> bool:
    """Whether an optimizer holds parts of tensors, and parameters that are whole."""
    whole = set(seen.trained.names)
    return any(
        one.sharded and whole & set(one.names) and set(one.names) - whole
        for one in run.of(Holds, rank)
    )


def _dispatches(run: Run, ranks: tuple[int, ...]) -> bool:
    return any(
        run.call(run.rows_of(rank)[at - 1]).op.startswith(_DISPATCHES)
        for rank in ranks
        for at, _ in run.told(Within, rank=rank)
        if 0 < at <= len(run.rows_of(rank))
    )


def _parted(seen: Mapping[int, WeightHistory]) -> tuple[int, tuple[str, ...]] | None:
    """The first step before which they differ that were alike, and which do."""
    if len({one.alike for one in seen.values()}) > 1:
        return None
    steps = sorted(set.intersection(*(set(one.weights) for one in seen.values())))
    if len(steps) < _LEAST_LOOKS:
        return None
    names = next(iter(seen.values())).trained.names
    differing = [
        {
            name
            for name, *prints in zip(
                names,
                *(one.weights[step].prints for one in seen.values()),
                strict=False,
            )
            if len(set(prints)) > 1
        }
        for step in steps
    ]
    lasting = set.intersection(*differing[-2:]) - differing[0]
    for step, here in zip(steps, differing, strict=True):
        if lasting & here:
            order = tuple(name for name in names if name in lasting & here)
            return step, order
    return None


def made_at(run: Run, names: Iterable[str]) -> list[Place]:
    """Lines that make modules or parameters, by the attribute that holds them.

    Args:
        run: With the text of the source.
        names: Qualified names of parameters.

    Returns:
        Few lines, in their order; empty if several may be meant by a name.
    """
    attributes = {
        part
        for name in names
        for part in [one for one in name.split(".")[:-1] if not one.isdigit()][-1:]
        or [name]
    }
    found: dict[str, list[Place]] = {}
    for function in program_of(run).functions:
        for node in own_nodes(function.node):
            targets = node.targets if isinstance(node, ast.Assign) else []
            for target in targets:
                for part in ast.walk(target):
                    if isinstance(part, ast.Attribute) and part.attr in attributes:
                        place = Place(function.file, part.lineno, function.name)
                        found.setdefault(part.attr, []).append(place)
    lines = [
        place for one in found.values() if len(one) <= _MOST_LINES for place in one
    ]
    return sorted(dict.fromkeys(lines), key=lambda place: (place.file, place.line))
