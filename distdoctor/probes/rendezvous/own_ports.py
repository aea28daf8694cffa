"""Gives each job on a machine private ports in place of those that its script names.

Scripts name the same few ports again and again, so that two jobs on one machine meet
by accident, and addresses of machines that are not here. Every process of the job asks
here what stands for the port that its script names: whoever is first chooses, and the
others read it. What would not have worked is written down, so that it is not hidden.

A store has no password, and torch opens it on all interfaces of the machine. Where
distdoctor chose how to start the job, it is opened on the loopback interface alone.
"""

from __future__ import annotations

import errno
import functools
import ipaddress
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import TCPStore

from distdoctor.journal.environment import (
    FOLDER_VARIABLE,
    LOOPBACK_VARIABLE,
    PORTS_VARIABLE,
)
from distdoctor.journal.layout import PORTS_FOLDER
from distdoctor.journal.private_files import make_private_folder, write_private
from distdoctor.model.events import BadAddress
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.rendezvous.address_variables import (
    given_address,
    present_address,
    writer_of_address,
)

_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
_INTERFACE = "GLOO_SOCKET_IFNAME"
_LOOPBACK = "127.0.0.1"
_TORCHRUNS_OWN = 29500  # where plain torchrun opens its store: a script may count on it

_FIRST, _LAST = 15_000, 32_000  # below what Linux gives to sockets that do not choose
_TRIES = 50

_NAMES = ("host_name", "port", "world_size", "is_master")
_MORE = ("timeout", "wait_for_workers", "multi_tenant", "master_listen_fd", "use_libuv")
"""Parameters of TCPStore, in their order (torch 2.8 to 2.13)."""

_served: set[int] = set()
_overridden: dict[str, str] = {}  # address asked for: address given


def install() -> None:
    """Wrap the stores right after `import torch`, to use private ports."""
    if not _is_private():
        return
    made = TCPStore.__init__

    @functools.wraps(made)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        given = dict(zip((*_NAMES, *_MORE), args, strict=False)) | kwargs
        changed = _moved(given)
        changed = _on_loopback(given | (changed or {})) or changed
        if changed is None:
            made(self, *args, **kwargs)
        else:
            made(self, **_rest(args, kwargs) | changed)
        if given.get("is_master"):
            _opened(self, given)

    TCPStore.__init__ = __init__  # type: ignore[method-assign]


def _is_private() -> bool:
    """Whether ports may be others; Ray chooses one that all its workers are told."""
    return PORTS_VARIABLE in os.environ and "RAY_RAYLET_PID" not in os.environ


def _rest(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments that stay as they are, by name."""
    more = dict(zip(_MORE, args[len(_NAMES) :], strict=False))
    return more | {name: value for name, value in kwargs.items() if name not in _NAMES}


@harmless
def _moved(given: dict[str, Any]) -> dict[str, Any] | None:
    """Host, port and the rest as they should be; None: as they are."""
    host, port = str(given["host_name"]), int(given["port"])
    if not port or given.get("master_listen_fd") is not None:
        return None
    asked = f"{host}:{port}"
    if not given.get("is_master") and asked in _overridden:
        host, _, text = _overridden[asked].rpartition(":")
        port = int(text)
    elif not is_here(host):
        _note("elsewhere", asked, call_site(1))
        host = _LOOPBACK
    elif given.get("is_master") and port not in _served and _is_taken(port):
        fault = "taken" if _is_held_by_us(port) else "occupied"
        _note(fault, asked, call_site(1))
    private = _private_port(port)
    kept = {name: given[name] for name in _NAMES if name in given}
    return kept | {"host_name": host, "port": private}


@harmless
def _on_loopback(given: dict[str, Any]) -> dict[str, Any] | None:
    """What makes a store listen on, and be looked for at, loopback; None: nothing."""
    host, port = str(given["host_name"]), int(given["port"])
    is_taken_care_of = given.get("master_listen_fd") is not None or not is_here(host)
    if LOOPBACK_VARIABLE not in os.environ or is_taken_care_of:
        return None
    kept = {name: given[name] for name in _NAMES if name in given}
    kept["host_name"] = _LOOPBACK
    if given.get("is_master"):
        try:
            listener = socket.create_server((_LOOPBACK, port), backlog=socket.SOMAXCONN)
        except OSError:
            return kept  # a store of this process has that port already, and is shared
        kept["port"] = listener.getsockname()[1]
        kept["master_listen_fd"] = listener.detach()
    return kept


@harmless
def _opened(store: TCPStore, given: dict[str, Any]) -> None:
    """A store is open; a port that the kernel chose is nobody else's."""
    _served.add(int(given["port"]))
    if not int(given["port"]):
        _agree(store.port, store.port)


def _private_port(port: int) -> int:
    """The port that stands for this one, the same in all processes of the job."""
    folder = RECORDER.folder / PORTS_FOLDER
    with suppress(FileNotFoundError):
        return int((folder / str(port)).read_text())
    for _ in range(_TRIES):
        chosen = _FIRST + secrets.randbelow(_LAST - _FIRST)
        if not _is_taken(chosen) and not (folder / str(chosen)).exists():
            _agree(chosen, chosen)  # torchrun tells its ranks where its store really is
            return _agree(port, chosen)
    return _agree(port, port)


def _agree(port: int, chosen: int) -> int:
    """Say what stands for a port, unless somebody has said so before."""
    folder = RECORDER.folder / PORTS_FOLDER
    make_private_folder(folder)
    draft = folder / f"{port}.{os.getpid()}"
    write_private(draft, str(chosen).encode(), below=2)
    with suppress(FileExistsError):
        os.link(draft, folder / str(port))
    draft.unlink()
    return int((folder / str(port)).read_text())


def _is_taken(port: int) -> bool:
    """Whether a store could not be opened there; it listens on every interface."""
    for family in (socket.AF_INET6, socket.AF_INET):
        with suppress(OSError), socket.socket(family) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("", port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return True
                raise
    return False


def _is_held_by_us(port: int) -> bool:
    """Whether a process of this job listens there, or did not let go of it.

    Linux: the fields of /proc/net/tcp are in proc(5); a socket that nobody can be
    found for is taken for somebody else's.
    """
    sockets = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if int(fields[1].rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{fields[9]}]")
    mark = f"{FOLDER_VARIABLE}={RECORDER.folder}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark not in (process / "environ").read_bytes().split(b"\0"):
                continue
            if sockets.intersection(_opened_files(process / "fd")):
                return True
    return False


def _opened_files(folder: Path) -> Iterator[str]:
    for link in folder.iterdir():
        with suppress(OSError):  # closed meanwhile
            yield str(link.readlink())


@functools.cache  # a name server that is away takes seconds to be away
def is_here(host: str) -> bool:
    """Whether a host name or an address is this machine's."""
    if host in {"", "localhost", socket.gethostname()}:
        return True
    with suppress(ValueError):
        return _is_bound_here(str(ipaddress.ip_address(host)))
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return any(_is_bound_here(str(address[0])) for *_, address in found)


def _is_bound_here(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as trial:
        try:
            trial.bind((address, 0))
        except OSError:
            return False
    return not ipaddress.ip_address(address.partition("%")[0]).is_multicast


# --- what is wrong with an address ---


@harmless
def joining(named: dict[str, Any]) -> None:
    """Check, before a rank joins, whether it uses its launcher's store address.

    Under torchrun all ranks are clients of the launcher's store, rank 0 too, so that
    at any other address nobody answers, and they wait without a word.

    Source: torch 2.8 to 2.13, distributed/rendezvous.py, `_create_c10d_store`.

    Args:
        named: The arguments of `init_process_group`, by name.
    """
    _mend_interface()
    if named.get("store") is not None or os.environ.get(_AGENT_STORE) != "True":
        return
    method = str(named.get("init_method") or "env://")
    asked = method.removeprefix("tcp://").partition("?")[0].rstrip("/")
    if method.startswith("env://"):
        asked = present_address()
    elif not method.startswith("tcp://"):
        return
    given = given_address()
    if not given or _alike(asked, given) or _is_default(asked):
        return
    site = writer_of_address() if method.startswith("env://") else ""
    _note("overridden", asked, site or call_site(1), given, mended=_is_private())


def _alike(asked: str, given: str) -> bool:
    """Whether two addresses lead to one store."""
    host, _, port = asked.rpartition(":")
    launchers, _, launchers_port = given.rpartition(":")
    if port != launchers_port:
        return False
    return host == launchers or (is_here(host) and is_here(launchers))


def _is_default(asked: str) -> bool:
    """Whether torchrun, left to itself, would have opened its store there.

    We let it choose a port, so that two jobs can run; the script cannot know that.
    """
    host, _, port = asked.rpartition(":")
    ours = os.environ.get(PORTS_VARIABLE) == "own"
    if ours and port == str(_TORCHRUNS_OWN) and is_here(host):
        _overridden[asked] = given_address()
        return True
    return False


def _note(
    fault: str, address: str, site: str, given: str = "", mended: bool = True
) -> None:
    if fault == "overridden" and mended:
        _overridden[address] = given
    event = BadAddress(fault=fault, address=address, given=given, mended=mended)
    RECORDER.tell(event, site)


def _mend_interface() -> None:
    """A network interface that this machine does not have stands for loopback."""
    named = [name for name in os.environ.get(_INTERFACE, "").split(",") if name]
    here = {name for _, name in socket.if_nameindex()}
    if _is_private() and named and not here.intersection(named):
        _note("interface", ",".join(named), call_site(1))
        os.environ[_INTERFACE] = "lo"


PROBE = Probe(install=install)
