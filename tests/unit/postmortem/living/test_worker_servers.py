"""What a rank's own worker server tells, and servers that are none."""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from living_jobs import FIRST_PID, Acts, evidence, waits
from torch._C._distributed_c10d import _WorkerServer

from distdoctor.judging import judge_run
from distdoctor.postmortem.evidence_run import manifest_of, run_of
from distdoctor.postmortem.job_evidence import DUMP
from distdoctor.postmortem.living import dump_taking, worker_servers
from distdoctor.postmortem.living.dump_taking import REFUSED
from distdoctor.postmortem.living.job_finding import LivingJob
from distdoctor.postmortem.living.listed_processes import LivingProcess
from distdoctor.postmortem.living.living_recorders import equal_dumps
from distdoctor.postmortem.living.worker_servers import (
    WorkerServers,
    socket_of,
    sockets_named,
)

ME = os.getpid()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[WorkerServers]:
    """A worker server of torch in this very process."""
    path = str(tmp_path / "s")
    server = _WorkerServer(path)
    yield WorkerServers({ME: path})
    server.shutdown()


@contextmanager
def answering(path: Path, answer: bytes, pause_s: float = 0.0) -> Iterator[None]:
    """A server on a Unix socket that says this, again and again, to whoever asks."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            try:
                client, _ = server.accept()
            except OSError:
                return
            with client:
                client.recv(4096)
                try:
                    client.sendall(answer)
                    while pause_s and not ended.wait(pause_s):
                        client.sendall(b"x")
                except OSError:
                    continue

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


def test_the_stack_comes_from_torch(own_server: WorkerServers) -> None:
    stacks = own_server.stacks(ME)
    assert stacks is not None
    assert stacks.pid == ME
    assert stacks.main is not None
    functions = [line.function for line in stacks.main.lines]
    assert "test_the_stack_comes_from_torch" in functions


def test_it_is_asked_where_py_spy_is_not_there(
    own_server: WorkerServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dump_taking, "find_py_spy", lambda: None)
    assert dump_taking.take([ME]).stacks == {}
    dumps = dump_taking.take([ME], servers=own_server)
    assert dumps.stacks[ME].taken_by == "worker server"
    assert not dumps.refusals
    stopped = dump_taking.take([ME], stopped=[ME], servers=own_server)
    assert not stopped.stacks


def test_a_recorder_without_calls_is_none(own_server: WorkerServers) -> None:
    assert own_server.recorded([ME]) == {}
    assert own_server.paths  # it has answered


def test_the_socket_of_another_process_is_not_asked(tmp_path: Path) -> None:
    with answering(tmp_path / "s", b"HTTP/1.1 200 OK\r\n\r\n"):
        servers = WorkerServers({1: str(tmp_path / "s")})
        assert servers.stacks(1) is None
    assert servers.paths == {}


ANSWERS = {
    "nothing": b"",
    "no HTTP": b"\0\1\2\r\n\r\n",
    "no status": b"HTTP/1.1 \r\n\r\n",
    "no such handler": b"HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nno",
    "no stack": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno",
    "a length that is none": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nno",
    "a chunk that is none": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz",
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_any_answer_is_borne(tmp_path: Path, answer: bytes) -> None:
    with answering(tmp_path / "s", answer):
        servers = WorkerServers({ME: str(tmp_path / "s")})
        assert servers.stacks(ME) is None
        assert servers.recorded([ME]) == {}


@pytest.mark.parametrize("names", [b"7", b"[[[", b'{"a": 1}', b"[" * 9_000])
def test_any_list_of_handlers_is_borne(tmp_path: Path, names: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(names)
    with answering(tmp_path / "s", head + names):
        assert WorkerServers({ME: str(tmp_path / "s")}).recorded([ME]) == {}


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 20"])
def test_a_server_that_never_ends_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(worker_servers, "_DEADLINE_S", 0.2)
    with answering(tmp_path / "s", begun, pause_s=0.05):
        servers = WorkerServers({ME: str(tmp_path / "s")})
        asked_s = time.monotonic()
        assert servers.stacks(ME) is None
        assert servers.stacks(ME) is None
        assert time.monotonic() - asked_s < 2
    assert servers.paths == {}


def test_sockets_are_named_by_the_environment_or_the_user() -> None:
    variables = {"TORCH_WORKER_SERVER_SOCKET": "w"}
    assert socket_of(variables, "/job") == "/job/w"
    assert socket_of({}, "/job") == ""
    assert sockets_named("", {0: 7, 1: 8}, {7: "/job/w", 8: ""}) == {7: "/job/w"}
    assert sockets_named("/tmp/{rank}", {3: 7}, {}) == {7: "/tmp/3"}


def dump(*ops: str) -> bytes:
    """A recorder's JSON as gloo writes it: all calls have ended but the last."""
    entries = [
        {
            "record_id": n,
            "pg_id": 0,
            "process_group": ["0", "default_pg"],
            "collective_seq_id": n + 1,
            "p2p_seq_id": 0,
            "op_id": n + 1,
            "profiling_name": f"gloo:{op}",
            "time_created_ns": 1_795_663_317_000_000_000 + n,
            "input_sizes": [[4]] if op == "all_reduce" else [],
            "input_dtypes": ["Float"] if op == "all_reduce" else [],
            "output_sizes": [[4]] if op == "all_reduce" else [],
            "output_dtypes": ["Float"] if op == "all_reduce" else [],
            "state": "scheduled",
            "retired": n + 1 < len(ops),
            "timeout_ms": 1_800_000,
            "is_p2p": False,
        }
        for n, op in enumerate(ops)
    ]
    config = {"": {"desc": "", "name": "", "ranks": "[0, 1]"}}
    whole = {"version": "2.10", "entries": entries, "pg_config": config}
    return json.dumps(whole).encode()


SAME = ("all_reduce", "all_reduce", "all_reduce")


def judged(ranks: dict[int, Acts], *recorded: bytes) -> list[tuple[str, str]]:
    seen = evidence(ranks, recorded=dict(enumerate(recorded)))
    judgement = judge_run(run_of(seen), manifest_of(seen, ["t.py"], "/job"))
    return [
        (one.code, one.certainty if one.ranks else "nobody")
        for one in judgement.report.findings
    ]


def test_recorders_prove_what_stacks_only_suggest() -> None:
    ranks = {0: waits(), 1: waits("barrier", "end t.py:9")}
    recorded = dump(*SAME, "all_reduce"), dump(*SAME, "barrier")
    seen = evidence(ranks, recorded=dict(enumerate(recorded)))
    found = judge_run(run_of(seen), manifest_of(seen, ["t.py"], "/job")).report
    (one,) = found.findings
    assert (one.code, one.certainty) == ("DD101", "proved")
    assert sorted(one.evidence) == ["dump", "stack"]
    assert {(at.file, at.line) for at in one.locations} == {("t.py", 7), ("t.py", 9)}
    assert not any("different collectives" in remark for remark in found.remarks)


def test_messages_are_judged_by_stacks_for_gloo_records_none() -> None:
    def receives(peer: int) -> Acts:
        return Acts(stack=("recv!", "f t.py:3"), variables=[{"src": str(peer)}])

    found = judged({0: receives(1), 1: receives(0)}, dump(*SAME), dump(*SAME))
    assert found == [("DD205", "nobody")]


def test_what_is_alike_in_recorders_is_not_called_sick() -> None:
    ranks = {0: waits(), 1: waits()}
    assert judged(ranks, dump(*SAME), dump(*SAME)) == []


def told_calls(ranks: dict[int, Acts], world_size: int) -> bool:
    """Whether recorders of ranks of a job count."""
    dumps = {rank: dump(*SAME) for rank in ranks}
    found = evidence(ranks, world_size, recorded=dumps)
    return found.columns.source == DUMP


def test_dumps_count_only_if_all_gave_them_and_nothing_moved() -> None:
    ranks = {n: LivingProcess(FIRST_PID + n, 1) for n in range(2)}
    job = LivingJob(ranks, world_size=2)
    first = {FIRST_PID: b"a", FIRST_PID + 1: b"b"}
    assert equal_dumps(job, first, first) == {0: b"a", 1: b"b"}
    assert equal_dumps(job, first, {**first, FIRST_PID: b"c"}) == {}
    assert equal_dumps(job, first, {FIRST_PID: b"a"}) == {}
    assert not told_calls({0: waits(), 1: waits()}, world_size=3)
    assert told_calls({0: waits(), 1: waits()}, world_size=2)


def test_a_refusal_is_not_told_where_the_server_answered() -> None:
    acts = Acts(stack=waits().stack, refused=REFUSED, serves=True)
    seen = evidence({0: acts, 1: acts})
    assert not any("may not be read" in one for one in seen.remarks)
    assert any("worker servers of ranks {0-1}" in one for one in seen.remarks)
