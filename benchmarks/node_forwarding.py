"""What it costs to forward what very many ranks do into one record.

Run it with

    python benchmarks/node_forwarding.py --nodes 2048

The head is real: its socket, encryption, and the record that it writes. The nodes are
simulated by one other process: each has a connection of its own and sends what its
supervisor would send, records of calls that were made before, at the pace that the head
asks for. So the figures tell what the head needs, in seconds of a processor for each
second of the job; they tell nothing of a network, nor of 16,384 ranks that start.

The supervisor of a node is real in the last figure: it follows the journals of so many
ranks as they are written, and forwards them to a head of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import zmq
from figures import print_table

from distdoctor.journal.format import RecordKind
from distdoctor.journal.reader import RECORD_TYPE
from distdoctor.journal.record_growth import JournalPart, Part, RecordGrowth
from distdoctor.journal.writer import JournalWriter
from distdoctor.launch import node_head, node_sockets
from distdoctor.launch.node_agent import NodeAgent
from distdoctor.launch.node_head import NodeHead
from distdoctor.launch.node_messages import (
    VERSION,
    Echo,
    Hello,
    Parts,
    Ping,
    Welcome,
    from_head,
    packed,
)
from distdoctor.launch.node_sockets import HeadSocket, NodeSocket, new_token

RECORDS_OF_A_CALL = 3  # it is made, returns, and is waited for
JOURNAL_BYTES = 1 << 20


def write_calls(writer: JournalWriter, count: int) -> None:
    """What a rank writes of so many calls."""
    for n in range(count):
        site = writer.intern(f"train.py\n{n % 20 + 1}\nmain")
        for kind in (RecordKind.ENTER, RecordKind.RETURN, RecordKind.WAIT):
            writer.put(kind, os.getpid(), n + 1, n + 1, site=site)


class SimulatedNode:
    """A node that sends the same as any other: its ranks differ by their numbers."""

    def __init__(self, number: int, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.number, self.sent, self.taken = number, 0, 0
        self.is_welcome = False
        self.socket = context.socket(zmq.DEALER)

    def connect(self, address: str, token: str) -> None:
        """Connect as `NodeSocket` does."""
        self.socket.curve_serverkey = node_sockets._keys(token, "head")[0]
        public, secret = node_sockets._keys(token, "node")
        self.socket.curve_publickey, self.socket.curve_secretkey = public, secret
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(f"tcp://{address}")
        self.socket.send(packed(Hello(VERSION, f"node{self.number}")))

    def hear(self) -> None:
        """Answer what the head has said."""
        while self.socket.poll(0):
            message = from_head(self.socket.recv())
            if isinstance(message, Ping):
                self.socket.send(packed(Echo(message.sent_ns, time.monotonic_ns())))
                self.taken = message.taken
            self.is_welcome |= isinstance(message, Welcome)


def pace_s(given: argparse.Namespace) -> float:
    """Seconds from one message of a node to its next, as the head asks for them."""
    nodes: int = given.nodes
    return max(0.02, nodes / node_head._MESSAGES)


def calls_of_a_round(given: argparse.Namespace) -> int:
    """Calls of a rank that one message tells of."""
    calls: int = given.calls
    return max(1, round(calls * pace_s(given)))


def parts_of_a_round(folder: Path, ranks: int, calls: int) -> Iterator[list[Part]]:
    """What a node sends first, and then of more calls of its ranks."""
    writers = [JournalWriter(folder, n, ranks, JOURNAL_BYTES) for n in range(ranks)]
    growth = RecordGrowth(folder)
    for writer in writers:
        write_calls(writer, calls)
    yield list(growth.parts())
    for writer in writers:
        write_calls(writer, calls)
    yield list(growth.parts())


def renumbered(part: Part, node: int, ranks: int, again: int) -> Part:
    """The part as another node sends it, some seconds later."""
    assert isinstance(part, JournalPart)
    rank = int(part.name.split(".")[0][5:]) + node * ranks
    records = np.frombuffer(part.records, RECORD_TYPE).copy()
    more = again * len(records)
    records["commit"] += more
    return JournalPart(
        f"rank-{rank}.0.journal",
        part.header,
        *(part.strings_at, part.strings, part.first + more, records.tobytes()),
    )


def play(
    address: str,
    token: str,
    given: argparse.Namespace,
    ready: Event,
    begun: Event,
    over: Event,
) -> None:
    """Be all nodes."""
    contexts: list[zmq.Context[zmq.Socket[bytes]]] = []
    nodes = []
    for number in range(given.nodes):
        if number % 512 == 0:
            contexts.append(zmq.Context())
        nodes.append(SimulatedNode(number, contexts[-1]))
        nodes[-1].connect(address, token)
    folder = Path(tempfile.mkdtemp())
    first, more = parts_of_a_round(folder, given.ranks, calls_of_a_round(given))
    while not all(node.is_welcome for node in nodes):
        for node in nodes:
            node.hear()
    ready.set()
    for part in first:  # all journals begin
        for node in nodes:
            mine = renumbered(part, node.number, given.ranks, 0)
            node.sent += 1
            node.socket.send(packed(Parts(node.sent, [mine])))
            node.hear()
    until_taken(nodes)
    begun.set()
    for again in range(given.rounds):
        batches = [
            [renumbered(part, node.number, given.ranks, again) for part in more]
            for node in nodes
        ]
        for node, batch in zip(nodes, batches, strict=True):
            node.sent += 1
            node.socket.send(packed(Parts(node.sent, batch)))
            node.hear()
    until_taken(nodes)
    over.set()
    shutil.rmtree(folder)
    os._exit(0)


def until_taken(nodes: list[SimulatedNode]) -> None:
    """Wait until the head has taken all."""
    while not all(node.taken == node.sent for node in nodes):
        for node in nodes:
            node.hear()
        time.sleep(0.01)


def cpu_s() -> float:
    """Seconds of a processor that this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def head_figures(given: argparse.Namespace, folder: Path) -> Iterator[list[str]]:
    """What the head needs."""
    vars(node_head)["LOST_S"] = (
        1e9  # one process plays all nodes, and cannot keep their pace
    )
    token = new_token()
    socket = HeadSocket("127.0.0.1", 0, token)
    head = NodeHead(socket, folder, {})
    ready, begun, over = (multiprocessing.Event() for _ in range(3))
    arguments = (f"127.0.0.1:{socket.port}", token, given, ready, begun, over)
    before_s = cpu_s()
    player = multiprocessing.Process(target=play, args=arguments)
    player.start()
    ready.wait()
    met_s = cpu_s()
    begun.wait()
    first_s, begun_s = cpu_s(), time.monotonic()
    over.wait()
    used_s, wall_s = cpu_s() - first_s, time.monotonic() - begun_s
    player.join()
    ranks = given.nodes * given.ranks
    seconds = given.rounds * pace_s(given)
    calls = calls_of_a_round(given) * given.rounds
    size = ranks * calls * RECORDS_OF_A_CALL * 64
    yield ["nodes × ranks", f"{given.nodes} × {given.ranks} = {ranks}"]
    yield ["head: to let all nodes in", f"{met_s - before_s:.1f} s of a processor"]
    yield ["head: to make all journals", f"{first_s - met_s:.1f} s of a processor"]
    yield ["forwarded", f"{size / 2**20 / seconds:.1f} MiB for a second of the job"]
    yield ["head: share of a processor", f"{used_s / seconds:.2f}"]
    yield ["head: bytes for a second of it", f"{size / used_s / 2**20:.0f} MiB"]
    yield ["wall time for a second", f"{wall_s / seconds:.2f} s, nodes included"]
    yield ["a record comes to the head within", f"{pace_s(given):.1f} s"]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield ["head: memory", f"{memory >> 10} MiB"]
    disk = sum(path.stat().st_blocks * 512 for path in folder.glob("*.journal"))
    yield ["head: record on disk", f"{disk >> 20} MiB"]
    head._closing.set()


def node_figures(given: argparse.Namespace, folder: Path) -> Iterator[list[str]]:
    """What a node's supervisor needs, with ranks that write all the time."""
    here, there = folder / "here", folder / "there"
    here.mkdir(mode=0o700)
    there.mkdir(mode=0o700)
    token = new_token()
    socket = HeadSocket("127.0.0.1", 0, token)
    head = NodeHead(socket, there, {})
    agent = NodeAgent(NodeSocket(f"127.0.0.1:{socket.port}", token), here)
    agent.meet(10.0)
    writers = [JournalWriter(here, n, given.ranks, 1 << 24) for n in range(given.ranks)]
    thread_s = 0.0
    end, last_s = time.monotonic() + given.seconds, time.monotonic()
    while time.monotonic() < end:
        now = time.monotonic()
        if now - last_s > 0.1:
            last_s = now
            for writer in writers:
                write_calls(writer, given.calls // 10)
        begun_s = time.thread_time()
        agent.step()
        thread_s += time.thread_time() - begun_s
    yield ["node: share of a processor", f"{thread_s / given.seconds:.3f}"]
    head._closing.set()
    agent.close()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2048)
    parser.add_argument("--ranks", type=int, default=8, help="of a node")
    parser.add_argument("--calls", type=int, default=20, help="of a rank in a second")
    parser.add_argument("--seconds", type=int, default=5, help="of a real node")
    parser.add_argument("--rounds", type=int, default=3, help="messages of a node")
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    for figures in (head_figures, node_figures):
        folder = Path(tempfile.mkdtemp())
        try:
            print_table(["what", "figure"], list(figures(given, folder)))
        finally:
            shutil.rmtree(folder)
    os._exit(0)


if __name__ == "__main__":
    main()
