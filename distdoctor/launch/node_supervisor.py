"""Supervises the ranks of a node that a launcher has started there.

    python -m distdoctor.launch.node_supervisor HEAD FOLDER

HEAD is what `HEAD_VARIABLE` tells, FOLDER the node's record folder. The first rank of
the node starts it (`distdoctor.probes.node_entry`) and goes on when it has left: then
two processes stay, of which one does the work. Should that be killed, the other ends
the ranks in its place; in any case neither ranks nor the folder are left behind.

Ranks of a job that is only recorded are never ended: they are waited for.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from distdoctor.errors import LaunchRefused
from distdoctor.journal.environment import (
    HEAD_VARIABLE,
    RECORD_VARIABLE,
    TOKEN_VARIABLE,
)
from distdoctor.journal.layout import NODE_FILE
from distdoctor.journal.private_files import replace_private
from distdoctor.launch.orphan_guard import carriers, end_all
from distdoctor.probes.node_entry import HeadText

if TYPE_CHECKING:
    from distdoctor.launch.node_agent import NodeAgent

_MEET_S = 45.0
_MEET_RECORDING_S = 15.0  # the job waits meanwhile, and is to go on as without us
_LOOK_S = 2.0
_FINISH_S = 6.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_READY = b"ready"


def main(arguments: Sequence[str]) -> int:
    """Start the supervisor of this node, and leave once it has reached the head."""
    told, folder = arguments
    head = HeadText.read(told)
    hear, tell = os.pipe()
    if os.fork() == 0:
        os.close(hear)
        _guard(head, Path(folder), tell)
        os._exit(0)
    os.close(tell)
    with os.fdopen(hear, "rb") as answer:
        said = answer.read()
    if said == _READY:
        return 0
    sys.stderr.write(said.decode(errors="replace") or "it ended at once")
    return 1


def _guard(head: HeadText, folder: Path, tell: int) -> None:
    """Have the work done by a child, and finish it in its place if it is killed."""
    mark = os.fsencode(f"{HEAD_VARIABLE}={head.written()}")
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    guard = os.getpid()
    worker = os.fork()
    if worker == 0:
        try:
            _follow_in_death(guard)
            _work(head, folder, mark, tell)
        finally:
            os._exit(0)
    os.close(tell)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # asked to end, it ends behind its ranks
    while True:
        try:
            os.waitpid(worker, 0)
            break
        except InterruptedError:
            continue
    if _only_records():
        while any(carriers(mark)):
            time.sleep(_LOOK_S)
    else:
        end_all(lambda: carriers(mark))
    shutil.rmtree(folder, ignore_errors=True)


def _only_records() -> bool:
    return RECORD_VARIABLE in os.environ


def _follow_in_death(guard: int) -> None:
    """Be asked to end when the guard dies: nobody would clean up behind us then."""
    if _only_records():
        return  # we clean up ourselves, once the ranks have ended
    signal.signal(signal.SIGTERM, _terminated)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != guard:
        raise SystemExit


def _terminated(_number: int, _frame: object) -> None:
    raise SystemExit


def _work(head: HeadText, folder: Path, mark: bytes, tell: int) -> None:
    """Watch the ranks of this node until the head wants them to end, or is lost.

    Or, of a job that is only recorded, until they have ended.
    """
    # Here, behind the forks: it starts threads.
    from distdoctor.launch.node_agent import NodeAgent
    from distdoctor.launch.node_recording import forward_until_ended
    from distdoctor.launch.node_sockets import NodeSocket

    recorded = _only_records()
    if recorded:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        token = os.environ.get(TOKEN_VARIABLE, "")
        agent = NodeAgent(NodeSocket(head.address, token), folder)
        welcome = agent.meet(_MEET_RECORDING_S if recorded else _MEET_S)
    except LaunchRefused as error:
        os.write(tell, str(error).encode())
        shutil.rmtree(folder, ignore_errors=True)
        return
    try:
        node = {"pid": os.getpid(), "ahead_ns": welcome.ahead_ns}
        replace_private(folder / NODE_FILE, json.dumps(node).encode())
        os.write(tell, _READY)
        os.close(tell)
        if recorded:
            # A scheduler that ends the job asks us as well.
            signal.signal(signal.SIGTERM, lambda *_: agent.asked())
            forward_until_ended(agent, lambda: [*carriers(mark)])
        else:
            _watch(agent, mark)
        agent.finish(_FINISH_S)
        agent.close()
    finally:
        if not recorded:
            end_all(lambda: carriers(mark))
        shutil.rmtree(folder, ignore_errors=True)


def _watch(agent: NodeAgent, mark: bytes) -> None:
    """Forward until the head wants the ranks to end, or is lost, and end them."""
    while not (agent.ends or agent.lost):
        agent.step()
    end_all(lambda: carriers(mark))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
