"""Tells from the command whether a job has several nodes, and where these find us."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from distdoctor.errors import LaunchRefused
from distdoctor.journal.environment import TOKEN_VARIABLE

if TYPE_CHECKING:
    from distdoctor.launch.node_plan import NodePlan

_OF_MPI = {"mpirun", "mpiexec", "orterun", "prterun"}
_HOSTS = {"-H", "--host", "-host", "--hosts"}
_HOST_FILES = {"--hostfile", "-hostfile", "--machinefile", "-machinefile", "-f"}
_NODES = {"-N", "--nodes"}
_OURS = {"localhost", "127.0.0.1", "::1"}
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_MEETINGS = {"--master-addr", "--rdzv-endpoint"}
_ELSEWHERE = "192.0.2.1", 9  # of the addresses for examples: nothing is sent there


def has_several_nodes(command: Sequence[str]) -> bool:
    """Whether a launcher starts ranks on other machines, as far as that is plain.

    >>> has_several_nodes(["mpirun", "--host", "localhost:2,b:2", "python", "t.py"])
    True
    """
    program = Path(command[0]).name if command else ""
    options = [part for word in command for part in word.split("=", 1)]
    if program == "srun":
        asked = [value for name, value in pairwise(options) if name in _NODES]
        nodes = asked[0] if asked else os.environ.get("SLURM_JOB_NUM_NODES", "1")
        return nodes.partition("-")[0] not in {"1", "0"}
    if program not in _OF_MPI:
        return False
    hosts: set[str] = set()
    for name, value in pairwise(options):
        if name in _HOSTS:
            hosts |= {one.partition(":")[0] for one in value.split(",")}
        if name in _HOST_FILES:
            with suppress(OSError):
                lines = Path(value).read_text(errors="replace").splitlines()
                words = [line.split("#")[0].split() for line in lines]
                hosts |= {one[0].partition(":")[0] for one in words if one}
    return bool(hosts - _OURS - {os.uname().nodename})


def node_plan(command: Sequence[str], listen: str, nodes: int) -> NodePlan:
    """How a job over several nodes is watched.

    The token is the user's own, if there is one, and else a new one.

    Args:
        command: What starts the job on this node.
        listen: HOST[:PORT] that the user gave; empty: none.
        nodes: How many nodes there are; 0: nobody has said.

    Raises:
        LaunchRefused: There is no such address here.
    """
    from distdoctor.launch.node_plan import NodePlan
    from distdoctor.launch.node_sockets import new_token, require_token

    host, port = _parted(listen)
    token = os.environ.get(TOKEN_VARIABLE, "")
    if token:
        require_token(token)
    return NodePlan(
        host=_address(host) if host else _own_address(command),
        port=port,
        token=token or new_token(),
        nodes=nodes,
        is_new=not token,
        joined=not has_several_nodes(command),
    )


def _parted(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon:
        return listen, 0
    if not port.isdecimal() or int(port) > 65535:
        raise LaunchRefused(f"--listen {listen}: give HOST or HOST:PORT")
    return host.strip("[]"), int(port)


def _address(host: str) -> str:
    """The address behind a name, or of an interface."""
    if host in psutil.net_if_addrs():
        return _of_interface(host)
    with suppress(OSError):
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    raise LaunchRefused(
        f"--listen {host}: it is no address, no name and no interface; those are "
        + ", ".join(sorted(psutil.net_if_addrs()))
    )


def _own_address(command: Sequence[str]) -> str:
    """The address of the job's own network interface on this machine."""
    for variable in _INTERFACES:
        name = os.environ.get(variable, "").split(",")[0].lstrip("=^")
        if name in psutil.net_if_addrs():
            return _of_interface(name)
    options = [part for word in command for part in word.split("=", 1)]
    meetings = [
        value.partition(":")[0]
        for name, value in pairwise(options)
        if name.replace("_", "-") in _MEETINGS
    ]
    ours = {one.address for of in psutil.net_if_addrs().values() for one in of}
    for host in [*meetings, os.environ.get("MASTER_ADDR", "")]:
        with suppress(OSError, LaunchRefused):
            if host and (address := _address(host)) in ours:
                return address
    with suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as way_out:
        way_out.connect(_ELSEWHERE)
        return str(way_out.getsockname()[0])
    raise LaunchRefused(
        "this machine has no network address that other nodes could use; name one "
        "with --listen"
    )


def _of_interface(name: str) -> str:
    for one in psutil.net_if_addrs()[name]:
        if one.family in {socket.AF_INET, socket.AF_INET6}:
            return str(one.address)
    raise LaunchRefused(f"the interface {name} has no address; name one with --listen")
