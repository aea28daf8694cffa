"""The chain of calls to where paths parted: by which lines each side came there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distdoctor.analysis.divergence.parting_branches import line_of_way
from distdoctor.analysis.divergence.rank_guards import GUARD
from distdoctor.model.events import Call, Place
from distdoctor.model.run import Run, named
from distdoctor.report.html.shown_text import shown
from distdoctor.report.schema import FindingData

_MOST_SIDES = 6


@dataclass(frozen=True, slots=True)
class ChainSide:
    """The ranks that went one way.

    Attributes:
        ranks: In words.
        mark: culprit | victim.
        steps: Lines behind the point at which the paths part, outermost first.
        call: The call at the end of the way.
    """

    ranks: str
    mark: str
    steps: tuple[str, ...]
    call: str


@dataclass(frozen=True, slots=True)
class PartingChain:
    """Where the paths of ranks parted.

    Attributes:
        where: The call on the group at which they stand apart.
        condition: The branch of the source that explains it; empty: none is known.
        way: The way to it, as the source tells it.
        common: Lines that all came by, outermost first.
        sides: What each part of the ranks did then.
        left_out: Sides that are not shown.
    """

    where: str
    condition: str
    way: str
    common: tuple[str, ...]
    sides: tuple[ChainSide, ...]
    left_out: int


def parting_chain(finding: FindingData, run: Run) -> PartingChain | None:
    """The chain of a finding that tells of a call on a group.

    Args:
        finding: Of a report.
        run: What was examined.

    Returns:
        The chain; None if it is about no such call, or the lines are not known.
    """
    details = finding.details
    group, ordinal = details.get("group"), details.get("ordinal")
    index = next((n for n, one in enumerate(run.groups) if one.name == group), None)
    condition = shown(str(details.get(GUARD) or ""), 400)
    way = shown(str(details.get("way") or ""), 1_000)
    sides: list[tuple[list[int], Call, tuple[Place, ...]]] = []
    if index is not None and isinstance(ordinal, int) and ordinal > 0:
        sides = _sides(finding, run, index, ordinal)
    common = _common([chain for _, _, chain in sides])
    if len(sides) < 2 and not condition:
        return None
    culprits = set(finding.ranks)
    return PartingChain(
        where=shown(f"call {ordinal} on {group}") if sides else "",
        condition=condition,
        way=way,
        common=tuple(_words(one) for one in common),
        sides=tuple(
            ChainSide(
                ranks=named(ranks),
                mark="culprit" if culprits.issuperset(ranks) else "victim",
                steps=tuple(_words(one) for one in chain[len(common) :]),
                call=shown(_last(call, ordinal)),
            )
            for ranks, call, chain in sides[:_MOST_SIDES]
        ),
        left_out=max(0, len(sides) - _MOST_SIDES),
    )


def _last(call: Call, ordinal: object) -> str:
    number = f"call {call.ordinal} on {call.group}" if call.ordinal else call.group
    behind = "" if call.ordinal == ordinal else ", which is where it stands"
    return f"{call} ({number}{behind})"


def _sides(
    finding: FindingData, run: Run, group: int, ordinal: int
) -> list[tuple[list[int], Call, tuple[Place, ...]]]:
    """Ranks by the way to their call at an ordinal, or, without one, their last."""
    found: dict[tuple[int, ...], tuple[list[int], int]] = {}
    for rank in [*finding.ranks, *finding.victims]:
        if not 0 <= rank < run.world_size or not run.rows_of(rank):
            continue
        rows = run.rows_on(rank, group)
        at = rows[np.flatnonzero(run.values("ordinal", rows) == ordinal)[:1]]
        row = int(at[0]) if len(at) else run.rows_of(rank)[-1]
        record = run.calls[row]
        if not record["site"]:
            continue
        names = ("op", "site", "callers", "group", "ordinal")
        key = tuple(int(record[name]) for name in names)
        found.setdefault(key, ([], row))[0].append(rank)
    sides = []
    for ranks, row in found.values():
        call = run.call(row)
        if call.place is not None:
            chain = (*reversed(call.callers), call.place)
            sides.append((sorted(ranks), call, chain))
    return sides


def _common(chains: Sequence[Sequence[Place]]) -> list[Place]:
    """The lines that all chains begin with; each keeps one of its own."""
    common = []
    for places in zip(*(chain[:-1] for chain in chains), strict=False):
        if len(set(places)) > 1:
            break
        common.append(places[0])
    return common


def _words(place: Place) -> str:
    name = line_of_way(place)
    return shown(f"{name} ({place.file})")
