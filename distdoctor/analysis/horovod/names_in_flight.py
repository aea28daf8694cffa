"""Calls that Horovod refused, because it had one of the same name already."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from distdoctor.model.events import Call, Failure, Place, State
from distdoctor.model.observations.horovod import NameInFlight, OptimizerWrapped
from distdoctor.model.run import Run


@dataclass(frozen=True, slots=True)
class RefusedName:
    """A name that ranks used again before the call that had it was over.

    Attributes:
        refused: One for each rank that ended by it.
        earlier: The call of the first of them that had the name, if it is known.
        culprits: The ranks, where others were seen not to do so; else none, as those
            that came later or were ended may have been about to.
        wrapped: How Horovod's optimizers were made, on the first of these ranks.
    """

    refused: tuple[NameInFlight, ...]
    earlier: Call | None
    culprits: tuple[int, ...]
    wrapped: tuple[OptimizerWrapped, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Who was refused."""
        return tuple(one.rank for one in self.refused)


def refused_names(run: Run) -> Iterator[RefusedName]:
    """Names that ranks used twice at a time, and ended because of that.

    A program that catches Horovod's error may have meant it.

    Args:
        run: The run that is judged.

    Yields:
        One for each line that was refused.
    """
    by_line: dict[Place | None, list[NameInFlight]] = {}
    for rank in run.seen:
        refused = run.of(NameInFlight, rank)
        fatal = [one for one in run.of(Failure, rank) if one.fatal]
        if refused and any(one.error == "ValueError" for one in fatal):
            by_line.setdefault(refused[-1].place, []).append(refused[-1])
    for found in by_line.values():
        first, ranks = found[0], tuple(one.rank for one in found)
        rows = _rows(run, first.rank, first.name)
        apart = _differ(run, first, len(rows), set(run.seen).difference(ranks))
        yield RefusedName(
            refused=tuple(found),
            earlier=run.call(rows[-1]) if rows else None,
            culprits=ranks if apart else (),
            wrapped=tuple(run.of(OptimizerWrapped, first.rank)),
        )


def _rows(run: Run, rank: int, name: str) -> list[int]:
    """The rank's calls of that name."""
    specs = [n for n, spec in enumerate(run.specs) if spec.names[:1] == (name,)]
    rows = run.rows_of(rank)
    mine = np.isin(run.calls["spec"][rows.start : rows.stop], specs)
    return (rows.start + np.flatnonzero(mine)).tolist()


def _differ(run: Run, refused: NameInFlight, uses: int, others: set[int]) -> bool:
    """Whether each of the others waited for the earlier call, and gave no second.

    An optimizer's hooks give gradients in an order of their own: nothing tells then.
    """
    if not others or not uses or refused.holders:
        return False
    for rank in others:
        rows = _rows(run, rank, refused.name)
        waited = (State.WAITING, State.DONE, State.RAISED)
        if len(rows) != uses or run.calls["state"][rows[-1]] not in waited:
            return False
    return True
