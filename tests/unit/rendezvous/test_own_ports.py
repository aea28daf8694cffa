"""Ports and addresses: ranks of one job agree, and what is wrong is written down."""

import os
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch._C._distributed_c10d import TCPStore

from distdoctor.journal.environment import (
    FOLDER_VARIABLE,
    LOOPBACK_VARIABLE,
    PORTS_VARIABLE,
)
from distdoctor.journal.layout import PORTS_FOLDER
from distdoctor.model.events import BadAddress
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.rendezvous import address_variables, own_ports

AGENT = "TORCHELASTIC_USE_AGENT_STORE"

Notes = list[dict[str, Any]]

FIELDS = ("fault", "address", "given", "mended")


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Notes:
    """What the probe writes down of a process in a job of its own."""
    written: Notes = []
    monkeypatch.setattr(RECORDER, "folder", tmp_path)

    def tell(event: BadAddress, _site: str) -> None:
        fields = asdict(event)
        written.append({name: fields[name] for name in FIELDS})

    monkeypatch.setattr(RECORDER, "tell", tell)
    monkeypatch.setattr(own_ports, "_served", set())
    monkeypatch.setattr(own_ports, "_overridden", {})
    monkeypatch.setattr(address_variables, "_given", {})
    monkeypatch.setattr(address_variables, "_written", {})
    monkeypatch.setenv(PORTS_VARIABLE, "given")
    monkeypatch.delenv(LOOPBACK_VARIABLE, raising=False)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "12355")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    return written


def moved(host: str, port: int, **more: Any) -> tuple[str, int] | None:
    found = own_ports._moved({"host_name": host, "port": port, **more})
    return None if found is None else (found["host_name"], found["port"])


# --- ports ----------------------------------------------------------------------------


def test_all_processes_of_a_job_take_one_port_for_that_of_the_script(
    notes: Notes,
) -> None:
    first = moved("localhost", 29500, is_master=True)
    assert first is not None
    assert first[1] != 29500
    assert moved("localhost", 29500) == first
    assert moved("localhost", 29501) not in {None, first}
    assert notes == []


def test_another_job_takes_another_port(notes: Notes, tmp_path: Path) -> None:
    first = moved("localhost", 29500)
    RECORDER.folder = tmp_path / "another"
    RECORDER.folder.mkdir()
    assert moved("localhost", 29500) != first
    assert notes == []


def test_a_port_that_stands_for_another_stands_for_itself(notes: Notes) -> None:
    there = moved("localhost", 29500)
    assert there is not None
    assert moved("localhost", there[1]) == there
    assert notes == []


def test_who_comes_second_takes_what_the_first_has_said(
    notes: Notes, tmp_path: Path
) -> None:
    assert own_ports._agree(5, 6) == 6
    assert own_ports._agree(5, 7) == 6
    assert [path.name for path in (tmp_path / PORTS_FOLDER).iterdir()] == ["5"]
    assert notes == []


def test_a_port_that_the_kernel_is_to_choose_is_left_to_it(notes: Notes) -> None:
    assert moved("localhost", 0, is_master=True) is None
    assert notes == []


def test_a_store_opens_and_is_found_at_the_private_port(
    notes: Notes, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    monkeypatch.setattr(TCPStore, "__init__", TCPStore.__init__)
    own_ports.install()
    with socket.socket() as somebody:
        somebody.bind(("127.0.0.1", free_port))
        somebody.listen()
        server = TCPStore("10.255.255.1", free_port, 2, True, wait_for_workers=False)
        client = TCPStore(host_name="10.255.255.1", port=free_port, is_master=False)
        server.set("key", "value")
        assert client.get("key") == b"value"
        own = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        assert moved("localhost", own.port) == ("localhost", own.port)
    assert {note["fault"] for note in notes} == {"elsewhere"}


def listens_at(port: int) -> set[str]:
    """Addresses at which this process listens."""
    return {
        str(one.laddr.ip)
        for one in psutil.Process().net_connections("inet")
        if one.status == psutil.CONN_LISTEN and one.laddr.port == port
    }


@pytest.mark.parametrize("port", ["free", "any"])
@pytest.mark.parametrize("libuv", [True, False])
def test_in_a_job_of_ours_a_store_is_opened_on_loopback_alone(
    notes: Notes,
    monkeypatch: pytest.MonkeyPatch,
    free_port: int,
    port: str,
    libuv: bool,
) -> None:
    monkeypatch.setenv(LOOPBACK_VARIABLE, "1")
    monkeypatch.setattr(TCPStore, "__init__", TCPStore.__init__)
    own_ports.install()
    asked = free_port if port == "free" else 0
    more: dict[str, Any] = {"wait_for_workers": False, "use_libuv": libuv}
    server = TCPStore(socket.gethostname(), asked, 2, True, **more)
    assert listens_at(server.port) == {"127.0.0.1"}
    client = TCPStore(socket.gethostname(), asked or server.port, use_libuv=libuv)
    server.set("key", "value")
    assert client.get("key") == b"value"
    assert notes == []


def test_a_port_is_shared_by_the_stores_of_a_process_as_torch_does(
    notes: Notes, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> None:
    monkeypatch.setenv(LOOPBACK_VARIABLE, "1")
    monkeypatch.setattr(TCPStore, "__init__", TCPStore.__init__)
    own_ports.install()
    more: dict[str, Any] = {"wait_for_workers": False, "multi_tenant": True}
    first = TCPStore("localhost", free_port, 1, True, **more)
    second = TCPStore("localhost", free_port, 1, True, **more)
    first.set("key", "value")
    assert second.get("key") == b"value"
    assert listens_at(first.port) == {"127.0.0.1"}
    assert notes == []


def test_a_store_on_a_socket_of_the_users_stays_there(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOOPBACK_VARIABLE, "1")
    monkeypatch.setattr(TCPStore, "__init__", TCPStore.__init__)
    own_ports.install()
    own = socket.create_server(("", 0))
    port = own.getsockname()[1]
    store = TCPStore(
        "localhost",
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=own.detach(),
    )
    assert listens_at(store.port) == {"0.0.0.0"}
    assert notes == []


def test_without_leave_stores_stay_where_they_are(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = TCPStore.__init__
    monkeypatch.delenv(PORTS_VARIABLE)
    own_ports.install()
    assert TCPStore.__init__ is made
    assert notes == []


@pytest.mark.parametrize("fault", ["taken", "occupied"])
def test_a_port_in_use_is_noted_by_who_opens_it(
    notes: Notes, monkeypatch: pytest.MonkeyPatch, free_port: int, fault: str
) -> None:
    monkeypatch.setattr(own_ports, "_is_held_by_us", lambda _port: fault == "taken")
    with socket.socket() as somebody:
        somebody.bind(("127.0.0.1", free_port))
        somebody.listen()
        assert moved("localhost", free_port) is not None
        assert notes == []
        assert moved("localhost", free_port, is_master=True) is not None
    (note,) = notes
    assert (note["fault"], note["address"]) == (fault, f"localhost:{free_port}")


@pytest.mark.parametrize("ours", [True, False])
def test_who_holds_a_port_is_known_by_its_environment(
    notes: Notes, free_port: int, ours: bool
) -> None:
    program = (
        "import socket, sys; s = socket.socket(); s.bind(('127.0.0.1', "
        f"{free_port})); s.listen(); print(flush=True); sys.stdin.read()"
    )
    environment = dict(os.environ)
    if ours:
        environment[FOLDER_VARIABLE] = str(RECORDER.folder)
    holder = subprocess.Popen(
        [sys.executable, "-I", "-c", program],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    assert own_ports._is_held_by_us(free_port) is ours
    holder.communicate(timeout=30)
    assert not own_ports._is_held_by_us(free_port)
    assert notes == []


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("::1", True),
        ("0.0.0.0", True),
        (socket.gethostname(), True),
        ("10.255.255.1", False),
        ("224.66.41.62", False),
        ("no-such-host.invalid", False),
    ],
)
def test_an_address_is_known_to_be_here_or_not(host: str, here: bool) -> None:
    assert own_ports.is_here(host) is here


# --- the launcher's address -----------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "method", "fault"),
    [
        ("localhost:12355", None, ""),
        ("127.0.0.1:12355", "env://", ""),
        ("localhost:4711", None, "overridden"),
        ("localhost:4711", "env://", "overridden"),
        ("localhost:4711", "tcp://localhost:4711", ""),
        ("localhost:4711", "tcp://localhost:23456?rank=0&world_size=2", "overridden"),
        ("localhost:4711", "file:///tmp/store", ""),
        ("", None, ""),
    ],
)
def test_under_a_launcher_its_address_counts(
    notes: Notes,
    monkeypatch: pytest.MonkeyPatch,
    given: str,
    method: str | None,
    fault: str,
) -> None:
    monkeypatch.setenv(AGENT, "True")
    names = ("MASTER_ADDR", "MASTER_PORT")
    address_variables._given.update(
        zip(names, given.split(":"), strict=False) if given else ()
    )
    own_ports.joining({"init_method": method})
    assert [note["fault"] for note in notes] == ([fault] if fault else [])
    if fault:
        assert notes[0]["given"] == given
        host, port = notes[0]["address"].split(":")
        assert moved(host, int(port)) == moved("localhost", 4711)


def test_without_a_launchers_store_rank_0_opens_one(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(AGENT, "False")
    address_variables._given.update(MASTER_ADDR="localhost", MASTER_PORT="4711")
    own_ports.joining({})
    assert notes == []


@pytest.mark.parametrize(("chosen_by", "faults"), [("own", 0), ("given", 1)])
def test_the_port_of_plain_torchrun_is_right_where_we_chose_another(
    notes: Notes, monkeypatch: pytest.MonkeyPatch, chosen_by: str, faults: int
) -> None:
    monkeypatch.setenv(AGENT, "True")
    monkeypatch.setenv(PORTS_VARIABLE, chosen_by)
    monkeypatch.setenv("MASTER_PORT", "29500")
    address_variables._given.update(MASTER_ADDR="localhost", MASTER_PORT="4711")
    own_ports.joining({})
    assert len(notes) == faults
    assert moved("localhost", 29500) == moved("localhost", 4711)


def test_a_store_of_the_ranks_own_needs_no_address(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(AGENT, "True")
    address_variables._given.update(MASTER_ADDR="localhost", MASTER_PORT="4711")
    own_ports.joining({"store": object()})
    assert notes == []


def test_who_writes_the_address_is_known(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(os.environ)
    monkeypatch.setattr(kind, "__setitem__", kind.__setitem__)
    address_variables.install()
    assert address_variables.given_address() == "localhost:12355"
    os.environ["MASTER_ADDR"] = "node0"
    assert "test_own_ports.py" in address_variables.writer_of_address()
    address_line = int(address_variables.writer_of_address().split("\n")[1])
    os.environ["MASTER_PORT"] = "1"
    assert int(address_variables.writer_of_address().split("\n")[1]) == address_line + 3
    assert address_variables.present_address() == "node0:1"
    assert address_variables.given_address() == "localhost:12355"
    assert notes == []


# --- interfaces -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "then"),
    [("no-such0", "lo"), ("lo", "lo"), ("no-such0,lo", "no-such0,lo")],
)
def test_an_interface_that_is_not_here_is_loopback(
    notes: Notes, monkeypatch: pytest.MonkeyPatch, named: str, then: str
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", named)
    own_ports.joining({})
    assert os.environ["GLOO_SOCKET_IFNAME"] == then
    assert [note["fault"] for note in notes] == ["interface"] * (named != then)
