"""The communication operations of torch, and who waits for whom in each.

The position of an operation in `OPERATIONS` is its code in the journal: new ones are
added at the end and none is ever removed.

Source: the operators of the `c10d` library that take a process group
(torch 2.13, torch/csrc/distributed/c10d/Ops.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b


class Waits(StrEnum):
    """Whom a rank inside an operation waits for."""

    ALL = "all"  # every member of the group
    ROOT = "root"  # all but the root need the root
    AT_ROOT = "at root"  # the root needs every member
    SENDER = "sender"  # its peer
    ANY_SENDER = "any sender"  # one of the members
    RECEIVER = "receiver"  # its peer, unless the backend buffers
    SETTER = "setter"  # any rank that sets the key in the store
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Operation:
    """One communication operation."""

    c10d: str  # name of the operator, e.g. "allreduce_"; "": a function of Python
    name: str  # name of the function users call, e.g. "all_reduce"
    waits: Waits
    payload: bool = True  # False: its tensor argument only picks the device
    sizes_agree: bool = True  # the numbers of elements are the same on all ranks

    @property
    def is_point_to_point(self) -> bool:
        """Whether it joins two ranks instead of a whole group."""
        return self.waits in {Waits.SENDER, Waits.ANY_SENDER, Waits.RECEIVER}

    @property
    def is_rooted(self) -> bool:
        """Whether one rank of the group plays another part than the rest."""
        return self.waits in {Waits.ROOT, Waits.AT_ROOT}

    @property
    def sets_up(self) -> bool:
        """Whether it meets its peers through the store, before or beside a backend."""
        return not self.c10d

    @property
    def is_collective(self) -> bool:
        """Whether the n-th calls of all members of a group are one operation."""
        return not self.is_point_to_point and self.waits not in {
            Waits.SETTER,
            Waits.NOBODY,
        }


OPERATIONS = (
    Operation("allreduce_", "all_reduce", Waits.ALL),
    Operation("broadcast_", "broadcast", Waits.ROOT),
    Operation("allgather_", "all_gather", Waits.ALL),
    Operation("_allgather_base_", "all_gather_into_tensor", Waits.ALL),
    Operation("reduce_", "reduce", Waits.AT_ROOT),
    Operation("gather_", "gather", Waits.AT_ROOT),
    Operation("scatter_", "scatter", Waits.ROOT),
    Operation("reduce_scatter_", "reduce_scatter", Waits.ALL),
    Operation("_reduce_scatter_base_", "reduce_scatter_tensor", Waits.ALL),
    Operation("alltoall_", "all_to_all", Waits.ALL, sizes_agree=False),
    Operation("alltoall_base_", "all_to_all_single", Waits.ALL, sizes_agree=False),
    Operation("barrier", "barrier", Waits.ALL, payload=False),
    Operation("monitored_barrier_", "monitored_barrier", Waits.ALL, payload=False),
    Operation("send", "send", Waits.RECEIVER, sizes_agree=False),
    Operation("recv_", "recv", Waits.SENDER, sizes_agree=False),
    Operation("recv_any_source_", "recv_any", Waits.ANY_SENDER, sizes_agree=False),
    Operation("allreduce_coalesced_", "all_reduce_coalesced", Waits.ALL),
    Operation("allgather_coalesced_", "all_gather_coalesced", Waits.ALL),
    Operation(
        "allgather_into_tensor_coalesced_",
        "all_gather_into_tensor_coalesced",
        Waits.ALL,
    ),
    Operation(
        "reduce_scatter_tensor_coalesced_", "reduce_scatter_tensor_coalesced", Waits.ALL
    ),
    Operation("", "init_process_group", Waits.ALL, payload=False),
    Operation("", "new_group", Waits.ALL, payload=False),
    Operation("", "store_wait", Waits.SETTER, payload=False),
    Operation("", "store_set", Waits.NOBODY, payload=False),
    # Of Horovod: a rank that has no more data; it ends when all have called it.
    Operation("horovod.join", "join", Waits.ALL, payload=False),
    Operation("", "hvd_init", Waits.ALL, payload=False),
    # `ray.train.report`, and all that meets at the same barrier of Ray Train.
    Operation("ray.report", "ray_report", Waits.ALL, payload=False),
)

CODE_OF = {operation.name: code for code, operation in enumerate(OPERATIONS)}
"""Code of each operation by the name users call."""

REDUCE_OPS = (
    *("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum"),
    *("unused", "adasum"),
)
"""Reduce ops by the number torch gives them (`c10d::ReduceOp::RedOpType`).

The last one is Horovod's alone.
"""

ASYNCHRONOUS, FAILING, BATCHED, UNUSED, IN_BACKWARD = 1, 2, 4, 64, 128
"""Bits of a call's flags; those between are the layer's (see model.layers).

UNUSED: a line of the user's own was given its handle. In a journal that is all it
means; in a run it is only set if nothing was done with the handle. IN_BACKWARD: made
by a thread of autograd, or from the thread that waits for it, during a backward pass.
"""

NO_REDUCE_OP, UNKNOWN_REDUCE_OP = 255, 254
"""Codes for an operation without a reduce op, and for one that could not be read."""


NOT_SEEN = 0
"""In place of a signature: the call was made, and a probe failed to read what it is."""


SETUP_CODES = tuple(n for n, operation in enumerate(OPERATIONS) if operation.sets_up)
"""Codes of what is no communication itself but prepares it."""


def signature(
    op: int,
    reduce_op: int,
    root: int,
    dtypes: tuple[str, ...],
    numels: tuple[int, ...],
    names: tuple[str, ...] = (),
) -> int:
    """64 bits that are equal on two ranks if and only if their calls can meet.

    Shapes do not count, only numbers of elements: backends move flat buffers (measured:
    torch 2.13, gloo: `all_reduce` of [4] and of [2, 2] gives the right sum). Whether a
    call is asynchronous does not count either: that is the caller's own affair. Whose a
    group of one rank is does not count: nobody meets in it, and ranks may each make one
    of their own in the same step (measured: torch 2.13, gloo; torch's own tests do it,
    torch/testing/_internal/common_fsdp.py, `MixtureOfExperts`).

    Args:
        op: Position in `OPERATIONS`.
        reduce_op: Position in `REDUCE_OPS`, or one of the two codes above.
        root: Group rank of the root; -1 where there is none.
        dtypes: One per tensor, e.g. "float32".
        numels: Elements of each tensor; ignored where sizes need not agree.
        names: What a call is matched by beside its group: the ranks of a new group, or
            the name of Horovod's tensor.

    Returns:
        A signed integer, the same in all processes, and never 0.
    """
    sizes = numels if OPERATIONS[op].sizes_agree else ()
    text = f"{op}|{reduce_op}|{root}|{','.join(dtypes)}|{','.join(map(str, sizes))}"
    if OPERATIONS[op].name == "new_group" and len(names) == 1:
        text += "|alone"
    elif OPERATIONS[op].name == "new_group" or (names and OPERATIONS[op].c10d):
        text += "|" + ",".join(names)
    known = text.encode(errors="surrogatepass")  # a dump may hold any text
    return int.from_bytes(blake2b(known, digest_size=8).digest(), "little") or 1
