"""Logs of NCCL made by rule: versions × launchers × faults, with their healthy twins.

The forms of the lines are those of NCCL's sources; numbers are drawn.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

VERSIONS = (
    *("2.4.8", "2.5.6", "2.7.8", "2.8.4", "2.10.3", "2.12.12", "2.14.3", "2.16.5"),
    *("2.18.3", "2.19.3", "2.20.5", "2.21.5", "2.22.3", "2.23.4", "2.24.3", "2.26.2"),
    *("2.27.5", "2.28.9", "2.29.2", "2.30.7"),
)
LAUNCHERS = (
    *("none", "srun", "padded", "mpi", "prterun", "horovod", "default", "pdsh", "ray"),
    *("kubectl", "cri", "date", "colour", "crlf", "mpich"),
)


@dataclass(slots=True)
class Rank:
    """A rank and what its process prints."""

    rank: int
    host: str
    pid: int
    device: int
    address: str
    comm: str
    lines: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Made:
    """A log and what is to be said of it.

    Attributes:
        text: The log.
        codes: That may be told as an error; none: no error is right.
        ranks: At fault; None: any answer will do.
        hosts: That must be named, if ranks are not.
    """

    text: str
    codes: tuple[str, ...] = ()
    ranks: tuple[int, ...] | None = None
    hosts: tuple[str, ...] = ()


class Maker:
    """Makes one log."""

    def __init__(
        self,
        version: str,
        launcher: str = "none",
        hosts: int = 2,
        per_host: int = 2,
        seed: int = 0,
    ) -> None:
        self.random = random.Random(seed)
        self.version = version
        self.number = tuple(map(int, version.split(".")))
        self.launcher = launcher
        self.size = hosts * per_host
        base = self.random.choice(["node", "gpu-", "ip-10-0-0-", "dgx"])
        self.ranks = []
        for n in range(self.size):
            host, device = divmod(n, per_host)
            self.ranks.append(
                Rank(
                    n,
                    f"{base}{host + 1:02d}",
                    1000 * (host + 1) + device,
                    device,
                    f"10.1.7.{11 + host}",
                    f"0x{0x55D0_0000_0000 + self.random.randrange(1 << 32):x}",
                )
            )
        self.ident = f"0x{self.random.randrange(1 << 63, 1 << 64):x}"
        self.out: list[tuple[int, str]] = []
        self.calls = 0
        self.network = "IB"

    def since(self, *version: int) -> bool:
        """Whether the version is this one or a later one."""
        return self.number >= version

    def info(self, rank: Rank, text: str, thread: int | None = None) -> None:
        """Print a line at the level INFO."""
        tid = rank.pid if thread is None else thread
        stamp = f"{rank.host}:{rank.pid}:{tid} [{rank.device}] NCCL INFO {text}"
        self.out.append((rank.rank, stamp))

    def warn(
        self, rank: Rank, source: str, text: str, thread: int | None = None
    ) -> None:
        """Print a warning, with the empty line before it."""
        tid = rank.pid + 150 if thread is None else thread
        self.out.append((rank.rank, ""))
        stamp = "[2025-11-21 07:00:02] " if self.since(2, 26, 2) else ""
        function = "(someFunction) " if self.since(2, 30, 7) else ""
        self.out.append(
            (
                rank.rank,
                f"{stamp}{rank.host}:{rank.pid}:{tid} [{rank.device}] {source} "
                f"{function}NCCL WARN {text}",
            )
        )

    def status(self, rank: Rank, status: int, thread: int | None = None) -> None:
        """Print the result on its way up."""
        tid = rank.pid + 150 if thread is None else thread
        for source in ("transport.cc:273", "init.cc:704"):
            function = " (f)" if self.since(2, 30, 7) else ""
            self.info(rank, f"{source}{function} -> {status}", tid)

    def say(self, text: str, rank: int = 0) -> None:
        """Print a line that is not NCCL's."""
        self.out.append((rank, text))

    def raised(self, *ranks: Rank, status: str = "internal error") -> None:
        """Print what PyTorch raises of it."""
        for one in ranks:
            for line in (
                "Traceback (most recent call last):",
                '  File "train.py", line 12, in <module>',
                "torch.distributed.DistBackendError: NCCL error in: "
                "ProcessGroupNCCL.cpp"
                f":1970, {status}, NCCL version {self.version}",
            ):
                self.say(f"[rank{one.rank}]: {line}", one.rank)

    def start(self, absent: tuple[int, ...] = ()) -> None:
        """Print what comes before a communicator is begun."""
        colon = "Bootstrap:" if self.since(2, 24, 3) else "Bootstrap :"
        for one in self.ranks:
            if one.rank in absent:
                continue
            if self.since(2, 13, 4):
                self.info(one, "cudaDriverVersion 12040")
            self.info(one, f"{colon} Using eth0:{one.address}<0>")
            if self.since(2, 22, 3):
                self.info(one, f"NCCL version {self.version}+cuda12.4")
            elif one.rank == 0:
                self.say(f"NCCL version {self.version}+cuda12.4")
            if self.network == "IB":
                self.info(
                    one,
                    f"NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:{one.address}<0>",
                    one.pid + 150,
                )
            else:
                self.info(one, "NET/IB : No device found.", one.pid + 150)
                self.info(one, f"NET/Socket : Using [0]eth0:{one.address}<0>")
            if self.since(2, 6, 4):
                self.info(one, f"Using network {self.network}", one.pid + 150)

    def _init(self, one: Rank, what: str, size: int) -> str:
        tail = ""
        if self.since(2, 23, 4):
            tail = "ncclCommInitRankConfig "
        elif self.since(2, 21, 5):
            tail = "ncclCommInitRank "
        if self.since(2, 29, 2) and what == "START":
            tail = f"[Rank {one.rank}] {tail}"
        text = (
            f"{tail}comm {one.comm} rank {one.rank} nranks {size} cudaDev {one.device}"
        )
        if self.since(2, 18, 3) or not self.since(2, 5, 6):
            text += f" nvmlDev {one.device}"
        if self.since(2, 5, 6):
            text += f" busId {7 + 8 * one.device:x}000"
        if self.since(2, 16, 2):
            text += f" commId {self.ident}"
        return f"{text} - Init {what}"

    def init(
        self,
        absent: tuple[int, ...] = (),
        incomplete: tuple[int, ...] = (),
    ) -> None:
        """Print how the communicator of all ranks is made."""
        here = [one for one in self.ranks if one.rank not in absent]
        if self.since(2, 18, 3):
            for one in here:
                self.info(one, self._init(one, "START", self.size), one.pid + 150)
        for one in here:
            if len(incomplete) < len(here):
                self._edges(one)
        for one in here:
            if one.rank not in incomplete:
                self.info(one, self._init(one, "COMPLETE", self.size), one.pid + 150)

    def _edges(self, one: Rank) -> None:
        word = "Channel" if self.since(2, 7, 3) else "Ring"
        after = self.ranks[(one.rank + 1) % self.size]
        if after.host == one.host:
            via = "P2P/IPC"
        else:
            via = "NET/IB/0/GDRDMA" if self.network == "IB" else "NET/Socket/0"
        way = "" if after.host == one.host else " [send]"
        self.info(
            one,
            f"{word} 00{'/0' if self.since(2, 13, 4) else ''} : "
            f"{one.rank}[{one.device}] "
            f"-> {after.rank}[{after.device}]{way} via {via}",
        )

    def call(
        self,
        *ranks: Rank,
        op: str = "AllReduce",
        count: int = 1024,
        dtype: int = 7,
        reduce: int = 0,
        root: int = 0,
    ) -> None:
        """Print a call on some ranks, all by default."""
        self.calls += 1
        for one in ranks or self.ranks:
            send = self.random.randrange(1 << 44, 1 << 46)
            self.info(
                one,
                f"{op}: opCount {self.calls:x} sendbuff 0x{send:x} recvbuff 0x{send:x} "
                f"count {count} datatype {dtype} op {reduce} root {root} comm "
                f"{one.comm} "
                f"[nranks={self.size}] stream 0x{one.pid * 4096:x}",
            )

    def steps(self, number: int, *ranks: Rank) -> None:
        """Print some steps of a training."""
        for step in range(number):
            self.call(*ranks, count=1000 + step % 5)
            self.call(*ranks, op="Broadcast", count=7)
            if not ranks:
                self.say(f"step {step} | loss {1 / (step + 1):.4f}")

    def end(self, what: str = "Destroy") -> None:
        """Print the end of all communicators."""
        if self.since(2, 12, 7):
            for one in self.ranks:
                self.info(
                    one,
                    f"comm {one.comm} rank {one.rank} nranks {self.size} cudaDev "
                    f"{one.device} busId 7000 - {what} COMPLETE",
                )

    def watchdog(self, *ranks: Rank, number: int = 20, op: str = "ALLREDUCE") -> None:
        """Print that watchdogs gave up."""
        for one in ranks:
            self.say(
                f"[rank{one.rank}]:[E1121 07:20:11.1 ProcessGroupNCCL.cpp:616] [Rank "
                f"{one.rank}] Watchdog caught collective operation timeout: WorkNCCL("
                f"SeqNum={number}, OpType={op}, NumelIn=1000, NumelOut=1000, "
                "Timeout(ms)=600000) ran for 600049 milliseconds before timing out.",
                one.rank,
            )

    def text(self) -> str:
        """The log, as the launcher writes it."""
        return "".join(self._launched(rank, line) for rank, line in self.out)

    def _launched(self, rank: int, line: str) -> str:
        one = self.ranks[rank]
        width = len(str(self.size - 1))
        prefix, end = {
            "none": ("", ""),
            "srun": (f"{rank:0{width}d}: ", ""),
            "padded": (f"{rank:>4}: ", ""),
            "mpi": (f"[1,{rank}]<stdout>:", ""),
            "prterun": (f"[prterun-{one.host}-77@1,{rank}]<stdout>: ", ""),
            "horovod": (f"Mon Oct 19 20:44:09 2020[{rank}]<stderr>:", ""),
            "default": (f"[default{one.device}]:", ""),
            "pdsh": (f"{one.host}: ", ""),
            "ray": (f"(RayTrainWorker pid={one.pid}, ip={one.address}) ", ""),
            "kubectl": (f"[pod/{one.host}/pytorch] ", ""),
            "cri": ("2024-05-11T14:10:52.224123456Z stdout F ", ""),
            "date": ("2023/10/26 12:12:05 ", ""),
            "colour": ("\x1b[36m", "\x1b[0m"),
            "crlf": ("", "\r"),
            "mpich": (f"[{rank}] ", ""),
        }[self.launcher]
        return f"{prefix}{line}{end}\n"


Fault = Callable[[Maker], Made]
FAULTS: dict[str, Fault] = {}


def fault(make: Fault) -> Fault:
    """List a kind of log."""
    FAULTS[make.__name__] = make
    return make


def _begun(m: Maker) -> None:
    m.start()
    m.init()
    m.steps(4)


def _closed(m: Maker, *but: int, peer: Rank | None = None) -> list[Rank]:
    victims = [one for one in m.ranks if one.rank not in but]
    to = peer or m.ranks[but[0]]
    for one in victims:
        text = (
            "socketProgress: Connection closed by remote peer "
            if m.since(2, 16, 2)
            else "Net : Connection closed by remote peer "
        )
        m.warn(one, "misc/socket.cc:49", f"{text}{to.address}<{40000 + one.rank}>")
        m.status(one, 6 if m.since(2, 13, 4) else 2)
    return victims


@fault
def healthy(m: Maker) -> Made:
    """A run to its end."""
    _begun(m)
    m.end()
    return Made(m.text())


@fault
def healthy_without_calls(m: Maker) -> Made:
    """No line of a call was asked for."""
    m.start()
    m.init()
    m.say("epoch 1 done")
    return Made(m.text())


@fault
def healthy_sockets(m: Maker) -> Made:
    """Hosts with Ethernet only."""
    m.network = "Socket"
    for one in m.ranks:
        m.warn(one, "misc/ibvwrap.cc:63", "Failed to open libibverbs.so[.1]")
    _begun(m)
    m.end()
    return Made(m.text())


@fault
def healthy_midrun(m: Maker) -> Made:
    """Copied while the job runs."""
    _begun(m)
    m.call(*m.ranks[:-1], count=77)
    return Made(m.text()[:-40])


@fault
def healthy_retries(m: Maker) -> Made:
    """Connections that came about after some tries."""
    m.start()
    for one in m.ranks[1:]:
        m.info(one, "Call to connect returned Connection refused, retrying")
    m.init()
    m.steps(30)
    return Made(m.text())


@fault
def healthy_closed_at_the_end(m: Maker) -> Made:
    """Service threads see the others leave."""
    _begun(m)
    for one in m.ranks:
        m.info(one, "[Service thread] Connection closed by localRank 1", one.pid + 9)
    m.end()
    return Made(m.text())


@fault
def healthy_subgroups(m: Maker) -> Made:
    """Other communicators besides, with calls of their own."""
    m.start()
    m.init()
    m.steps(3)
    world = [one.comm for one in m.ranks]
    half = m.size // 2
    for n, one in enumerate(m.ranks):
        one.comm = f"0x7f{n:010x}"
        extra = (
            f"parent {world[n]} color {n // half} key {n} " if m.since(2, 21) else ""
        )
        ident = f"commId 0x{n // half + 5:x} " if (2, 16) <= m.number < (2, 23) else ""
        function = "ncclCommSplit " if m.since(2, 21) else ""
        m.info(
            one,
            f"{function}comm {one.comm} rank {n % half} nranks {half} cudaDev "
            f"{one.device} "
            f"busId 7000 {extra}{ident}- Init COMPLETE",
        )
    m.calls = 0
    for n, one in enumerate(m.ranks):
        for k in range(3):
            m.call(one, op="AllGather", count=10 + n // half + k)
    for one, comm in zip(m.ranks, world, strict=True):
        one.comm = comm
    m.steps(3)
    return Made(m.text())


@fault
def shared_memory(m: Maker) -> Made:
    """/dev/shm of one host is too small."""
    m.start()
    bad = [one for one in m.ranks if one.host == m.ranks[-1].host]
    for one in bad:
        m.warn(
            one,
            "misc/shmutils.cc:72",
            "Error: failed to extend /dev/shm/nccl-AbC to 9637892 bytes",
        )
        m.status(one, 2)
        m.warn(
            one,
            "misc/shmutils.cc:113",
            "Error while creating shared memory segment /dev/shm/nccl-AbC (size "
            "9637888)",
        )
    victims = _closed(m, *(one.rank for one in bad))
    m.raised(*bad, *victims)
    ranks = tuple(one.rank for one in bad)
    return Made(m.text(), ("DD603",), ranks if _ranked(m) else None, (bad[0].host,))


@fault
def shared_memory_old(m: Maker) -> Made:
    """The same, in the older words."""
    m.start()
    for one in m.ranks[:2]:
        m.warn(
            one,
            "include/shm.h:26",
            "Call to posix_fallocate failed : No space left on device",
        )
        m.status(one, 2)
    return Made(m.text(), ("DD603",), None, (m.ranks[0].host,))


@fault
def attach(m: Maker) -> Made:
    """Containers of a host do not share memory."""
    m.start()
    one = m.ranks[1]
    m.warn(
        one,
        "misc/shmutils.cc:100",
        "Error while attaching to shared memory segment /dev/shm/nccl-x (size 0): "
        "No such file or directory",
    )
    m.status(one, 2)
    m.raised(one)
    return Made(m.text(), ("DD603",), None, (one.host,))


@fault
def locked_memory(m: Maker) -> Made:
    """The limit of locked memory."""
    m.start()
    one = m.ranks[-1]
    m.warn(
        one,
        "misc/ibvwrap.cc:156",
        "Call to ibv_reg_mr failed with error Cannot allocate memory",
    )
    m.status(one, 2)
    m.raised(*_closed(m, one.rank))
    return Made(m.text(), ("DD603", "DD605"), None, (one.host,))


@fault
def duplicate(m: Maker) -> Made:
    """Two ranks on one GPU."""
    m.start()
    a, b = m.ranks[:2]
    for one, other in ((a, b), (b, a)):
        text = (
            f"Duplicate GPU detected : rank {one.rank} and rank {other.rank} both on "
            "CUDA device 7000"
        )
        if m.since(2, 30, 7):
            text = (
                "Multiple Ranks are using the same GPU/Partition. Set "
                "NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration."
            )
        m.warn(one, "init.cc:784", text)
        m.status(one, 5)
    m.raised(a, b, status="invalid usage")
    return Made(m.text(), ("DD604",), None, (a.host,))


@fault
def gpu_memory(m: Maker) -> Made:
    """One GPU is full."""
    m.start()
    one = m.ranks[1]
    m.warn(one, "include/alloc.h:185", "Cuda failure 2 'out of memory'")
    m.status(one, 1)
    m.raised(one, *_closed(m, 1))
    return Made(m.text(), ("DD606",), (1,) if _ranked(m) else None, (one.host,))


@fault
def illegal_access(m: Maker) -> Made:
    """A kernel of the program, seen late."""
    _begun(m)
    one = m.ranks[-1]
    m.warn(
        one, "enqueue.cc:99", "Cuda failure 'an illegal memory access was encountered'"
    )
    m.status(one, 1)
    m.raised(one, *_closed(m, one.rank))
    m.end("Abort")
    return Made(m.text(), ("DD606",), (one.rank,), (one.host,))


@fault
def ecc(m: Maker) -> Made:
    """Hardware, with the kernel's line."""
    _begun(m)
    one = m.ranks[0]
    m.say(
        f"Nov 21 07:01:02 {one.host} kernel: NVRM: Xid (PCI:0000:07:00): 79, "
        f"pid={one.pid}, GPU has fallen off the bus."
    )
    m.warn(one, "enqueue.cc:99", "Cuda failure 'unspecified launch failure'")
    m.status(one, 1)
    m.raised(*_closed(m, 0))
    return Made(m.text(), ("DD606",), (0,), (one.host,))


@fault
def peer_access(m: Maker) -> Made:
    """GPUs that cannot reach each other."""
    m.start()
    one = m.ranks[1]
    m.warn(
        one,
        "transport/p2p.cc:243",
        "failed to open CUDA IPC handle : 217 peer access is not supported between "
        "these two devices",
    )
    m.status(one, 1)
    m.raised(one)
    return Made(m.text(), ("DD606", "DD602"), None, (one.host,))


@fault
def nvls(m: Maker) -> Made:
    """Multicast memory cannot be bound."""
    m.start()
    host = m.ranks[-1].host
    for one in m.ranks:
        if one.host == host:
            m.warn(one, "transport/nvls.cc:169", "Cuda failure 1 'invalid argument'")
            m.status(one, 1)
    return Made(m.text(), ("DD606",), None, (host,))


@fault
def versions(m: Maker) -> Made:
    """NCCL tells it itself."""
    m.start()
    for one in m.ranks[:-1]:
        m.warn(
            one,
            "init.cc:900",
            "Mismatched NCCL version detected : rank 0 version 22703 "
            f"rank {m.size - 1} version 22602",
        )
        m.status(one, 5)
    return Made(m.text(), ("DD601",), None, ())


@fault
def twice(m: Maker) -> Made:
    """A rank that checks in twice."""
    m.start()
    m.warn(
        m.ranks[0],
        "bootstrap.cc:125",
        f"Bootstrap Root : rank 1 of {m.size} ranks has already checked in",
    )
    m.status(m.ranks[0], 3)
    m.raised(*_closed(m, 0))
    return Made(m.text(), ("DD607", "DD612"), (1,))


@fault
def no_interface(m: Maker) -> Made:
    """NCCL_SOCKET_IFNAME names nothing on one host."""
    one = m.ranks[-1]
    m.start(absent=tuple(r.rank for r in m.ranks if r.host == one.host))
    for r in m.ranks:
        if r.host == one.host:
            m.warn(r, "bootstrap.cc:45", "Bootstrap : no socket interface found")
            m.status(r, 3)
    return Made(m.text(), ("DD602", "DD607"), None, (one.host,))


@fault
def completion_one_peer(m: Maker) -> Made:
    """All who reach one host fail."""
    _begun(m)
    bad = m.ranks[-1]
    hosts = {one.host: one for one in m.ranks if one.host != bad.host}
    for one in hosts.values():
        peer = f" from peer {bad.address}<4791>" if m.since(2, 10, 3) else ""
        m.warn(
            one,
            "transport/net_ib.cc:1295",
            f"NET/IB : Got completion{peer} with {_status(m, 12)}",
        )
        m.status(one, 6 if m.since(2, 13, 4) else 2)
    m.end("Abort")
    if len(hosts) < 2 or not m.since(2, 10, 3):
        return Made(m.text(), ("DD605",), None, ())
    return Made(m.text(), ("DD605",), None, (bad.host,))


def _status(m: Maker, status: int) -> str:
    if m.since(2, 28, 7):
        return (
            f"status=IBV_WC_RETRY_EXC_ERR({status}) opcode=IBV_WC_SEND(0) reqSize=0 "
            "vendor_err=129 req_type=Send  hca mlx5_0"
        )
    if m.since(2, 20, 3):
        return f"status={status} opcode=0 len=0 vendor err 129 (Send)"
    return f"error {status}, opcode 0, len 0, vendor err 129"


@fault
def port_error(m: Maker) -> Made:
    """A cable."""
    _begun(m)
    one = m.ranks[-1]
    text = "NET/IB : mlx5_0:1 Got async event : port error"
    if m.since(2, 23, 4):
        text = "NET/IB : mlx5_0:1 Got async error event: port error"
    m.warn(one, "transport/net_ib.cc:94", text)
    m.warn(
        m.ranks[0],
        "transport/net_ib.cc:1295",
        f"NET/IB : Got completion from peer {one.address}<4791> with {_status(m, 12)}",
    )
    m.status(m.ranks[0], 6)
    return Made(m.text(), ("DD605",), None, (one.host,))


@fault
def harmless_event(m: Maker) -> Made:
    """An event of the port that is none."""
    _begun(m)
    m.warn(
        m.ranks[-1],
        "transport/net_ib.cc:94",
        "NET/IB : mlx5_0:1 Got async event : port active",
    )
    m.steps(3)
    return Made(m.text())


@fault
def refused(m: Maker) -> Made:
    """Nobody listens where rank 0 should."""
    m.start()
    for one in m.ranks[1:]:
        m.warn(
            one,
            "misc/socket.cc:484",
            f"socketStartConnect: Connect to {m.ranks[0].address}<45555> failed : "
            "Connection refused",
        )
        m.status(one, 2)
    m.raised(*m.ranks[1:])
    return Made(m.text(), ("DD605", "DD607"), None, ())


@fault
def killed(m: Maker) -> Made:
    """A rank dies without a word."""
    _begun(m)
    one = m.ranks[1]
    m.raised(*_closed(m, 1))
    return Made(m.text(), ("DD605",), (1,), (one.host,))


@fault
def absent(m: Maker) -> Made:
    """A rank never begins."""
    m.start()
    bad = m.size - 1
    m.init(absent=(bad,), incomplete=tuple(range(m.size)))
    m.say("waiting for process group ...")
    if not m.since(2, 18, 3):
        return Made(m.text())  # nothing tells
    return Made(m.text(), ("DD607",), (bad,))


@fault
def missing_call(m: Maker) -> Made:
    """A rank leaves a call out."""
    _begun(m)
    bad = m.ranks[1]
    m.call(*(one for one in m.ranks if one is not bad), op="ReduceScatter", count=99)
    m.steps(4)
    return Made(m.text(), ("DD608",), (1,) if m.size > 2 else None)


@fault
def other_count(m: Maker) -> Made:
    """A rank with another count."""
    _begun(m)
    bad = m.ranks[2]
    m.call(*(one for one in m.ranks if one is not bad), count=4096)
    m.call(bad, count=4095)
    m.steps(4)
    return Made(m.text(), ("DD608",), (2,))


@fault
def other_root(m: Maker) -> Made:
    """A rank with another root."""
    _begun(m)
    bad = m.ranks[0]
    m.call(*m.ranks[1:], op="Broadcast", count=8, root=0)
    m.call(bad, op="Broadcast", count=8, root=1)
    m.steps(1)
    return Made(m.text(), ("DD608",), (0,))


@fault
def lag(m: Maker) -> Made:
    """A rank is behind when the watchdogs give up."""
    _begun(m)
    rest = [one for one in m.ranks if one.rank != 3]
    m.steps(1, *rest)
    m.watchdog(*rest, number=9)
    return Made(m.text(), ("DD608", "DD609"), (3,))


@fault
def watchdog_only(m: Maker) -> Made:
    """Nothing but watchdogs; one of them an earlier call."""
    m.start()
    m.init()
    m.watchdog(*m.ranks[:-1], number=31)
    m.watchdog(m.ranks[-1], number=30, op="ALLGATHER")
    return Made(m.text(), ("DD609",), (m.size - 1,))


@fault
def mixed_networks(m: Maker) -> Made:
    """One host uses sockets."""
    m.start()
    bad = m.ranks[-1].host
    if not m.since(2, 6, 4):
        return Made(m.text())
    m.out = [
        (rank, line.replace("Using network IB", "Using network Socket"))
        if m.ranks[rank].host == bad
        else (rank, line)
        for rank, line in m.out
    ]
    m.init(incomplete=tuple(range(m.size)))
    if not m.since(2, 18, 3):
        return Made(m.text())
    ranks = tuple(one.rank for one in m.ranks if one.host == bad)
    return Made(
        m.text(), ("DD602",), ranks if len(ranks) * 2 < m.size else None, (bad,)
    )


@fault
def settings(m: Maker) -> Made:
    """Another algorithm on one host, and messages that do not fit."""
    m.start()
    bad = m.ranks[-1].host
    for one in m.ranks:
        m.info(
            one,
            f"NCCL_ALGO set by environment to {'Tree' if one.host == bad else 'Ring'}",
        )
    m.init()
    m.steps(1)
    m.warn(
        m.ranks[0],
        "transport/net_socket.cc:485",
        f"NET/Socket : peer {m.ranks[-1].address}<41522> message truncated : "
        "receiving 524288 bytes instead of 65536. If you believe your socket "
        "network is in healthy state,           there may be a mismatch",
    )
    m.status(m.ranks[0], 5)
    m.raised(m.ranks[0])
    return Made(m.text(), ("DD601",), None, (bad,))


@fault
def switches(m: Maker) -> Made:
    """Left over, and nothing fails."""
    m.start()
    for one in m.ranks:
        m.info(one, "NCCL_IB_DISABLE set by environment to 1.")
    m.init()
    m.steps(2)
    return Made(m.text())


@fault
def efa(m: Maker) -> Made:
    """Libfabric on one host."""
    _begun(m)
    one = m.ranks[-1]
    m.warn(
        one,
        "nccl_net_ofi_sendrecv.c:123",
        "NET/OFI Request completed with error. RC: 113. Error: unreachable remote. "
        "Completed length: 0",
    )
    m.status(one, 2)
    m.raised(one)
    return Made(m.text(), ("DD605",), None, (one.host,))


def _early(m: Maker, n: int, source: str, text: str, status: int, *codes: str) -> Made:
    """One rank fails in initialisation, and the others see it go."""
    m.start()
    one = m.ranks[n]
    m.warn(one, source, text)
    m.status(one, status)
    m.raised(one, *_closed(m, one.rank))
    return Made(m.text(), codes, (one.rank,) if _ranked(m) else None, (one.host,))


def _late(m: Maker, n: int, source: str, text: str, status: int, *codes: str) -> Made:
    """One rank fails while it trains, and the others see it go."""
    _begun(m)
    one = m.ranks[n]
    m.warn(one, source, text)
    m.status(one, status)
    m.raised(one, *_closed(m, one.rank))
    m.end("Abort")
    return Made(m.text(), codes, None, (one.host,))


@fault
def cuda_calloc(m: Maker) -> Made:
    """Memory of the GPU, in other words."""
    return _early(
        m, -1, "include/alloc.h:99", "Failed to CUDA calloc 4194304 bytes", 1, "DD606"
    )


@fault
def uncorrectable(m: Maker) -> Made:
    """ECC."""
    return _late(
        m,
        1,
        "enqueue.cc:1",
        "Cuda failure 'uncorrectable ECC error encountered'",
        1,
        "DD606",
    )


@fault
def old_driver(m: Maker) -> Made:
    """CUDA of the driver is older."""
    return _early(
        m,
        1,
        "init.cc:1",
        "Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'",
        1,
        "DD606",
    )


@fault
def no_space_230(m: Maker) -> Made:
    """Shared memory, in the newest words."""
    return _early(
        m,
        0,
        "misc/shmutils.cc:87",
        "Error: failed to extend /dev/shm/nccl-q2PWwv to 33030532 bytes, error: No "
        "space left on device (28)",
        2,
        "DD603",
    )


@fault
def open_files(m: Maker) -> Made:
    """The limit of open files."""
    return _early(
        m,
        1,
        "misc/socket.cc:417",
        "Call to accept failed : Too many open files",
        2,
        "DD603",
        "DD605",
    )


@fault
def create_cq(m: Maker) -> Made:
    """Locked memory, in another call."""
    return _early(
        m,
        -1,
        "misc/ibvwrap.cc:1",
        "Call to ibv_create_cq failed with error Cannot allocate memory",
        2,
        "DD603",
        "DD605",
    )


@fault
def bad_address(m: Maker) -> Made:
    """No module for memory of the GPU."""
    return _early(
        m,
        -1,
        "misc/ibvwrap.cc:1",
        "Call to ibv_reg_mr_iova2 failed with error Bad address",
        2,
        "DD605",
        "DD606",
    )


@fault
def queue_pair(m: Maker) -> Made:
    """A queue pair that cannot connect."""
    return _early(
        m,
        -1,
        "misc/ibvwrap.cc:2",
        "Call to ibv_modify_qp failed with 110 Connection timed out, on dev "
        "mlx5_0:1, curr state INIT, next state RTR, local GID index 3, local GID "
        "::ffff:10.0.0.1, remote GID ::ffff:10.0.0.2",
        2,
        "DD605",
    )


@fault
def no_such_device(m: Maker) -> Made:
    """A GID index that is not valid."""
    return _early(
        m,
        -1,
        "misc/ibvwrap.cc:2",
        "Call to ibv_modify_qp failed with error No such device",
        2,
        "DD605",
    )


@fault
def fatal_event(m: Maker) -> Made:
    """The adapter is gone."""
    return _late(
        m,
        -1,
        "transport/net_ib.cc:1",
        "NET/IB : mlx5_2:1 async fatal event: local catastrophic error",
        2,
        "DD605",
    )


@fault
def poll_cq(m: Maker) -> Made:
    """The adapter is gone, in another call."""
    return _late(
        m, -1, "misc/ibvwrap.cc:1", "Call to ibv_poll_cq() returned -1", 2, "DD605"
    )


@fault
def local_protection(m: Maker) -> Made:
    """GPU Direct through an IOMMU."""
    return _late(
        m,
        -1,
        "transport/net_ib.cc:1",
        f"NET/IB : Got completion with {_status(m, 4)}",
        6,
        "DD605",
    )


@fault
def topology_file(m: Maker) -> Made:
    """A broken description."""
    return _early(
        m, 1, "graph/xml.cc:1", "Attribute arch of node cpu not found", 3, "DD601"
    )


@fault
def imex(m: Maker) -> Made:
    """Multi-node NVLink without its channel."""
    return _early(
        m,
        1,
        "mnnvl.cc:1",
        "MNNVL (cliqueSize 4) is available but not working on some system. Check "
        "the IMEX channel configuration (/dev/nvidia-caps-imex-channels)",
        1,
        "DD603",
        "DD606",
    )


@fault
def libfabric(m: Maker) -> Made:
    """EFA's address vector."""
    return _early(
        m,
        1,
        "nccl_ofi_net.c:1",
        "NET/OFI Couldn't open AV. RC: -22, ERROR: Invalid argument",
        2,
        "DD605",
    )


@fault
def misuse(m: Maker) -> Made:
    """A root that is none."""
    return _late(
        m,
        1,
        "misc/argcheck.cc:52",
        "Broadcast : invalid root 9 (root should be in the 0..3 range)",
        4,
        "DD608",
    )


@fault
def no_route(m: Maker) -> Made:
    """A firewall on one host: others do reach rank 0."""
    m.start()
    bad = m.ranks[-1].host
    for one in m.ranks:
        if one.host == bad:
            m.warn(
                one,
                "misc/socket.cc:2",
                f"socketPollConnect: Connect to {m.ranks[0].address}<45555> "
                "returned 113(No route to host) errno 115(Operation now in "
                "progress)",
            )
            m.status(one, 2)
            m.raised(one)
    return Made(m.text(), ("DD605", "DD607"), None, (bad,))


@fault
def docker_bridge(m: Maker) -> Made:
    """An address that is the same on all hosts is advertised."""
    m.network = "Socket"
    for one in m.ranks:
        one.address = "172.17.0.2"
    m.start()
    m.out = [(rank, line.replace("eth0:", "docker0:")) for rank, line in m.out]
    for one in m.ranks[1:]:
        m.warn(
            one,
            "misc/socket.cc:2",
            "socketStartConnect: Connect to 172.17.0.2<4555> failed : Connection "
            "timed out",
        )
        m.status(one, 2)
    m.raised(*m.ranks[1:])
    return Made(m.text(), ("DD602", "DD605"), None, ("docker0",))


@fault
def foreign(m: Maker) -> Made:
    """Somebody else's connection."""
    made = _early(
        m,
        0,
        "misc/socket.cc:2",
        "socketFinalizeAccept: wrong type 1 != 3",
        3,
        "DD607",
        "DD605",
    )
    made.ranks = None  # who connected is not known
    return made


@fault
def exchanged_sizes(m: Maker) -> Made:
    """Calls with other sizes, and lines of them."""
    _begun(m)
    bad = m.ranks[1]
    m.call(*(one for one in m.ranks if one is not bad), op="AllGather", count=640)
    m.call(bad, op="AllGather", count=320)
    m.warn(
        m.ranks[0],
        "transport/net_ib.cc:1",
        "NET/IB : collective mismatch error, local size 640, remote 320",
    )
    m.status(m.ranks[0], 5)
    m.raised(m.ranks[0])
    return Made(m.text(), ("DD608",), (1,))


@fault
def old_mismatch(m: Maker) -> Made:
    """What NCCL 2.4 to 2.7 notices itself."""
    m.start()
    m.init()
    m.warn(
        m.ranks[1],
        "enqueue.cc:1",
        "Mismatched collective detected, please check your collective calls at and "
        "around rank 1. You can use NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=COLL to "
        "see the collective logs",
    )
    m.status(m.ranks[1], 5)
    return Made(m.text(), ("DD608",), None, ())


@fault
def nvls_off(m: Maker) -> Made:
    """NVLS is not to be had, and nobody minds."""
    m.start()
    for one in m.ranks:
        m.info(
            one,
            "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : "
            "CUDA error 401 'the operation cannot be performed in the present "
            "state'. Proceeding without NVLS support.",
        )
    m.init()
    m.steps(3)
    return Made(m.text())


@fault
def host_fall_back(m: Maker) -> Made:
    """Harmless words of a container."""
    m.start()
    for one in m.ranks:
        m.info(
            one,
            "cuMem host allocations do not appear to be working; falling back to a "
            "/dev/shm/ based implementation. This could be due to the container "
            "runtime disabling NUMA support.",
        )
        m.warn(
            one,
            "misc/param.cc:1",
            "Could not find real path of /sys/class/net/eth0/device",
        )
    m.init()
    m.steps(3)
    return Made(m.text())


@fault
def plugins(m: Maker) -> Made:
    """Plugins that are not there."""
    for one in m.ranks:
        m.info(one, "NET/Plugin: Failed to find ncclCollNetPlugin_v8 symbol.")
        m.info(one, "TUNER/Plugin: Could not find: libnccl-tuner.so libnccl-net.so. ")
        m.info(one, "PROFILER/Plugin: Could not find: libnccl-profiler.so. ")
    _begun(m)
    m.end()
    return Made(m.text())


@fault
def warnings_only(m: Maker) -> Made:
    """NCCL_DEBUG=WARN: no rank is told."""
    m.say(f"NCCL version {m.version}+cuda12.4")
    one = m.ranks[2]
    m.warn(
        one, "enqueue.cc:1", "Cuda failure 'an illegal memory access was encountered'"
    )
    for other in m.ranks:
        if other is not one:
            m.warn(
                other,
                "misc/socket.cc:49",
                "socketProgress: Connection closed by remote peer "
                f"{one.host}.cluster.local<4000>",
            )
    return Made(m.text(), ("DD606",), None, (one.host,))


@fault
def killed_by_kernel(m: Maker) -> Made:
    """The kernel ends a process."""
    _begun(m)
    one = m.ranks[1]
    m.say(
        f"Nov 21 07:01:02 {one.host} kernel: Out of memory: Killed process "
        f"{one.pid} (python) total-vm:1kB"
    )
    m.raised(*_closed(m, 1))
    return Made(m.text(), ("DD603", "DD605"), (1,), (one.host,))


@fault
def last_error(m: Maker) -> Made:
    """The warning is lost, and PyTorch has it."""
    _begun(m)
    m.raised(m.ranks[1], status="unhandled cuda error")
    m.say("[rank1]: Last error:", 1)
    m.say("[rank1]: Cuda failure 'out of memory'", 1)
    m.raised(*_closed(m, 1))
    return Made(m.text(), ("DD606",), (1,))


@fault
def swapped(m: Maker) -> Made:
    """Two calls in another order."""
    _begun(m)
    bad = m.ranks[0]
    rest = m.ranks[1:]
    m.call(*rest, op="AllGather", count=5)
    m.call(*rest, op="ReduceScatter", count=6)
    m.call(bad, op="ReduceScatter", count=6)
    m.call(bad, op="AllGather", count=5)
    m.steps(2)
    return Made(m.text(), ("DD608",), (0,))


@fault
def group_absent(m: Maker) -> Made:
    """A smaller communicator that not all of its ranks begin."""
    m.start()
    m.init()
    m.steps(2)
    if not m.since(2, 18, 3):
        return Made(m.text())
    for n, one in enumerate(m.ranks[: m.size - 1]):
        m.info(
            one,
            f"comm 0x7e{n:010x} rank {n} nranks {m.size} cudaDev {one.device} "
            "nvmlDev 0 busId 7000 commId 0x77 - Init START",
        )
    m.watchdog(*m.ranks[:-1])
    return Made(m.text(), ("DD607", "DD609"), (m.size - 1,))


def _ranked(m: Maker) -> bool:
    """Whether a log without lines of a communicator tells ranks at all."""
    return m.launcher in {"srun", "padded", "mpi", "prterun", "horovod"}


def every(seed: int = 0) -> Iterator[tuple[str, Made]]:
    """Each fault with each version, and the launchers in turn."""
    n = seed
    for name, make in FAULTS.items():
        for version in VERSIONS:
            n += 1
            launcher = LAUNCHERS[n % len(LAUNCHERS)]
            hosts, per_host = ((2, 2), (3, 2), (4, 2), (2, 4))[n % 4]
            maker = Maker(version, launcher, hosts, per_host, n)
            yield f"{name} {version} {launcher} {hosts}x{per_host}", make(maker)


def is_right(made: Made, report: dict[str, object]) -> str:
    """What is wrong with a report of distdoctor; empty: nothing.

    Args:
        made: The log and its answer.
        report: As `--format json` gives it.
    """
    findings: list[dict[str, object]] = report["findings"]  # type: ignore[assignment]
    errors = [one for one in findings if one["severity"] == "error"]
    if not made.codes:
        return f"accused: {errors[0]['summary']}" if errors else ""
    fitting = [one for one in errors if one["code"] in made.codes]
    if not fitting:
        return f"not found; told: {[(one['code'], one['summary']) for one in findings]}"
    for one in fitting:
        named = made.ranks is None or one["ranks"] == list(made.ranks)
        if named and all(host in str(one) for host in made.hosts):
            return ""
    return f"wrong ranks: {fitting[0]['ranks']}: {fitting[0]['summary']}"


def main() -> None:
    """Judge all of them in this process, and print what is wrong."""
    import io
    import json

    from distdoctor.judging import judge_run
    from distdoctor.postmortem.evidence_run import manifest_of, run_of
    from distdoctor.postmortem.job_evidence import Evidence
    from distdoctor.postmortem.nccl_logs.nccl_reader import read_input
    from distdoctor.report import json as json_report

    good = total = accused = 0
    for name, made in every():
        evidence = Evidence()
        read_input(io.BytesIO(made.text.encode()), evidence)
        judged = judge_run(run_of(evidence), manifest_of(evidence, ["-"], ".", "nccl"))
        report = json.loads(json_report.render(judged.report, judged.run))
        wrong = is_right(made, report)
        total += 1
        good += not wrong
        accused += wrong.startswith("accused")
        if wrong:
            print(f"{name}: {wrong[:300]}")
    print(f"right {good}/{total}, healthy accused {accused}")


if __name__ == "__main__":
    main()
