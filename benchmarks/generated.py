"""Runs of many ranks, made by rule and not by ranks.

Every rank goes round a loop of calls, on groups of a mesh, and the last calls of some
ranks are others than planned. What comes of that is played out: a call completes when
all members made it, a call that cannot meet is refused, and whoever waits then, waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distdoctor.model.events import (
    WORLD,
    Ended,
    Event,
    Failure,
    Left,
    Place,
    Started,
    State,
    Tensor,
)
from distdoctor.model.operations import CODE_OF, REDUCE_OPS, signature
from distdoctor.model.run import CALLS, Group, Run, Spec

_SUM = REDUCE_OPS.index("sum")
_FILE = "train.py"


@dataclass(frozen=True, slots=True)
class Step:
    """An all_reduce of 1,024 elements."""

    axis: str  # of the mesh: its groups; or "world"
    line: int
    dtype: str = "float32"


Tail = Sequence[Step | Event]
"""What a rank does at the end: calls, or events that end it."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks in a grid of so many dimensions; the last axis holds neighbours."""

    sizes: Mapping[str, int]

    @property
    def ranks(self) -> int:
        """How many."""
        return int(np.prod(list(self.sizes.values())))

    def rank(self, **at: int) -> int:
        """The rank at a place; 0 on the axes that are not named."""
        places = tuple(at.get(axis, 0) for axis in self.sizes)
        return int(np.ravel_multi_index(places, tuple(self.sizes.values())))

    def groups(self) -> tuple[list[Group], dict[str, list[int]]]:
        """All groups, and by axis the number of each rank's group."""
        grid = np.arange(self.ranks).reshape(tuple(self.sizes.values()))
        groups = [Group(WORLD, tuple(range(self.ranks)))]
        of_rank = {WORLD: [0] * self.ranks}
        for n, axis in enumerate(self.sizes):
            of_rank[axis] = [0] * self.ranks
            for members in np.moveaxis(grid, n, -1).reshape(-1, self.sizes[axis]):
                ranks = tuple(members.tolist())
                for rank in ranks:
                    of_rank[axis][rank] = len(groups)
                groups.append(Group(f"{axis}_{len(groups)}", ranks))
        return groups, of_rank


def finished(rank: int, line: int) -> list[Event]:
    """A rank leaves the job."""
    left = Left(rank=rank, place=Place(_FILE, line, "train"))
    return [left, Ended(rank=rank, status=0)]


def died(rank: int, line: int) -> list[Event]:
    """A rank raises an exception of its own."""
    place = Place(_FILE, line, "train")
    failure = Failure(rank=rank, error="KeyError", message="'image'", place=place)
    return [failure, Ended(rank=rank, status=1)]


def generate(
    mesh: Mesh, loop: Sequence[Step], calls_per_rank: int, tails: Mapping[int, Tail]
) -> Run:
    """A run that ends in the middle, or with all its ranks waiting.

    Args:
        mesh: The ranks and their groups.
        loop: The calls of one round.
        calls_per_rank: How many calls all make before the last rounds, or nearly.
        tails: By rank, what it does instead of two more rounds.
    """
    return _Generator(mesh, loop, calls_per_rank // len(loop), tails).run()


class _Generator:
    def __init__(
        self, mesh: Mesh, loop: Sequence[Step], rounds: int, tails: Mapping[int, Tail]
    ) -> None:
        self._mesh, self._loop, self._rounds, self._tails = mesh, loop, rounds, tails
        self._ranks = range(mesh.ranks)
        self._usual: Tail = [*loop, *loop]
        steps = [*loop, *self._steps(*tails.values())]
        self._sites = [None, *sorted({Place(_FILE, s.line, "train") for s in steps})]
        self._dtypes = sorted({step.dtype for step in steps})
        self._groups, self._of_rank = mesh.groups()
        self._per_round = Counter(step.axis for step in loop)
        # The signatures issued on each group after the rounds, and by whom.
        self._issued: dict[tuple[int, int], dict[int, str]] = {}

    @staticmethod
    def _steps(*tails: Tail) -> list[Step]:
        return [step for tail in tails for step in tail if isinstance(step, Step)]

    def run(self) -> Run:
        made, life = self._play()
        prefix = self._prefix()
        lengths = [len(prefix) + len(made[rank]) for rank in self._ranks]
        calls = np.zeros(sum(lengths), CALLS)
        at = 0
        for rank, length in enumerate(lengths):
            mine = calls[at : at + length]
            mine[: len(prefix)] = prefix
            groups = [self._of_rank[step.axis][rank] for step in self._loop]
            mine["group"][: len(prefix)] = np.tile(groups, self._rounds)
            for n, (step, ordinal, state) in enumerate(made[rank], len(prefix)):
                mine[n] = self._record(step, ordinal, state)
                mine["group"][n] = self._of_rank[step.axis][rank]
            mine["rank"] = rank
            mine["nodes"] = np.arange(length) // len(self._loop) * 50
            at += length
        return Run(
            world_size=self._mesh.ranks,
            groups=tuple(self._groups),
            calls=calls,
            sites=self._sites,
            specs=[Spec((Tensor((1024,), dtype),)) for dtype in self._dtypes],
            life={
                rank: [
                    (0, Started(rank=rank, world_size=self._mesh.ranks)),
                    *((lengths[rank], event) for event in life.get(rank, ())),
                ]
                for rank in self._ranks
            },
            stopped="deadlock",
        )

    def _prefix(self) -> NDArray[Any]:
        seen: Counter[str] = Counter()
        records = []
        for step in [*self._loop] * self._rounds:
            seen[step.axis] += 1
            records.append(self._record(step, seen[step.axis], State.DONE))
        return np.array(records, CALLS)

    def _record(self, step: Step, ordinal: int, state: State) -> tuple[int, ...]:
        place = Place(_FILE, step.line, "train")
        op = CODE_OF["all_reduce"]
        return (
            signature(op, _SUM, -1, (step.dtype,), (1024,)),
            *(ordinal, 0, 0, 0, 0, 0),
            self._sites.index(place),
            0,
            self._dtypes.index(step.dtype),
            *(-1, 0, 0, 0),
            *(op, _SUM, state, 0),
        )

    def _play(
        self,
    ) -> tuple[list[list[tuple[Step, int, State]]], dict[int, list[Event]]]:
        """The last calls of each rank, and the events that ended some."""
        made: list[list[tuple[Step, int, State]]] = [[] for _ in self._ranks]
        life: dict[int, list[Event]] = {}
        at = dict.fromkeys(self._ranks, 0)
        ordinals = {rank: Counter(self._first()) for rank in at}
        ready = list(at)
        while ready:
            waiting: list[int] = []
            for rank in ready:
                tail = self._tails.get(rank, self._usual)
                while at[rank] < len(tail):
                    step = tail[at[rank]]
                    at[rank] += 1
                    if not isinstance(step, Step):
                        life.setdefault(rank, []).append(step)
                        continue
                    ordinals[rank][step.axis] += 1
                    ordinal = ordinals[rank][step.axis]
                    state = self._meet(rank, step, ordinal)
                    made[rank].append((step, ordinal, state))
                    break
            for rank in at:
                if made[rank] and made[rank][-1][2] is State.WAITING:
                    step, ordinal, _ = made[rank][-1]
                    if self._is_complete(rank, step, ordinal):
                        made[rank][-1] = (step, ordinal, State.DONE)
                        waiting.append(rank)
            ready = waiting
        return made, life

    def _first(self) -> dict[str, int]:
        return {axis: n * self._rounds for axis, n in self._per_round.items()}

    def _meet(self, rank: int, step: Step, ordinal: int) -> State:
        there = self._issued.setdefault((self._of_rank[step.axis][rank], ordinal), {})
        # The same as anybody who is there: all that are there agree.
        if there and next(iter(there.values())) != step.dtype:
            return State.REFUSED
        there[rank] = step.dtype
        return State.WAITING

    def _is_complete(self, rank: int, step: Step, ordinal: int) -> bool:
        group = self._of_rank[step.axis][rank]
        there = self._issued[group, ordinal]
        return len(there) == len(self._groups[group].ranks)
