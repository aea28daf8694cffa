"""Reads what lines of NCCL say of the process that printed them."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable

from distdoctor.model.events import MOST_RANKS
from distdoctor.model.observations.nccl import ComplaintKind
from distdoctor.postmortem.nccl_logs.call_reader import MOST_PROCESSES, CallReader
from distdoctor.postmortem.nccl_logs.complaint_kinds import meaning
from distdoctor.postmortem.nccl_logs.line_grammar import (
    CHANNEL,
    INIT,
    INTERFACE,
    SETTING,
    STATUS,
    VERSION,
    text_of,
)
from distdoctor.postmortem.nccl_logs.process_log import (
    MOST_KEPT,
    Complaint,
    Life,
    ProcessLog,
)

_MOST_MILD = 24
_MOST_EDGES = 4096
_NODES = re.compile(rb"nRanks \d+ nNodes (\d{1,6})")
_TIMINGS = re.compile(
    rb"rank \d+ nranks \d+ total (\d{1,7}\.\d+) \(.*?bootstrap (\d{1,7}\.\d+)"
)
_REPEATED = b"across cluster]"
"""Ray's mark of a line that stands for several, of other processes, too."""
HARMFUL = re.compile(
    rb"async fatal event|Got async (?:error )?event|Connection closed by"
    rb"|connection closed|Connection refused|connect(?:ion)? (?:to|returned)"
    rb"|Failed to bind NVLink|without NVLS|iommu=pt|P2P is disabled"
    rb"|Could not enable P2P|GPU Direct RDMA Disabled|Duplicate GPU|MNNVL"
)
"""What is worth keeping of lines at the level INFO."""


class MessageReader(CallReader):
    """Reads what lines of NCCL say, of one piece."""

    def _message(
        self, process: ProcessLog, device: int, body: bytes, thread: int = 0
    ) -> None:
        process.lines += 1
        self.piece.nccl_lines += 1
        if body.endswith(_REPEATED):
            self._is_repeated = True
        if b"opCount" in body or b" sendbuff " in body:
            self._call(process, body)
            return
        word = body[: body.find(b" ")] if b" " in body else body
        if (reader := _READERS.get(word.rstrip(b":"))) is not None:
            reader(self, process, device, body)
        elif word.startswith((b"NCCL_", b"RCCL_")):
            self._setting(process, body)
        elif b" -> " in body and (status := STATUS.match(body)):
            self._status(process, int(status["status"]), thread)
        elif word.startswith(b"[Rank"):
            self._life(process, device, body)
        elif HARMFUL.search(body):
            self._complain(process, device, thread, "", body.strip(), 0.0)

    def _life(self, process: ProcessLog, device: int, body: bytes) -> None:
        found = INIT.match(body)
        if found is None:
            if nodes := _NODES.search(body):
                process.nodes = process.nodes or int(nodes[1])
            return
        del device
        if len(process.lives) >= MOST_PROCESSES:
            self.piece.full = True
            return
        texts = {
            name: text_of(value or b"") for name, value in found.groupdict().items()
        }
        comm = texts["comm"]
        if max(int(texts["rank"]), int(texts["nranks"])) > MOST_RANKS:
            return
        life = Life(
            what=texts["what"],
            comm=comm,
            rank=int(texts["rank"]),
            size=int(texts["nranks"]),
            device=int(texts["dev"]),
            bus=texts["bus"],
            ident=texts["id"],
            parent=texts["parent"],
            count=texts["count"],
            color=texts["color"],
            file=self._file,
            line=self._line,
            stamp=process.last_stamp,
        )
        lists = process.lists_of(comm)
        last = next((one for one in reversed(process.lives) if one.comm == comm), None)
        begun = last is not None and last.what == "Init START"
        if life.what == "Init START" or (life.what == "Init COMPLETE" and not begun):
            life.opens = True
            lists.append(array("I"))
        process.lives.append(life)
        if life.what.startswith("Init"):
            shape = "+".join(n for n in ("func", "nvml", "bus", "id") if texts[n])
            if not texts["parent"]:
                process.traits.setdefault(f"form of {life.what}", shape or "none")

    def _timings(self, process: ProcessLog, device: int, body: bytes) -> None:
        del device
        found = _TIMINGS.search(body)
        if found and float(found[1]) > process.init_s:
            process.init_s, process.waited_s = float(found[1]), float(found[2])

    def _version(self, process: ProcessLog, device: int, body: bytes) -> None:
        del device
        if found := VERSION.search(body):
            process.version = process.version or text_of(found["version"])

    def _driver(self, process: ProcessLog, device: int, body: bytes) -> None:
        del device
        if found := re.match(rb"cudaDriverVersion (\d{1,7})", body):
            process.driver = process.driver or int(found[1])

    def _bootstrap(self, process: ProcessLog, device: int, body: bytes) -> None:
        colon = "Bootstrap:" if body.startswith(b"Bootstrap:") else "Bootstrap :"
        if found := INTERFACE.search(body):
            process.traits.setdefault("form of Bootstrap", colon)
            own = text_of(found["name"]), text_of(found["address"])
            process.interface = process.interface if process.interface[0] else own
            self._addresses(process, body)
        else:
            self._quiet(process, device, body)

    def _net(self, process: ProcessLog, device: int, body: bytes) -> None:
        text = text_of(body)
        if "No device found" in text:
            process.no_adapter = True
        elif "Using [" in text or "Using " in text[:24]:
            if text.startswith("NET/Socket"):
                process.sockets = process.sockets or text.partition("Using ")[2]
            else:
                process.adapters = process.adapters or text.partition("Using ")[2]
            self._addresses(process, body)
        else:
            self._quiet(process, device, body)

    def _quiet(self, process: ProcessLog, device: int, body: bytes) -> None:
        if HARMFUL.search(body):
            self._complain(process, device, 0, "", body.strip(), 0.0)

    def _addresses(self, process: ProcessLog, body: bytes) -> None:
        for one in INTERFACE.finditer(body):
            if len(process.addresses) < MOST_KEPT:
                process.addresses.add(text_of(one["address"]))

    def _using(self, process: ProcessLog, device: int, body: bytes) -> None:
        del device
        if body.startswith(b"Using network "):
            process.network = process.network or text_of(body[14:].strip())

    def _channel(self, process: ProcessLog, device: int, body: bytes) -> None:
        del device
        found = CHANNEL.match(body)
        if found is None or len(process.edges) >= _MOST_EDGES:
            return
        mine = int(found["b"] if found["way"] == b"receive" else found["a"])
        if not process.lives and len(process.hints) < 8:
            process.hints[mine] = process.hints.get(mine, 0) + 1
        last = process.lives[-1] if process.lives else None
        current = last.comm if last and last.what == "Init START" else ""
        edge = (
            current,
            int(found["a"]),
            int(found["b"]),
            _transport(text_of(found["via"])),
        )
        process.edges[edge] = process.edges.get(edge, 0) + 1

    def _trees(self, process: ProcessLog, device: int, body: bytes) -> None:
        del device
        found = re.search(rb"->(\d{1,7})->", body)
        if found and not process.lives and len(process.hints) < 8:
            mine = int(found[1])
            process.hints[mine] = process.hints.get(mine, 0) + 2

    def _setting(self, process: ProcessLog, body: bytes) -> None:
        found = SETTING.match(body)
        if found and len(process.settings) < 256:
            name = text_of(found["name"])
            value = text_of(found["value"]).rstrip().removesuffix(".")
            process.settings.setdefault(name, value)
            process.where_set.setdefault(name, (self._file, self._line))

    def _status(self, process: ProcessLog, status: int, thread: int) -> None:
        if not status or status == 7:
            return
        for one in reversed(process.complaints[-4:]):
            if not one.status and thread in {0, one.thread}:
                one.status = status

    def _complain(
        self,
        process: ProcessLog,
        device: int,
        thread: int,
        source: str,
        body: bytes,
        stamp: float,
    ) -> None:
        if len(process.complaints) >= (MOST_KEPT if source else _MOST_MILD):
            return
        reported = text_of(body)[:400]
        if self._is_harmless(reported, source):
            return
        process.complaints.append(
            Complaint(
                text=re.sub(r"\s+", " ", text_of(body))[:400],
                source=source,
                device=device,
                thread=thread,
                file=self._file,
                line=self._line,
                stamp=stamp or process.last_stamp,
                calls=process.count,
            )
        )

    def _is_harmless(self, text: str, source: str) -> bool:
        known = self._harmless.get(text[:60])
        if known is None:
            known = meaning(text, source).kind is ComplaintKind.NONE
            if len(self._harmless) < _MOST_EDGES:
                self._harmless[text[:60]] = known
        return known


_READERS: dict[bytes, Callable[[MessageReader, ProcessLog, int, bytes], None]] = {
    b"comm": MessageReader._life,
    b"NCCL": MessageReader._version,
    b"RCCL": MessageReader._version,
    b"cudaDriverVersion": MessageReader._driver,
    b"Bootstrap": MessageReader._bootstrap,
    b"NET/IB": MessageReader._net,
    b"NET/Socket": MessageReader._net,
    b"NET/Plugin": MessageReader._net,
    b"NET/OFI": MessageReader._net,
    b"Using": MessageReader._using,
    b"Init": MessageReader._timings,
    b"Channel": MessageReader._channel,
    b"Ring": MessageReader._channel,
    b"Trees": MessageReader._trees,
    **{
        b"ncclComm" + name: MessageReader._life
        for name in (
            *(b"InitRank", b"InitRankConfig", b"InitAll", b"InitRankScalable"),
            *(b"Split", b"Shrink", b"Grow"),
        )
    },
}
"""By the first word of a message, what reads it."""


def _transport(via: str) -> str:
    """A transport without what differs from channel to channel.

    >>> _transport("NET/IB/3(5)/GDRDMA"), _transport("direct shared memory")
    ('NET/IB/GDRDMA', 'SHM')
    """
    if via.startswith("SHM") or "shared memory" in via:
        return "SHM"
    parts = via.split("/")
    if parts[0] == "NET":
        direct = "/GDRDMA" if "GDRDMA" in via else ""
        return "/".join(parts[:2]).strip() + direct
    if parts[0] == "P2P":
        return "/".join(parts[:2]).strip()
    return via[:40].strip()
