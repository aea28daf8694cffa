"""Names that ranks number differently, each by the order of its own sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from distdoctor.analysis.divergence.parting_branches import program_of
from distdoctor.analysis.replicas.replica_sets import replicas
from distdoctor.analysis.source.unordered_sets import makers_of
from distdoctor.model.events import Place
from distdoctor.model.observations.data import Numbered
from distdoctor.model.run import Run


@dataclass(frozen=True, slots=True)
class Renumbered:
    """The same names have other numbers on replicas.

    Attributes:
        by_rank: What each has.
        made: Lines that make the dictionary.
        sets: Sets that it has its order from, as the source shows.
        hashed: Whether its order is seen to be that of sets, on every rank.
        fits: Whether a model has a dimension of that size, on every rank.
    """

    by_rank: Mapping[int, Numbered]
    made: tuple[Place, ...]
    sets: tuple[Place, ...]
    hashed: bool
    fits: bool


def renumbered(run: Run) -> Iterator[Renumbered]:
    """Numberings that differ among replicas as their sets do, each once.

    One that differs otherwise may be meant to: an order in which a rank does things, or
    a ranking by what it has counted.

    Args:
        run: The run that is judged.

    Yields:
        One for each numbering.
    """
    reported: set[int] = set()
    for ranks in () if run.simulated else replicas(run):
        if not run.has_seen(ranks):
            continue
        last = {
            rank: {(one.name, one.keys): one for one in run.of(Numbered, rank)}
            for rank in ranks
        }
        for key in last[ranks[0]]:
            by_rank = {rank: one[key] for rank, one in last.items() if key in one}
            if len(by_rank) < len(ranks) or key[1] in reported:
                continue
            if len({one.numbers for one in by_rank.values()}) == 1:
                continue
            made, sets = makers_of(program_of(run), key[0])
            hashed = all(one.hashed for one in by_rank.values())
            if hashed or sets:
                reported.add(key[1])
                fits = all(one.fits for one in by_rank.values())
                yield Renumbered(by_rank, tuple(made), tuple(sets), hashed, fits)
