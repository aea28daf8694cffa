"""What messages of an error mean: told by short fragments of their text.

The kinds and their order of suspicion are those of `model.observations.nccl`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from distdoctor.model.observations.nccl import ComplaintKind


class Meaning(NamedTuple):
    """What a message says.

    Attributes:
        kind: Of the error.
        peer: An address or a host that it names; empty: none.
        device: A device of the network that it names; empty: none.
        ranks: Ranks that it names.
        numbers: Figures that it gives.
    """

    kind: ComplaintKind
    peer: str = ""
    device: str = ""
    ranks: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()


_PEER = r"(?<![\w.:%-])(?P<peer>[\w.:%-]{0,255}[\w%])<\d+>"

_TABLE: tuple[tuple[str, ComplaintKind], ...] = (
    # Harmless, whatever it looks like.
    (
        r"libibverbs|Could not find real path|libnccl-net|ncclCollNetPlugin",
        ComplaintKind.NONE,
    ),
    (r"falling back to a /dev/shm", ComplaintKind.NONE),
    (r"Proceeding without NVLS support", ComplaintKind.NVLS_OFF),
    (
        r"TUNER/Plugin|PROFILER/Plugin|NET/Plugin|dlerror|[Cc]ould not find: lib",
        ComplaintKind.NONE,
    ),
    (
        r"port active|client reregistration|GID table change|LID change",
        ComplaintKind.NONE,
    ),
    (r"SM change|P_Key|pkey change", ComplaintKind.NONE),
    (r"driver shutting down|context is destroyed", ComplaintKind.ECHO),
    # What a single process can get wrong by itself.
    (
        r"Failed to bind NVLink SHARP|transport/nvls|NVLS.*CUDA error",
        ComplaintKind.NVLS,
    ),
    (r"MNNVL.*(not working|IMEX)|IMEX channel", ComplaintKind.IMEX),
    (r"out of memory|Failed to CUDA (?:host )?[cm]alloc", ComplaintKind.GPU_MEMORY),
    (
        r"uncorrectable|ECC|fallen off|launch failure|hardware|NVLink error",
        ComplaintKind.GPU_FAULT,
    ),
    (
        r"peer access|CUDA IPC handle|failed to peer with|cudaIpcGetMemHandle",
        ComplaintKind.PEER_ACCESS,
    ),
    (r"P2P is disabled between NVLINK connected", ComplaintKind.NVLINK_OFF),
    (
        r"P2P is disabled between connected GPUs|Could not enable P2P",
        ComplaintKind.P2P_OFF,
    ),
    (
        r"Cuda failure|CUDA (?:driver )?error|HIP failure|cudaError|CUDART error",
        ComplaintKind.CUDA,
    ),
    (
        r"attaching to shared memory segment|shmOpen.*No such file",
        ComplaintKind.SHM_ATTACH,
    ),
    (
        r"posix_fallocate|shared memory segment|/dev/shm|No space left on device"
        r"|shm_open|ftruncate|shmOpen",
        ComplaintKind.SHM,
    ),
    (
        r"ibv_(?:reg_(?:dma_?buf_)?mr\w*|create_cq|create_qp|alloc_pd|open_device).*"
        r"Cannot allocate memory",
        ComplaintKind.LOCKED_MEMORY,
    ),
    (r"ibv_reg_\w+.*Bad address", ComplaintKind.PEER_MEMORY),
    (r"[Tt]oo many open files", ComplaintKind.FILES),
    (r"pthread_create|Resource temporarily unavailable", ComplaintKind.THREADS),
    (
        r"Cannot allocate memory|Failed to m(?:alloc|map)|malloc of",
        ComplaintKind.HOST_MEMORY,
    ),
    (
        r"no socket interface found|No usable listening interface",
        ComplaintKind.INTERFACE,
    ),
    (
        r"NET/Socket : no interface found|no device found (?:after|match)",
        ComplaintKind.INTERFACE,
    ),
    (r"XML|topo file|Attribute \w+ of node|Could not parse", ComplaintKind.TOPOLOGY),
    # Settings and identities.
    (r"Duplicate GPU detected|using the same GPU", ComplaintKind.SAME_GPU),
    (r"[Mm]ismatched NCCL version|version mismatch", ComplaintKind.VERSIONS),
    (r"already checked in", ComplaintKind.TWICE),
    (r"mismatch in (?:rank count|info) from procs", ComplaintKind.WORLD_SIZE),
    (
        r"wrong (?:type|magic)|valid magic|invalid magic|Invalid magic",
        ComplaintKind.FOREIGN,
    ),
    (r"mismatched physical devices|incompatible devices", ComplaintKind.DEVICES),
    (
        r"(?:Net|CollNet|P2P|NVLS)\b.*mismatch|different (?:net|transport)s?",
        ComplaintKind.DEVICES,
    ),
    # Sockets never have it: of them it is said on each machine without InfiniBand.
    (
        r"(?<!NET/Socket : )GPU Direct RDMA Disabled for HCA|no module",
        ComplaintKind.GDR_OFF,
    ),
    (r"iommu=pt", ComplaintKind.IOMMU),
    # The network.
    (r"async fatal event|port error|device fatal|catastrophic", ComplaintKind.PORT),
    (
        r"Got async (?:error )?event.*(?:QP|CQ|SRQ|path|communication)",
        ComplaintKind.PORT,
    ),
    (r"Got completion", ComplaintKind.COMPLETION),
    (r"ibv_modify_qp", ComplaintKind.QUEUE_PAIR),
    (
        r"ibv_poll_cq|Unable to query port|ibv_\w+\(?\)? (?:failed|returned)",
        ComplaintKind.ADAPTER,
    ),
    (r"NET/OFI|libfabric|EFA|nccl_ofi|nccl_net_ofi", ComplaintKind.FABRIC),
    # Calls that do not match.
    (
        r"message truncated|Message truncated|collective mismatch error",
        ComplaintKind.SIZES,
    ),
    (r"Mismatched collective|collective mismatch around", ComplaintKind.MISMATCH),
    # What is seen of a peer's death, and of an abort; a call on what was aborted.
    (r"should be in the 0\.\.-1 range", ComplaintKind.ECHO),
    (
        r"Connection closed by remote|Connection reset|Broken pipe|recv failed while"
        r"|[Cc]onnection closed by localRank|Failed to execute operation|retcode 6"
        r"|[Ss]ocket progress error|connection abort|remote process",
        ComplaintKind.CLOSED,
    ),
    (
        r"[Cc]onnect(?:ion)?\b.*(?:refused|timed out|No route|unreachable|failed"
        r"|exceeded|returned)|exceeded (?:error )?retr|No route to host",
        ComplaintKind.CONNECT,
    ),
    # How the program calls NCCL.
    (
        r"invalid (?:datatype|op|reduction|root|argument|count)"
        r"|is not a (?:device )?pointer"
        r"|already been destroyed|before the previous operation|Invalid (?:rank|usage)",
        ComplaintKind.MISUSE,
    ),
)

_KINDS = tuple((re.compile(pattern), kind) for pattern, kind in _TABLE)
_PEERS = re.compile(_PEER)
_HCA = re.compile(
    r"hca (?P<a>\S+)|NET/IB ?: (?P<b>[\w.-]+:\d+) (?:Got|async)"
    r"|on dev (?P<c>[\w.-]+):\d+"
)
_STATUS = re.compile(
    r"status=(?:\w+\()?(\d{1,9})|completion(?: from peer \S+)? with error (\d{1,9})"
)
_RANKS = re.compile(r"\brank (\d{1,6})\b")
_WORLD = re.compile(
    r"procs,? (?:nranks )?(\d{1,9})(?: :| vs) (\d{1,9})|rank \d+ of (\d{1,9}) ranks"
)


def meaning(text: str, source: str = "") -> Meaning:
    """What a message of an error says.

    Args:
        text: The message.
        source: The file of NCCL that printed it.

    Returns:
        Its meaning; the kind is `OTHER` where nothing is known of such a message.
    """
    reported = f"{text} {source.rpartition(':')[0]}"
    kind = next(
        (kind for one, kind in _KINDS if one.search(reported)), ComplaintKind.OTHER
    )
    peer, hca = _PEERS.search(text), _HCA.search(text)
    numbers = [int(n) for found in _WORLD.findall(text) for n in found if n]
    if kind is ComplaintKind.COMPLETION:
        numbers = [int(a or b) for a, b in _STATUS.findall(text)[:1]]
    ranks: tuple[int, ...] = ()
    if kind in {
        ComplaintKind.SAME_GPU,
        ComplaintKind.TWICE,
        ComplaintKind.VERSIONS,
        ComplaintKind.CLOSED,
        ComplaintKind.MISMATCH,
    }:
        ranks = tuple(int(n) for n in _RANKS.findall(text)[:8])
    return Meaning(
        kind,
        peer.group("peer") if peer else "",
        next(filter(None, hca.groups()), "") if hca else "",
        ranks,
        tuple(numbers[:4]),
    )
