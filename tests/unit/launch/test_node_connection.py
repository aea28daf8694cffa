"""The head and its nodes: who is let in, what is taken, and who is lost."""

import json
import math
import os
import socket as sockets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distdoctor.errors import JournalUnreadable, LaunchRefused
from distdoctor.journal.environment import RECORD_VARIABLE
from distdoctor.journal.folder import StackSample
from distdoctor.journal.format import RECORD_BYTES, RecordKind
from distdoctor.journal.layout import EXITS_FILE
from distdoctor.journal.private_files import append_line
from distdoctor.journal.reader import JournalReader
from distdoctor.journal.writer import JournalWriter
from distdoctor.launch import node_agent, node_head
from distdoctor.launch.job_looks import JobLooks
from distdoctor.launch.known_node import FIRST_OF_NODES
from distdoctor.launch.node_agent import NodeAgent
from distdoctor.launch.node_head import NodeHead
from distdoctor.launch.node_messages import from_head, from_node
from distdoctor.launch.node_sockets import HeadSocket, NodeSocket, new_token
from distdoctor.launch.passed_variables import passing_on
from distdoctor.launch.process_looks import ProcessLooks
from distdoctor.launch.stacks import StackTaker

TOKEN = new_token()
SMALL = 4096 + 8192 + 64 * RECORD_BYTES
SOON_S = 10.0


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(mode=0o700)
    there.mkdir(mode=0o700)
    return here, there


@pytest.fixture
def socket() -> HeadSocket:
    return HeadSocket("127.0.0.1", 0, TOKEN)


@pytest.fixture
def head(socket: HeadSocket, folders: tuple[Path, Path]) -> Iterator[NodeHead]:
    head = NodeHead(socket, folders[1], {"A": "1"})
    yield head
    head.close()


@pytest.fixture
def agent(socket: HeadSocket, folders: tuple[Path, Path]) -> Iterator[NodeAgent]:
    node = NodeAgent(NodeSocket(f"127.0.0.1:{socket.port}", TOKEN), folders[0])
    yield node
    node.close()


def until(agent: NodeAgent, holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + SOON_S
    while time.monotonic() < end:
        agent.step()
        if holds():
            return True
    return False


def records(path: Path) -> int:
    """How many are in a journal; -1 until it has its header, which is written last."""
    try:
        return JournalReader(path).head()
    except JournalUnreadable:
        return -1


def come(agent: NodeAgent, folders: tuple[Path, Path]) -> int:
    """A rank of the node, as the head numbers its process, once that knows of it."""
    JournalWriter(folders[0], 0, 1, SMALL)
    agent.meet(SOON_S)
    path = folders[1] / "rank-0.0.journal"
    assert until(agent, lambda: records(path) >= 0)
    return JournalReader(path).header().pid


def test_what_a_rank_writes_comes_to_the_head(
    head: NodeHead, agent: NodeAgent, folders: tuple[Path, Path]
) -> None:
    here, there = folders
    writer = JournalWriter(here, 3, 4, SMALL)
    writer.put(RecordKind.ENTER, 5, 1, 1, site=writer.intern("t.py\n1\nmain"))
    append_line(here / EXITS_FILE, json.dumps({"pid": 7, "status": 0}))
    welcome = agent.meet(SOON_S)
    assert welcome.variables == {"A": "1"}
    assert abs(welcome.ahead_ns) < 50_000_000  # the clock is the same
    path = there / "rank-3.0.journal"
    assert until(agent, lambda: records(path) == 1)
    reader = JournalReader(path)
    assert reader.string(int(reader.poll()["site"][0])) == "t.py\n1\nmain"
    pid = reader.header().pid
    assert pid >= FIRST_OF_NODES
    assert until(agent, lambda: head.state(pid)[1] is not None)
    assert head.lives(pid)
    agent.finish(SOON_S)
    assert until(agent, head.is_quiet)
    assert not head.lives(pid)
    assert (there / EXITS_FILE).exists()


@pytest.mark.parametrize(("stands_s", "server"), [(math.inf, "127.0.0.1"), (-1.0, "")])
def test_the_head_hears_who_stands_and_waits_for_a_name_server(
    head: NodeHead,
    agent: NodeAgent,
    folders: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    stands_s: float,
    server: str,
) -> None:
    monkeypatch.setattr(node_agent, "_STANDS_S", stands_s)  # the test is the rank
    pid = come(agent, folders)
    looks = JobLooks(ProcessLooks(StackTaker(folders[1])), head)
    assert until(agent, lambda: head.state(pid)[1] is not None)
    assert looks.name_server([pid]) == ""
    with sockets.socket(sockets.AF_INET, sockets.SOCK_DGRAM) as asking:
        asking.connect(("127.0.0.1", 53))
        opened_ns = time.monotonic_ns()
        assert until(agent, lambda: head.state(pid)[0] > opened_ns + 100_000_000)
        assert looks.name_server([pid]) == server


def test_the_head_asks_for_stacks_and_for_the_end(
    head: NodeHead, agent: NodeAgent, folders: tuple[Path, Path]
) -> None:
    pid = come(agent, folders)
    asked = ProcessAsked(head, pid)
    assert until(agent, asked.is_answered)
    assert {sample.pid for sample in asked.samples} <= {pid}
    head.ask_to_end()
    assert until(agent, lambda: agent.ends)


class ProcessAsked:
    """Asks for the stack of a process from another thread."""

    def __init__(self, head: NodeHead, pid: int) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._answer = ThreadPoolExecutor(1).submit(head.take, [(0, pid)], 0.0)

    def is_answered(self) -> bool:
        """Whether it has come."""
        return self._answer.done()

    @property
    def samples(self) -> list[StackSample]:
        """What has come."""
        return self._answer.result()[0]


@pytest.mark.usefixtures("head")
def test_who_has_another_token_is_not_heard(
    socket: HeadSocket, folders: tuple[Path, Path]
) -> None:
    node = NodeAgent(NodeSocket(f"127.0.0.1:{socket.port}", new_token()), folders[0])
    with pytest.raises(LaunchRefused, match="did not answer"):
        node.meet(1.5)
    node.close()


def test_a_token_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(LaunchRefused, match="random letters"):
        NodeSocket("127.0.0.1:1", "secret")


def test_an_address_of_another_machine_cannot_be_listened_at() -> None:
    with pytest.raises(LaunchRefused, match="--listen"):
        HeadSocket("192.0.2.1", 0, TOKEN)


def test_a_node_of_which_nothing_is_heard_is_lost(
    head: NodeHead,
    agent: NodeAgent,
    folders: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_head, "LOST_S", 0.5)
    JournalWriter(folders[0], 0, 1, SMALL)
    agent.meet(SOON_S)
    path = folders[1] / "rank-0.0.journal"
    assert until(agent, lambda: records(path) >= 0)
    end = time.monotonic() + SOON_S
    while not head.lost() and time.monotonic() < end:
        time.sleep(0.05)
    (lost,) = head.lost()
    assert lost.host == os.uname().nodename
    assert "nothing was heard" in lost.why
    assert lost.pids == [JournalReader(path).header().pid]
    assert head.lives(lost.pids[0])  # nobody can tell


def test_a_head_of_which_nothing_is_heard_is_lost(
    head: NodeHead, agent: NodeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.meet(SOON_S)
    assert not agent.lost
    monkeypatch.setattr(node_agent, "LOST_S", 0.2)
    head._closing.set()
    time.sleep(0.5)
    assert agent.lost


@pytest.fixture
def listener(socket: HeadSocket, folders: tuple[Path, Path]) -> Iterator[NodeHead]:
    variables = {RECORD_VARIABLE: "1"}
    head = NodeHead(socket, folders[1], variables, only_listens=True)
    yield head
    head.close()


def test_a_silent_node_of_a_recorded_job_is_heard_again(
    listener: NodeHead,
    agent: NodeAgent,
    folders: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_head, "LOST_S", 0.3)
    writer = JournalWriter(folders[0], 0, 1, SMALL)
    agent.meet(SOON_S)
    assert agent.only_records
    path = folders[1] / "rank-0.0.journal"
    assert until(agent, lambda: records(path) >= 0)
    time.sleep(1.0)
    assert listener.is_silent()
    assert listener.lost() == []
    writer.put(RecordKind.ENTER, 5, 1, 1)
    assert until(agent, lambda: records(path) == 1)
    assert not listener.is_silent()


def test_it_is_known_up_to_when_a_node_has_told_all(
    listener: NodeHead, agent: NodeAgent, folders: tuple[Path, Path]
) -> None:
    JournalWriter(folders[0], 0, 1, SMALL)
    agent.meet(SOON_S)
    begun_ns = time.monotonic_ns()

    def is_told() -> bool:
        return any(one.told_ns > begun_ns for one in listener.untold("why"))

    assert until(agent, is_told)
    (node,) = listener.untold("why")
    assert node.told_ns < time.monotonic_ns()
    assert (node.why, len(node.pids)) == ("why", 1)


def test_a_node_tells_that_it_is_asked_to_end_and_what_lived_then(
    listener: NodeHead, agent: NodeAgent, folders: tuple[Path, Path]
) -> None:
    JournalWriter(folders[0], 0, 1, SMALL)
    agent.meet(SOON_S)
    assert until(agent, lambda: bool(listener.living()))
    assert listener.asked() == (0, [])
    agent.asked()
    assert until(agent, lambda: bool(listener.asked()[0]))
    assert listener.asked()[1] == listener.living()


def test_no_leave_is_taken_while_a_recorded_rank_lives(
    listener: NodeHead, agent: NodeAgent, folders: tuple[Path, Path]
) -> None:
    JournalWriter(folders[0], 0, 1, SMALL)  # of this very process
    agent.meet(SOON_S)
    assert until(agent, lambda: bool(listener.living()))
    assert not agent.finish(SOON_S)
    assert not listener.is_quiet()


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_told_so(data: bytes) -> None:
    for read in (from_node, from_head):
        try:
            read(data)
        except ValueError:
            continue


def test_variables_pass_through_launchers() -> None:
    assert passing_on(["srun", "-n", "2", "t.py"], ["A"]) == ["srun", "-n", "2", "t.py"]
    assert passing_on(["srun", "--export=NONE"], ["A"]) == ["srun", "--export=A"]
    assert passing_on(["torchrun", "t.py"], ["A"]) == ["torchrun", "t.py"]
