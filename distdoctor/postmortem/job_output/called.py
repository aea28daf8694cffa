"""Calls that exceptions tell of: unequal collectives, joining, keys of the store."""

from __future__ import annotations

import re

from distdoctor.model.events import SETUP, STORE, Call, Place, State, Tensor
from distdoctor.model.operations import CODE_OF, OPERATIONS
from distdoctor.postmortem.job_output.printed_tracebacks import PrintedException

_FINGERPRINT = re.compile(
    r"Rank (?P<rank>\d{1,6}) is running collective: CollectiveFingerPrint\("
    r"SequenceNumber=(?P<number>\d{1,15}),? ?OpType=(?P<op>\w{1,40})"
    r"(?:, TensorShape=\[(?P<shape>[\d, ]{0,200})\])?"
    r"(?:, TensorDtypes=(?P<dtype>\w{1,30}))?"
)
MISMATCH = "Detected mismatch between collectives on ranks"

_CLIENTS = re.compile(
    r"Timed out after \d{1,9} seconds waiting for clients\. "
    r"(?P<joined>\d{1,6})/(?P<size>\d{1,6}) clients joined"
)
_CONNECTING = re.compile(
    r"client socket has (?:timed out after \d+ms|failed to connect).{0,80}?"
    r"\(?\[?(?P<host>[\w.:-]{1,255})\]?[,:] ?(?P<port>\d{1,5})\)?"
)
_KEYS = re.compile(r"wait timeout after \d{1,12}ms, keys: (?P<keys>.{1,1000})")
_MESH = re.compile(r"/default_pg/0//\w+//\d+/(?P<rank>\d{1,6})$")
_IN_USE = re.compile(
    r"failed to listen on any local network address.{0,40}port: (?P<port>\d{1,5})"
    r"|EADDRINUSE|[Aa]ddress already in use"
)
_OWN_PREFIX = re.compile(r"^/?(?:default_pg/\d+//)?")
_WAITED = re.compile(r"(?:Timed out waiting|monitoredBarrier in) (?P<ms>\d{1,12}) ?ms")
_ABSENT = re.compile(
    r"Ranks? (?P<ranks>[\d, ]{1,200}?) failed to pass monitoredBarrier"
)

_HOROVODS = re.compile(
    r"Horovod has been shut down|Mismatched (?:data types|reduction operation"
    r"|(?:MPI )?operations|prescale and/or postscale factors"
    r"|\w{1,30} (?:tensor shapes|root ranks)): "
)

_JOINING = {"init_process_group", "_create_c10d_store"}

_USERS_NAMES = {
    "_ALLGATHER_BASE": "all_gather_into_tensor",
    "_REDUCE_SCATTER_BASE": "reduce_scatter_tensor",
    "ALLTOALL_BASE": "all_to_all_single",
    "RECVANYSOURCE": "recv_any",
    "COALESCED": "all_reduce_coalesced",
}
_CPP_NAMES = {
    operation.c10d.strip("_").upper(): operation.name
    for operation in OPERATIONS
    if operation.c10d
}
_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "Long": "int64",
    "BFloat16": "bfloat16",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
}


def users_name(op: str) -> str:
    """The function that users call, by the name that torch's C++ has for it.

    Args:
        op: Such as "ALLREDUCE".

    Returns:
        Such as "all_reduce"; small letters of the same where it is not known.
    """
    return _USERS_NAMES.get(op) or _CPP_NAMES.get(op.strip("_")) or op.lower()


def called_function(raised: PrintedException) -> str:
    """The communication function that an exception came out of; empty: not known.

    Args:
        raised: The exception.
    """
    for function in raised.functions:
        if function.rpartition(".")[2] in CODE_OF:
            return function.rpartition(".")[2]
    return ""


def mismatched(raised: PrintedException) -> dict[int, Call]:
    """The collectives that ranks were about to make when torch found them not to match.

    Args:
        raised: The exception, as TORCH_DISTRIBUTED_DEBUG=DETAIL raises it on any rank.

    Returns:
        By rank, the call, not issued; its line is known of the one that raised.
    """
    calls: dict[int, Call] = {}
    if MISMATCH not in raised.message:
        return calls
    for found in _FINGERPRINT.finditer(raised.message):
        op, rank = users_name(found["op"]), int(found["rank"])
        if rank in calls or op not in CODE_OF:
            continue
        tensors: tuple[Tensor, ...] = ()
        if found["shape"] is not None:
            shape = tuple(int(n) for n in found["shape"].replace(",", " ").split())
            dtype = _DTYPES.get(found["dtype"] or "", (found["dtype"] or "").lower())
            tensors = (Tensor(shape, dtype or "float32"),)
        calls[rank] = Call(
            rank=rank,
            op=op,
            ordinal=int(found["number"]) + 1,
            tensors=tensors,
            state=State.REFUSED,
            place=raised.place,
        )
    return calls


def is_of_nccl(raised: PrintedException) -> bool:
    """Whether it is NCCL's: whose fault it is stands in NCCL's own log.

    Args:
        raised: The exception.
    """
    return raised.error == "DistBackendError" or "NCCL error in" in raised.message


def is_of_horovod(raised: PrintedException) -> bool:
    """Whether Horovod raised it on all ranks: whose fault it is, it does not say.

    Args:
        raised: The exception.
    """
    # What it is made of may be all that was printed whole.
    return raised.error == "HorovodInternalError" or bool(
        raised.error == "RuntimeError" and _HOROVODS.match(raised.message)
    )


def is_joining(raised: PrintedException) -> bool:
    """Whether it came out of `init_process_group`, or what that calls for the store.

    Args:
        raised: The exception.
    """
    return not _JOINING.isdisjoint(raised.functions)


def join_given_up(rank: int, address: str, place: Place | None) -> Call:
    """The call of a rank that gave up to join the job.

    Args:
        rank: Who.
        address: Where it looked for the others; empty: not known.
        place: The line.
    """
    return Call(
        rank=rank,
        op="init_process_group",
        group=SETUP,
        names=(address,) if address else (),
        state=State.RAISED,
        place=place,
    )


def awaited_keys(raised: PrintedException, rank: int) -> Call | None:
    """The call by which a rank waited in vain for keys of the store.

    Args:
        raised: The exception.
        rank: Who raised it.

    Returns:
        The call; None: the exception is another one.
    """
    found = _KEYS.search(raised.message)
    if found is None or is_joining(raised):
        return None
    keys = [_OWN_PREFIX.sub("", key.strip()) for key in found["keys"].split(",")]
    return Call(
        rank=rank,
        op="store_wait",
        group=STORE,
        names=tuple(keys[:50]),
        state=State.RAISED,
        place=raised.place,
    )


def world_size_waited_for(text: str) -> int:
    """For how many ranks the store of rank 0 waited; 0: it does not say.

    Args:
        text: The message of an exception.
    """
    found = _CLIENTS.search(text)
    return int(found["size"]) if found else 0


def is_of_server(text: str) -> bool:
    """Whether it is the rank with the store that failed so, which is rank 0.

    Args:
        text: The message of an exception out of `init_process_group`.
    """
    return bool(_CLIENTS.search(text) or _IN_USE.search(text))


def is_waiting(text: str) -> bool:
    """Whether a rank gave up to join because others did not come to the store.

    Args:
        text: The message of an exception out of `init_process_group`.
    """
    return any(one.search(text) for one in (_CLIENTS, _CONNECTING, _KEYS))


def address_tried(text: str) -> str:
    """Where a client of the store tried to connect; empty: it does not say.

    Args:
        text: The message of an exception.
    """
    found = _CONNECTING.search(text)
    return f"{found['host']}:{found['port']}" if found else ""


def missing_in_mesh(text: str) -> int:
    """The rank whose address was waited for while gloo connected; -1: none.

    Args:
        text: The message of an exception.
    """
    found = _KEYS.search(text)
    mesh = _MESH.search(found["keys"].strip()) if found else None
    return int(mesh["rank"]) if mesh else -1


def port_in_use(text: str) -> str:
    """The port that was in use, as an address; empty: none was.

    Args:
        text: The message of an exception.
    """
    found = _IN_USE.search(text)
    if found is None:
        return ""
    return f"port {found['port']}" if found["port"] else "its port"


def seconds_waited(text: str) -> float:
    """For how long gloo waited; 0: it does not say.

    Args:
        text: The message of an exception.
    """
    found = _WAITED.search(text)
    return int(found["ms"]) / 1000 if found else 0.0


def absent_at_barrier(text: str) -> tuple[int, ...]:
    """Whom a monitored barrier names as not having come.

    Args:
        text: The message of an exception, or a line.
    """
    found = _ABSENT.search(text)
    if found is None:
        return ()
    return tuple(int(n) for n in found["ranks"].replace(",", " ").split())
