"""What NCCL's debug log tells: communicators, settings, calls, errors."""

from __future__ import annotations

from enum import StrEnum

from distdoctor.model.events import Observation
from distdoctor.model.observations.environment import Configured
from distdoctor.model.values import value


class ComplaintKind(StrEnum):
    """What a message of an error is about; the values are those of records."""

    NONE = "harmless"
    NVLS_OFF = "nvls off"
    NVLS = "nvls"
    IMEX = "imex"
    GPU_MEMORY = "gpu memory"
    GPU_FAULT = "gpu fault"
    PEER_ACCESS = "peer access"
    NVLINK_OFF = "nvlink off"
    P2P_OFF = "p2p off"
    CUDA = "cuda"
    XID = "xid"
    SHM = "shared memory"
    SHM_ATTACH = "shared memory of another"
    LOCKED_MEMORY = "locked memory"
    PEER_MEMORY = "peer memory"
    FILES = "open files"
    THREADS = "threads"
    HOST_MEMORY = "host memory"
    KILLED = "killed"
    INTERFACE = "interface"
    TOPOLOGY = "topology"
    SAME_GPU = "same gpu"
    VERSIONS = "versions"
    TWICE = "twice"
    WORLD_SIZE = "world size"
    FOREIGN = "foreign"
    DEVICES = "devices"
    PORT = "port"
    COMPLETION = "completion"
    QUEUE_PAIR = "queue pair"
    ADAPTER = "adapter"
    FABRIC = "fabric"
    CONNECT = "connect"
    SIZES = "sizes"
    MISMATCH = "mismatch"
    MISUSE = "misuse"
    OTHER = "other"
    CLOSED = "closed"
    ECHO = "echo"
    GDR_OFF = "gpu direct off"
    IOMMU = "iommu"
    EXCEPTION = "exception"
    WAITING = "waiting"


@value(frozen=True, slots=True, kw_only=True)
class NcclProcess(Configured):
    """A process printed lines of NCCL; of its settings, it told those that it used."""

    pid: int = 0
    version: str = ""
    driver: int = 0  # CUDA version that the driver has, 1000 * major + 10 * minor
    network: str = ""  # "IB", "Socket" or a plugin's name
    interface: str = ""  # by which it meets the others
    sockets: str = ""  # interfaces that its sockets use
    adapters: str = ""  # devices of RDMA that it found
    no_adapter: bool = False  # it said that it found none
    traits: tuple[str, ...] = ()  # "what=how": forms of lines, by which versions differ
    inside: tuple[str, ...] = ()  # transports to ranks of its host, each once
    between: tuple[str, ...] = ()  # transports to other hosts
    nodes: int = 0  # that NCCL counts; 0: it did not say
    init_s: float = 0.0  # that the longest initialisation took; 0: not told
    waited_s: float = 0.0  # of these, for others
    torn: bool = False  # some of its lines were cut
    calls: int = 0  # that the log has of it


@value(frozen=True, slots=True, kw_only=True)
class Communicator(Observation):
    """The rank took part in a communicator of NCCL, or was about to."""

    comm: str = ""  # which one: the same for all its ranks
    size: int = 0
    member: int = -1  # its rank in it
    host: str = ""
    device: int = -1
    bus: str = ""  # of the GPU, in hexadecimal
    waited: bool = False  # the log goes on for long after it began
    complete: bool = False
    destroyed: bool = False
    aborted: bool = False


@value(frozen=True, slots=True, kw_only=True)
class NcclComplaint(Observation):
    """A message of an error."""

    kind: str = ""  # a `ComplaintKind`
    host: str = ""
    text: str = ""
    peer: str = ""  # the host that it names, or an address of which no host is known
    device: str = ""  # of the network
    named: tuple[int, ...] = ()  # ranks that it names
    numbers: tuple[int, ...] = ()  # the status of a completion, sizes of the world
    status: int = 0  # the result that it led to, as NCCL counts; 0: nothing is seen
    order: int = 0  # among all of the job, as far as anybody knows
    mild: bool = False  # told as information, not as a warning
    harmless: bool = False  # the rank, or all of the job, went on behind it


@value(frozen=True, slots=True, kw_only=True)
class LoggedCalls(Observation):
    """Calls on a communicator, around the first that not all its ranks made alike."""

    comm: str = ""
    count: int = 0  # that the log has of the rank
    start: int = 0  # ordinal of the first of `calls`, from 1
    calls: tuple[str, ...] = ()  # "?": torn, it could be any
    torn: bool = False  # lines of the process were cut


@value(frozen=True, slots=True, kw_only=True)
class LoggedMessage(Observation):
    """A send of the rank, and the receive of its peer that is to meet it, differ."""

    comm: str = ""
    peer: int = -1  # the receiver's rank in the communicator
    number: int = 0  # of the send among those from the rank to the peer, from 1
    sent: str = ""
    received: str = ""
    usual: str = ""  # of the messages before it, if all were alike


@value(frozen=True, slots=True, kw_only=True)
class SharedGpu(Observation):
    """The rank was refused what stands in for NCCL, since another was on its GPU first.

    The place is the line that first put something on a GPU, in this process.
    """

    other: int = -1  # the rank that was first
    device: str = ""  # such as "cuda:0"


KINDS = (
    *(NcclProcess, Communicator, NcclComplaint, LoggedCalls, LoggedMessage),
    SharedGpu,
)
