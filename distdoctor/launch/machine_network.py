"""Checks the network settings that ranks of one machine need to find each other."""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Callable, Collection, Iterator

import psutil

from distdoctor.launch.machine_cures import as_root
from distdoctor.model.machine_condition import MachineCondition, enough, present

RESOLVE_S = 5.0
"""Longer than that, every rank waits at each start. A name server may take minutes."""


def network() -> Iterator[MachineCondition]:
    """Results for the host name, loopback ports and the interface for gloo."""
    name = socket.gethostname()
    yield host_name(name, _resolve)
    yield loopback()
    wanted = os.environ.get("GLOO_SOCKET_IFNAME", "")
    yield interface(wanted, psutil.net_if_addrs().keys())


def host_name(
    name: str, resolve: Callable[[str], str], deadline_s: float = RESOLVE_S
) -> MachineCondition:
    """Whether the host's own name resolves to an address, which gloo needs.

    Args:
        name: Name of the host.
        resolve: Gives the address of a name, or raises OSError.
        deadline_s: To wait for it.
    """
    answer: queue.Queue[tuple[bool, str]] = queue.Queue()

    def ask() -> None:
        try:
            answer.put((True, f"{name} is {resolve(name)}"))
        except OSError as error:
            why = error.strerror or error
            answer.put((False, f"{name} has no address ({why})"))

    # A daemon: nothing can interrupt a look-up, and nobody waits for it at the end.
    threading.Thread(target=ask, daemon=True).start()
    try:
        known, found = answer.get(timeout=deadline_s)
    except queue.Empty:
        known, found = False, f"{name}: no answer in {deadline_s:.0f} s"
    return enough(
        known,
        "host name",
        found,
        "gloo and torchrun ask for it: ranks fail, or wait, at their start",
        "add the name to /etc/hosts, or set GLOO_SOCKET_IFNAME=lo",
        commands=("export GLOO_SOCKET_IFNAME=lo",),
    )


def _resolve(name: str) -> str:
    return str(socket.getaddrinfo(name, None)[0][4][0])


def loopback(host: str = "127.0.0.1") -> MachineCondition:
    """Whether a port on the loopback interface can be opened and reached."""
    opened, failure = f"ports of {host} open", ""
    try:
        with socket.create_server((host, 0)) as server:
            server.settimeout(RESOLVE_S)
            port = server.getsockname()[1]
            with socket.create_connection((host, port), RESOLVE_S):
                server.accept()[0].close()
    except OSError as error:
        opened, failure = "", f"{host}: {error.strerror or error}"
    return present(
        opened,
        "loopback",
        failure,
        "ranks of one machine cannot meet",
        "bring the interface lo up, and let processes open ports on it",
        needed=True,
        commands=(as_root("ip link set lo up"),),
    )


def interface(wanted: str, there: Collection[str]) -> MachineCondition:
    """Which network interface gloo uses.

    Args:
        wanted: What GLOO_SOCKET_IFNAME says; "" if it is not set.
        there: Names of the machine's interfaces.
    """
    name = "gloo interface"
    if not wanted:
        return enough(True, name, "that of the host name's address")
    missing = [each for each in wanted.split(",") if each not in there]
    if not missing:
        return enough(True, name, f"{wanted}, by GLOO_SOCKET_IFNAME")
    return enough(
        False,
        name,
        f"GLOO_SOCKET_IFNAME={wanted}, and {', '.join(missing)} is not here",
        "gloo fails at the start of every rank",
        f"unset it, or name one of {', '.join(sorted(there))}",
        commands=("unset GLOO_SOCKET_IFNAME",),
    )
