"""The watch on ranks that keep others waiting: what is stuck, and what only slow."""

import os
import time
from collections.abc import Sequence
from typing import cast

import pytest

from distdoctor.journal.folder import StackFrame, StackSample
from distdoctor.launch.process_looks import Looks
from distdoctor.launch.progress import RankProgress
from distdoctor.launch.watchdog import DEAD_AFTER_S, LOOK_EVERY_S, STUCK_AFTER_S, _Watch

DRAW, MAIN = StackFrame("t.py", 20, "draw"), StackFrame("t.py", 56, "main")
OTHER = StackFrame("t.py", 70, "save")

Look = tuple[list[StackFrame], list[list[StackFrame]]]


class Taker:
    """Gives prepared stacks, as if this process were the rank."""

    def __init__(self, looks: Sequence[Look], server: str = "") -> None:
        self.looks, self.server = list(looks), server
        self.taken = 0

    def name_server(self, _pids: object) -> str:
        """For which the rank waits."""
        return self.server

    def take(self, _ranks: object, _seconds: float) -> list[StackSample]:
        """The next of them, taken when it would have been."""
        frames, standing = self.looks[self.taken]
        self.taken += 1
        return [
            StackSample(
                rank=1,
                pid=os.getpid(),
                seconds=self.taken * LOOK_EVERY_S,
                frames=frames,
                standing=standing,
            )
        ]


class Silent:
    """A rank that has not moved for a minute."""

    rank, pid = 1, os.getpid()
    moved_ns = time.monotonic_ns() - 60_000_000_000
    negotiates = False


def is_stuck(looks: Sequence[Look], *, threads: bool, server: str = "") -> bool:
    watch = _Watch(cast("Looks", Taker(looks, server)))
    for n in range(len(looks)):
        now = n * (LOOK_EVERY_S + 0.01)
        watch.look([cast("RankProgress", Silent())], now, 0.0, threads=threads)
    return watch.is_stuck()


LOOKS = int(STUCK_AFTER_S / LOOK_EVERY_S) + 2


@pytest.mark.parametrize(
    ("odd", "even", "threads", "stuck"),
    [
        # A loop calls a library now and then: it stands in the user's line, or not.
        (([DRAW, MAIN], [[DRAW, MAIN]]), ([DRAW, MAIN], []), False, True),
        (([DRAW, MAIN], []), ([DRAW, MAIN], []), False, True),
        (([DRAW, MAIN], []), ([MAIN], []), False, False),
        # Where threads may hold each other up, one that moves is at work.
        (([MAIN], [[OTHER]]), ([MAIN], []), True, False),
        (([MAIN], [[OTHER]]), ([MAIN], [[OTHER]]), True, True),
    ],
)
def test_who_stays_in_the_same_functions_is_stuck(
    odd: Look, even: Look, threads: bool, stuck: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Watch, "_reads_or_writes", lambda *_: False)
    assert is_stuck([odd, even] * LOOKS, threads=threads) is stuck


@pytest.mark.parametrize("server", ["", "10.0.0.53"])
def test_who_waits_for_a_name_server_is_slow_and_not_stuck(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Watch, "_reads_or_writes", lambda *_: False)
    looks: list[Look] = [([DRAW, MAIN], [])] * LOOKS
    assert is_stuck(looks, threads=False, server=server) is not bool(server)


def sample(seconds: float, cpu: float, *, holds_gil: bool = True) -> StackSample:
    return StackSample(
        rank=1, pid=7, seconds=seconds, cpu_seconds=cpu, holds_gil=holds_gil
    )


@pytest.mark.parametrize(
    ("taken", "dead"),
    [
        ([sample(0, 3.0), sample(9, 3.1), sample(DEAD_AFTER_S, 3.2)], True),
        ([sample(0, 3.0), sample(9, 3.1), sample(DEAD_AFTER_S - 1, 3.2)], False),
        ([sample(0, 3.0), sample(9, 7.0), sample(DEAD_AFTER_S, 9.0)], False),
        (
            [sample(0, 3), sample(9, 3, holds_gil=False), sample(DEAD_AFTER_S, 3)],
            False,
        ),
        ([], False),
    ],
)
def test_who_holds_the_interpreters_lock_and_does_nothing_is_dead(
    taken: list[StackSample], dead: bool
) -> None:
    watch = _Watch(cast("Looks", Taker([])))
    watch._by_pid[7] = taken
    assert watch.is_dead() is dead
