"""Who rests, and who only gets little of a crowded machine."""

import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from distdoctor.launch.process_looks import Looks
from distdoctor.launch.progress import Progress
from distdoctor.launch.stillness import Stillness

_BEGUN_S, _MEETING_S, _RANKS = 30.0, 20.0, 8


class _Used:
    """Each rank has used a share of a core since it was first asked for."""

    def __init__(self, shares: dict[int, float], server: str = "") -> None:
        self.shares, self.begun_ns, self.server = shares, 0, server

    def name_server(self, pids: Iterable[int]) -> str:
        return self.server if {*pids} else ""

    def used(self, pid: int) -> tuple[int, float]:
        now_ns = time.monotonic_ns()
        if not self.begun_ns:
            self.begun_ns = now_ns
        seconds = (now_ns - self.begun_ns) / 1e9
        return now_ns, self.shares[pid] * seconds


def stillness(shares: dict[int, float], server: str = "") -> Stillness:
    """Of ranks that have made no step, and were quiet for long."""
    header = SimpleNamespace(steps=0)
    ranks = [
        SimpleNamespace(
            rank=pid, pid=pid, reader=SimpleNamespace(header=lambda: header)
        )
        for pid in shares
    ]
    moved_ns = time.monotonic_ns() - int(_BEGUN_S * 1e9)
    progress: Any = SimpleNamespace(
        living=lambda: ranks,
        last_event_ns=lambda: moved_ns,
        finds_nobody=lambda seconds: seconds < _BEGUN_S,
    )
    measured = Stillness(cast(Progress, progress), cast(Looks, _Used(shares, server)))
    measured._since_ns = moved_ns
    measured._steps = (0,) * len(shares)
    measured._watched_ns, measured._looked_ns = moved_ns, time.monotonic_ns()
    measured.look()
    time.sleep(0.01)
    return measured


@pytest.mark.parametrize(("share", "rests"), [(0.0, True), (0.01, True), (0.08, False)])
def test_who_gets_a_small_share_of_a_processor_works(share: float, rests: bool) -> None:
    shares = dict.fromkeys(range(1, _RANKS), 0.0) | {_RANKS: share}
    measured = stillness(shares)
    assert measured.all_rest(_MEETING_S) is rests
    assert (still := measured.now()) is not None
    assert still.idle == [*range(1, _RANKS + 1)]


def test_without_ranks_nobody_rests() -> None:
    assert not stillness({}).all_rest(_MEETING_S)


def test_a_machine_that_was_suspended_tells_of_no_rest() -> None:
    measured = stillness({1: 0.0, 2: 0.0})
    assert measured.all_rest(_MEETING_S)
    measured._looked_ns -= 6 * 1_000_000_000
    measured.look()
    time.sleep(0.01)
    assert not measured.all_rest(_MEETING_S)
    assert measured.all_rest(0.001)
    assert (still := measured.now()) is not None
    assert still.seconds > _BEGUN_S  # that nothing moved since is told all the same


def test_who_waits_for_a_name_server_does_not_rest() -> None:
    measured = stillness({1: 0.0, 2: 0.0}, server="10.0.0.53")
    assert not measured.all_rest(_MEETING_S)
    assert (still := measured.now()) is not None
    assert still.name_server == "10.0.0.53"
    assert measured.remark() == ""  # once is not for long
    for _ in range(5):
        measured._names._looked_ns -= 2_000_000_000
        measured.look()
        measured._looked_ns = time.monotonic_ns()
    assert "name server 10.0.0.53" in measured.remark()


def test_who_was_answered_long_ago_rests() -> None:
    measured = stillness({1: 0.0, 2: 0.0}, server="10.0.0.53")
    measured._names.asked_ns -= int((_MEETING_S + 11) * 1e9)
    assert measured.all_rest(_MEETING_S)
    assert (still := measured.now()) is not None
    assert still.name_server == ""
