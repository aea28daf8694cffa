"""The kinds of rows of which the cascade that explains divergences is made.

A row says in words what it explains, and has the function that looks whether it fits.
The kinds differ in what the function is asked about (the whole run, one process group,
one divergence that was found) and in what follows if it fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from distdoctor.analysis.causes import SOURCE, Divergence
from distdoctor.analysis.collectives.alignment import alignments
from distdoctor.analysis.divergence.first_faults import GroupCalls
from distdoctor.model.run import Run


class CascadeStep(Protocol):
    """One row of the cascade, or several that belong together."""

    @property
    def explains(self) -> str:
        """What it explains, in words."""
        ...

    def applied(self, run: Run, found: list[Divergence]) -> list[Divergence]:
        """The divergences after this row, given those before it."""
        ...

    def ends(self, found: list[Divergence]) -> bool:
        """Whether the rows below are not asked any more."""
        ...


@dataclass(frozen=True, slots=True)
class IfNone:
    """Looks at the whole run, if no row above has found anything.

    Attributes:
        explains: What it explains.
        by: Finds such divergences.
        is_all: What it finds is all there is to say: no row below is asked.
    """

    explains: str
    by: Callable[[Run], Iterable[Divergence]]
    is_all: bool = False

    def applied(self, run: Run, found: list[Divergence]) -> list[Divergence]:
        """What was found above; if nothing was, what this row finds."""
        return found or list(self.by(run))

    def ends(self, found: list[Divergence]) -> bool:
        """Whether it found what explains all else."""
        return self.is_all and bool(found)


@dataclass(frozen=True, slots=True)
class Retelling:
    """Looks at each divergence alone, and tells it as what it is, if it fits.

    Attributes:
        explains: What it explains.
        by: Gives the divergence as this row tells it, or as it was.
        by_source: It reads the user's source; that it did is kept as evidence.
        unless: Key in the details of divergences that it leaves alone.
    """

    explains: str
    by: Callable[[Run, Divergence], Divergence]
    by_source: bool = False
    unless: str = ""

    def applied(self, run: Run, found: list[Divergence]) -> list[Divergence]:
        """Each divergence as this row tells it."""
        return [self._retold(run, one) for one in found]

    def ends(self, _found: list[Divergence]) -> bool:
        """Never."""
        return False

    def _retold(self, run: Run, one: Divergence) -> Divergence:
        if self.unless and self.unless in one.details:
            return one
        retold = self.by(run, one)
        if self.by_source and retold is not one:
            return replace(retold, details={**retold.details, SOURCE: True})
        return retold


@dataclass(frozen=True, slots=True)
class OverAll:
    """Looks at all divergences together: joins, orders, replaces or adds some.

    Attributes:
        explains: What it explains.
        by: Gives all divergences as they are from here on.
    """

    explains: str
    by: Callable[[Run, list[Divergence]], list[Divergence]]

    def applied(self, run: Run, found: list[Divergence]) -> list[Divergence]:
        """All divergences, looked at together."""
        return self.by(run, found)

    def ends(self, _found: list[Divergence]) -> bool:
        """Never."""
        return False


@dataclass(frozen=True, slots=True)
class Enough:
    """Ends the cascade where a divergence is explained as well as it can be.

    Attributes:
        explains: What is explained then.
        key: In the details of such a divergence.
    """

    explains: str
    key: str

    def applied(self, _run: Run, found: list[Divergence]) -> list[Divergence]:
        """The divergences as they were."""
        return found

    def ends(self, found: list[Divergence]) -> bool:
        """Whether one of them has the key."""
        return any(self.key in one.details for one in found)


@dataclass(frozen=True, slots=True)
class InGroup:
    """Looks at the calls on one process group; the first such row that fits is its.

    Attributes:
        explains: What it explains.
        by: Finds such divergences of the group; None: it does not fit.
        then: Rows by which what it finds is told further.
    """

    explains: str
    by: Callable[[Run, GroupCalls], list[Divergence] | None]
    then: Sequence[Retelling] = ()


@dataclass(frozen=True, slots=True)
class PerGroup:
    """Asks rows of each process group, one after the other, until one fits.

    Attributes:
        explains: What they explain together.
        rows: In the order in which they are asked.
    """

    explains: str
    rows: Sequence[InGroup]

    def applied(self, run: Run, found: list[Divergence]) -> list[Divergence]:
        """What was found above, and what is found in each group."""
        parts = [GroupCalls(run, one) for one in alignments(run)]
        return [
            *found,
            *(divergence for part in parts for divergence in self._of(run, part)),
        ]

    def ends(self, _found: list[Divergence]) -> bool:
        """Never."""
        return False

    def _of(self, run: Run, part: GroupCalls) -> list[Divergence]:
        for row in self.rows:
            found = row.by(run, part)
            if found is not None:
                return applied(run, row.then, found)
        return []


def applied(
    run: Run, cascade: Sequence[CascadeStep], found: list[Divergence]
) -> list[Divergence]:
    """The divergences of a run after all rows of a cascade.

    Args:
        run: The run.
        cascade: Rows in the order in which they are asked.
        found: What is known before the first of them.
    """
    for row in cascade:
        found = row.applied(run, found)
        if row.ends(found):
            break
    return found
