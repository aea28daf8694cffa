"""The client of NCCL's RAS: asks in the protocol's words, and never waits for ever."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from ras_reports import DEAD, communicator, report, server

from distdoctor.errors import StatusUnavailable
from distdoctor.postmortem.job_evidence import Evidence
from distdoctor.postmortem.nccl_ras import ras_client
from distdoctor.postmortem.nccl_ras.ras_client import address_of, ask
from distdoctor.postmortem.nccl_ras.ras_reader import read_live

WELL = report(communicator(4))
SICK = report(communicator(4, missing={3: DEAD}))


def test_the_protocol_is_spoken() -> None:
    with server([WELL]) as (port, reported):
        assert ask("127.0.0.1", port) == WELL
    assert reported[0] == "CLIENT PROTOCOL 2"
    assert reported[2:] == ["SET FORMAT json", "VERBOSE STATUS"]


def test_an_older_server_answers_in_text() -> None:
    with server([b"NCCL version 2.24.3"], speaks_json=False) as (port, _):
        assert ask("127.0.0.1", port) == b"NCCL version 2.24.3"


def test_a_job_that_is_well_is_looked_at_once() -> None:
    evidence = Evidence()
    with server([WELL]) as (port, reported):
        read_live("127.0.0.1", port, 0.0, evidence)
    assert reported.count("VERBOSE STATUS") == 1
    assert evidence.world_size == 4
    assert evidence.sources[0].path == f"ras://127.0.0.1:{port}"


def test_what_is_suspicious_is_looked_at_twice() -> None:
    with server([SICK, WELL]) as (port, reported):
        read_live("127.0.0.1", port, 0.0, Evidence())
    assert reported.count("VERBOSE STATUS") == 2


def test_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(StatusUnavailable, match="NCCL_RAS_ENABLE=0"):
        ask("127.0.0.1", port)


@pytest.mark.parametrize(
    "greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"x" * 100_000, b"\0\n"]
)
def test_what_is_no_ras_is_refused(greeting: bytes) -> None:
    with (
        server([WELL], greeting=greeting) as (port, _),
        pytest.raises(StatusUnavailable, match="does not speak its protocol"),
    ):
        ask("127.0.0.1", port)


def test_an_answer_that_is_no_report_is_refused() -> None:
    with (
        server([b"{}"]) as (port, _),
        pytest.raises(StatusUnavailable, match="no whole report"),
    ):
        read_live("127.0.0.1", port, 0.0, Evidence())


def test_too_long_a_report_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras_client, "_MOST_BYTES", 1000)
    with (
        server([b"x" * 100_000]) as (port, _),
        pytest.raises(StatusUnavailable, match="longer than"),
    ):
        ask("127.0.0.1", port)


@pytest.mark.parametrize("drip", [b"", b"S"], ids=["silent", "a byte at a time"])
def test_a_server_that_never_ends_is_left(drip: bytes) -> None:
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                while not done.wait(0.02):
                    try:
                        connection.sendall(drip)
                    except OSError:
                        return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        begun = time.monotonic()
        with pytest.raises(StatusUnavailable, match="too long"):
            ask("127.0.0.1", listener.getsockname()[1], at_most_s=0.3)
        assert time.monotonic() - begun < 10
        done.set()
        thread.join(20)


def test_where_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_RAS_ADDR", raising=False)
    assert address_of() == ("localhost", 28028)
    monkeypatch.setenv("NCCL_RAS_ADDR", "node7:1234")
    assert address_of() == ("node7", 1234)
    assert address_of("[::1]:28028") == ("::1", 28028)


@pytest.mark.parametrize("text", ["logs", "a:", ":1", "a:0", "a:65536", "a:-1", "a:²"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(StatusUnavailable):
        address_of(text)
