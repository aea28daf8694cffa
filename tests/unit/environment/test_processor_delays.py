"""Delays: how long a rank was ready to run and had no processor."""

import os
import time
from itertools import count, pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from distdoctor.model.events import Observation
from distdoctor.model.observations.environment import Delayed
from distdoctor.probes.environment import processor_delays
from distdoctor.probes.recorder import RECORDER

SCHEDSTAT = Path("/proc/self/schedstat")

BUSY_S = 0.5


def delay_of_burning(tell: Connection) -> None:
    """Compute on the first processor for a while; send the delay, in ns."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    end = os.times().user + BUSY_S
    while os.times().user < end:
        pass
    tell.send(processor_delays._delay_ns())


def test_samples_are_spread_over_a_job_of_any_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = count(step=200_000_000)
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(now))
    monkeypatch.setattr(processor_delays, "_delay_ns", lambda: 7_000_000)
    observed: list[Observation] = []
    monkeypatch.setattr(RECORDER, "observe", observed.append)
    seen = processor_delays.Delays()
    seen.look()
    for _ in range(20_000):
        seen.stepped()
    seen.tell()
    (one,) = (one for one in observed if isinstance(one, Delayed))
    at = one.at_ms
    assert len(at) == len(one.delay_ms) <= 513
    gaps = [later - earlier for earlier, later in pairwise(at[:-1])]
    assert max(gaps) <= 3 * min(gaps)


@pytest.mark.skipif(not SCHEDSTAT.exists(), reason="only Linux tells")
def test_a_process_that_shares_its_processor_is_delayed() -> None:
    context = get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    children = [
        context.Process(target=delay_of_burning, args=(tell,)) for _, tell in pipes
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert all(hear.recv() > BUSY_S / 4 * 1e9 for hear, _ in pipes)
