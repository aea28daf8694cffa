"""Lines that exchange the parameters of a model, and leave its buffers as they are."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.source.program import called, own_nodes
from distdoctor.model.events import Place
from distdoctor.model.run import Run

_PARAMETERS = frozenset({"parameters", "named_parameters"})

_EXCHANGES = frozenset({"all_reduce", "broadcast"})

_BUFFERS = frozenset(
    {"buffers", "named_buffers", "running_mean", "running_var", "state_dict"}
)
"""Names by which a function comes to buffers."""

_MOST_LINES = 2


def exchanging_parameters(
    run: Run, ranks: Iterable[int], among: Mapping[int, range] | None = None
) -> list[Place]:
    """Loops over parameters that send each, as all of some ranks did.

    Loops that send gradients, and functions that speak of buffers, are left out.

    Args:
        run: Holds calls and sources.
        ranks: Which.
        among: By rank, which of its calls count, from 0, if not all do: those by which
            replicas are made alike at the start are made in each job.

    Returns:
        The heads of a few loops; empty if one of the ranks did not send there.
    """
    ranks = list(ranks)
    if not run.has_seen(ranks):
        return []
    used = [_sites(run, rank, (among or {}).get(rank)) for rank in ranks]
    common = set.intersection(*used) if used else set()
    found = [
        Place(function.file, loop.lineno, function.name)
        for function in program_of(run).functions
        if not _names(function.node) & _BUFFERS
        for loop in own_nodes(function.node)
        if isinstance(loop, ast.For) and _names(loop.iter) & _PARAMETERS
        for call in _sending(loop)
        if (function.file, call.lineno) in common
    ]
    return list(dict.fromkeys(found))[:_MOST_LINES]


def _sites(run: Run, rank: int, among: range | None) -> set[tuple[str, int]]:
    """Lines from which a rank made calls, all or some of them."""
    rows = run.rows_of(rank)
    if among is not None:
        rows = rows[among.start : among.stop]
    sites = run.column("site")[rows.start : rows.stop]
    # Most ranks do what the one before did.
    key, before = sites.tobytes(), run.memory.get("sites of a rank")
    if before is None or before[0] != key:
        places = [run.sites[number] for number in np.unique(sites).tolist()]
        used = {(place.file, place.line) for place in places if place is not None}
        run.memory["sites of a rank"] = before = key, used
    lines: set[tuple[str, int]] = before[1]
    return lines


def _sending(loop: ast.For) -> Iterator[ast.Call]:
    """Calls that send what a loop goes through, and not its gradient."""
    targets = _names(loop.target)
    for node in ast.walk(loop):
        if isinstance(node, ast.Call) and called(node) in _EXCHANGES and node.args:
            names = _names(node.args[0])
            if names & targets and "grad" not in names:
                yield node


def _names(node: ast.AST) -> set[str]:
    """Names of variables and attributes within."""
    found = set()
    for part in ast.walk(node):
        match part:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                found.add(name)
    return found
