"""The part of a recorded job on a node: forwards what is recorded, and ends nothing.

Whatever becomes of the head, of the connection to it or of us: the job goes on.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from distdoctor.launch.bare_command import kept_back, started, until_ended
from distdoctor.launch.node_agent import NodeAgent

STEP_S = 0.1
"""From one look for what is new to the next; shorter ones take time from the job."""

_LOOK_S = 2.0  # for processes of the job; it reads something of each in the machine
_FINISH_S = 10.0
_ORPHANS_S = 1.0  # for ranks that outlive the command


def recorded_part(
    agent: NodeAgent, command: Sequence[str], environment: Mapping[str, str]
) -> int:
    """Run a command, and forward what its ranks do.

    Args:
        agent: The connection to the head, which is there.
        command: Program and arguments.
        environment: Its environment.

    Returns:
        Its exit status, as a shell counts it.

    Raises:
        LaunchRefused: It cannot be started.
    """
    with kept_back() as before:
        process = started(command, environment, before)
        with _forwarded(agent):
            status = until_ended(process, agent.asked, lambda: None)
            end = time.monotonic() + _ORPHANS_S
            while agent.living() and time.monotonic() < end:
                time.sleep(STEP_S)
        is_whole = agent.finish(_FINISH_S)
    if not is_whole:
        with suppress(OSError):
            sys.stderr.write(
                "distdoctor: the first node does not have all that was recorded here\n"
            )
    return status


@contextmanager
def _forwarded(agent: NodeAgent) -> Iterator[None]:
    """Forward what is new, in a thread of its own."""
    over = threading.Event()

    def forward() -> None:
        while not over.is_set():
            agent.step(STEP_S)

    thread = threading.Thread(target=forward, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def forward_until_ended(
    agent: NodeAgent, living: Callable[[], Collection[int]]
) -> None:
    """Forward what is new until nobody of the job is left on this node.

    Or, once the head has gone, until no rank is: what they have started may live on.

    Args:
        agent: The connection to the head.
        living: Finds the processes of the job.
    """
    while living() and not (agent.ends and not agent.living()):
        end = time.monotonic() + _LOOK_S
        while time.monotonic() < end:
            agent.step(STEP_S)
