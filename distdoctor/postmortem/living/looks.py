"""Looks at all processes of a job, several times.

Facts of the kernel are taken just before the stacks and a moment after them, because
the taking of stacks wakes threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from distdoctor.postmortem.living.dump_taking import Dumps, take
from distdoctor.postmortem.living.process_facts import ProcessFacts, facts_of
from distdoctor.postmortem.living.worker_servers import WorkerServers

SETTLE_S = 0.1
"""From the end of a dump, for which threads are woken, to the facts after it."""


@dataclass(slots=True)
class JobLook:
    """All processes at about one moment.

    Attributes:
        at_s: When, on the monotonic clock.
        before: By process number, what was known just before its stacks were taken.
        dumps: The stacks.
        after: What was known a moment later.
        ended_s: When that was.
    """

    at_s: float
    before: Mapping[int, ProcessFacts]
    dumps: Dumps
    after: Mapping[int, ProcessFacts]
    ended_s: float


def look(
    pids: Sequence[int],
    others: Sequence[int] = (),
    *,
    native: bool = False,
    servers: WorkerServers | None = None,
    holds_still: bool = True,
) -> JobLook:
    """Look at processes once.

    Args:
        pids: Those whose stacks are wanted.
        others: Those of which facts are enough.
        native: Take native functions, too.
        servers: Whom to ask for stacks where py-spy is refused.
        holds_still: Each is held still while its stacks are read; else what they were
            may have changed meanwhile, and some cannot be read.
    """
    at_s = time.monotonic()
    every = [*pids, *others]
    before = {pid: facts_of(pid) for pid in every}
    living = [pid for pid in pids if before[pid].state not in {"", "Z", "X"}]
    stopped = [
        pid for pid in living if not holds_still or before[pid].state in {"T", "t"}
    ]
    dumps = take(living, stopped=stopped, native=native, servers=servers)
    time.sleep(SETTLE_S)
    after = {pid: facts_of(pid) for pid in every}
    return JobLook(at_s, before, dumps, after, time.monotonic())


def seconds_of(looks: Sequence[JobLook]) -> float:
    """From the end of the first look to the beginning of the last.

    Args:
        looks: From the first to the last.
    """
    return max(0.0, looks[-1].at_s - looks[0].ended_s)


Pause = Callable[[float], None]


def watch(
    pids: Sequence[int],
    others: Sequence[int],
    pauses: Sequence[float],
    goes_on: Callable[[list[JobLook]], bool],
    *,
    native: bool = False,
    servers: WorkerServers | None = None,
    pause: Pause = time.sleep,
) -> list[JobLook]:
    """Look several times.

    Args:
        pids: Of the ranks.
        others: Of what ranks have started.
        pauses: Seconds between two looks.
        goes_on: Whether, after two looks or more, more of them would tell more.
        native: Take native functions at the first look.
        servers: Whom to ask for stacks where py-spy is refused.
        pause: Waits.

    Returns:
        The looks, at least two.
    """
    looks = [look(pids, others, native=native, servers=servers)]
    for seconds in pauses:
        pause(seconds)
        looks.append(look(pids, others, servers=servers))
        if not goes_on(looks):
            break
    return looks
