"""What one rank makes of the source on the way of a value, and how much it may ask.

A value is what an expression is on that rank, with what is known of the parameters; of
several assignments, those are left that it may come to.
"""

from __future__ import annotations

from dataclasses import dataclass

from distdoctor.analysis.source.classes import Classes
from distdoctor.analysis.source.conditions import conditions
from distdoctor.analysis.source.program import Program, Use
from distdoctor.analysis.source.rank_evaluation import RankReader, Value
from distdoctor.analysis.source.value_spots import End, Scene, Spot

_DEEPEST = 30  # ways that are followed for the sake of others
_MOST_WORK = 1_000  # steps in all


@dataclass(slots=True)
class Effort:
    """What the way of one value has cost, with all that is followed for its sake.

    Attributes:
        work: Steps so far.
        depth: Ways that are being followed, each for the sake of the one before.
    """

    work: int = 0
    depth: int = 0

    @property
    def is_spent(self) -> bool:
        """Whether no further step is worth it."""
        return self.work > _MOST_WORK

    @property
    def is_deep(self) -> bool:
        """Whether no further way is to be begun."""
        return self.depth > _DEEPEST


class SourceReading:
    """The source as one rank would read it.

    Args:
        program: The user's files.
        rank: The rank.
        size: Number of ranks.
        effort: What was done so far, by others as well.
    """

    def __init__(self, program: Program, rank: int, size: int, effort: Effort) -> None:
        self._reader = RankReader(program, rank, size)
        self._effort = effort
        # The reader knows expressions by their identity, and some are made up here.
        self._kept: list[Spot] = []

    def value(self, spot: Spot) -> Value:
        """What an expression is on the rank.

        Args:
            spot: The expression, and the function it stands in.

        Returns:
            The value, unknown where the source does not tell it.
        """
        self._kept.append(spot)
        return self._reader.value(
            spot.node, spot.scene.function, self._values(spot.scene)
        )

    def truth(self, use: Use, scene: Scene) -> bool | None:
        """Whether the rank comes to an assignment.

        Args:
            use: The assignment.
            scene: The function, as one call entered it.

        Returns:
            None if the source does not tell.
        """
        given = self._values(scene) if use.function is scene.function else {}
        every = conditions(use.function, use.line)
        return self._reader.all_hold(every, given).truth

    def reached(self, uses: list[Use], scene: Scene) -> list[Use]:
        """Of assignments, those that may have been the last one.

        Args:
            uses: Assignments of one name.
            scene: The function, as one call entered it.

        Returns:
            Those that may be, in the order of their lines.
        """
        left: list[Use] = []
        for use in sorted(uses, key=lambda use: use.line):
            truth = self.truth(use, scene)
            if truth is False:
                continue
            if truth is True:
                left.clear()
            left.append(use)
        return left

    def _values(self, scene: Scene) -> dict[str, Value]:
        """What is known of the parameters of a function, as it was entered."""
        if scene.given is None or self._effort.is_deep:
            return {}
        self._effort.depth += 1
        found = {name: self.value(spot) for name, spot in scene.given.items()}
        self._effort.depth -= 1
        return {n: one for n, one in found.items() if one.is_known or one.ranked}


class SearchStep:
    """One kind of expression, on the way of a value to where it was before.

    Args:
        program: The user's files.
        classes: Those of the program.
        reading: What the rank makes of the source.
        end: Follows a value to its end.
    """

    def __init__(
        self, program: Program, classes: Classes, reading: SourceReading, end: End
    ) -> None:
        self._program = program
        self._classes = classes
        self._reading = reading
        self._end = end
