"""What Horovod's optimizers were made of, and uses of them that it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from distdoctor.model.events import Failure
from distdoctor.model.observations.horovod import (
    ChangedInFlight,
    OptimizerWrapped,
    ReducedAgain,
    ReducedTwice,
    StateDropped,
    UnexpectedPass,
)
from distdoctor.model.run import Run


@dataclass(frozen=True, slots=True)
class DroppedState:
    """Optimizers that went on without the state of what they were made of.

    Attributes:
        dropped: One for each rank that lost some.
    """

    dropped: tuple[StateDropped, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Who lost it."""
        return tuple(one.rank for one in self.dropped)


@dataclass(frozen=True, slots=True)
class Misuse:
    """Backward passes, or clearing, that Horovod's optimizer has refused.

    Attributes:
        refused: One for each rank that ended by it.
        failures: The exceptions by which these ended.
        wrapped: How the optimizer was made, by each of them that told.
        cleared: Gradients were cleared while Horovod had them; else a backward pass
            came that it did not expect.
    """

    refused: tuple[UnexpectedPass, ...]
    failures: tuple[Failure, ...]
    wrapped: tuple[OptimizerWrapped, ...]
    cleared: bool

    @property
    def ranks(self) -> tuple[int, ...]:
        """Who raised."""
        return tuple(one.rank for one in self.failures)


@dataclass(frozen=True, slots=True)
class InFlight:
    """Steps at which ranks changed gradients that Horovod was averaging.

    Attributes:
        changes: In the order of ranks and steps.
        looks: Steps that were looked at on the first of these ranks.
    """

    changes: tuple[ChangedInFlight, ...]
    looks: int

    @property
    def ranks(self) -> tuple[int, ...]:
        """Who did so."""
        return tuple(dict.fromkeys(one.rank for one in self.changes))


def dropped_states(run: Run) -> Iterator[DroppedState]:
    """State that was lost because an optimizer was wrapped after it had some.

    Args:
        run: The run that is judged.

    Yields:
        One for each line that wraps an optimizer.
    """
    by_line: dict[object, list[StateDropped]] = {}
    for rank in run.seen:
        for one in run.of(StateDropped, rank):
            by_line.setdefault(one.place, []).append(one)
    for dropped in by_line.values():
        first = {one.rank: one for one in reversed(dropped)}
        yield DroppedState(tuple(first[rank] for rank in sorted(first)))


def misuses(run: Run) -> Iterator[Misuse]:
    """Uses of Horovod's optimizer that it refuses by an exception.

    Args:
        run: The run that is judged.

    Yields:
        One for each way of misuse.
    """
    for cleared in (False, True):
        refused, failures, wrapped = [], [], []
        for rank in run.seen:
            last = run.of(UnexpectedPass, rank)[-1:]
            failed = [
                one
                for one in run.of(Failure, rank)
                if one.error == "AssertionError" and one.fatal
            ]
            if failed and last and last[0].cleared is cleared:
                refused.append(last[0])
                failures.append(failed[-1])
                made = run.of(OptimizerWrapped, rank)
                wrapped += [one for one in made if one.optimizer == last[0].optimizer][
                    -1:
                ]
        if refused:
            yield Misuse(tuple(refused), tuple(failures), tuple(wrapped), cleared)


def changed_in_flight(run: Run) -> Iterator[InFlight]:
    """Gradients that were changed between backward and the wait for their average.

    Args:
        run: The run that is judged.

    Yields:
        One for each line that changes them and each way of doing so.
    """
    by_line: dict[object, list[ChangedInFlight]] = {}
    for rank in run.seen:
        for one in run.of(ChangedInFlight, rank):
            by_line.setdefault((one.place, one.how), []).append(one)
    for changes in by_line.values():
        steps = [one.step for one in changes if one.rank == changes[0].rank]
        yield InFlight(tuple(changes), len(steps))


@dataclass(frozen=True, slots=True)
class TwiceReduced:
    """Steps that reduced gradients which had been reduced for them already.

    Attributes:
        steps: In the order of ranks and steps.
    """

    steps: tuple[ReducedTwice, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Who made them."""
        return tuple(dict.fromkeys(one.rank for one in self.steps))


def reduced_twice(run: Run) -> Iterator[TwiceReduced]:
    """Steps behind `synchronize()`, outside of `skip_synchronize()`.

    Args:
        run: The run that is judged.

    Yields:
        One for each line that steps so.
    """
    by_line: dict[object, list[ReducedTwice]] = {}
    for rank in run.seen:
        for one in run.of(ReducedTwice, rank):
            by_line.setdefault(one.place, []).append(one)
    for steps in by_line.values():
        yield TwiceReduced(tuple(steps))


@dataclass(frozen=True, slots=True)
class ReducedAgainBy:
    """Lines of a program of TensorFlow that reduce the same gradients.

    Attributes:
        lines: What the first rank told of each, in their order.
        ranks: Whose optimizers were given such gradients.
    """

    lines: tuple[ReducedAgain, ...]
    ranks: tuple[int, ...]


def reduced_again(run: Run) -> Iterator[ReducedAgainBy]:
    """Gradients that were reduced several times before an optimizer was given them.

    Args:
        run: The run that is judged.

    Yields:
        One for each sequence of lines.
    """
    found: dict[object, tuple[tuple[ReducedAgain, ...], list[int]]] = {}
    for rank in run.seen:
        told: list[list[ReducedAgain]] = []
        for one in run.of(ReducedAgain, rank):
            if not one.at:
                told.append([])
            if told:
                told[-1].append(one)
        for each in told:
            key = each[0].op, tuple(one.place for one in each)
            found.setdefault(key, (tuple(each), []))[1].append(rank)
    for lines, ranks in found.values():
        yield ReducedAgainBy(lines, tuple(dict.fromkeys(ranks)))
