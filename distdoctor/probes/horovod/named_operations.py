"""Records Horovod's operations, of any framework, in the rank's journal.

Horovod matches by name: `allreduce(x, name="loss")` meets that of the other ranks
whenever they make it. So a call tells its name, and how often the name was used. A call
without a name is called by the number of its handle, which counts all of a process's
calls: one call more on one rank shifts the names of all later ones.

Source: Horovod 0.28.1, torch/mpi_ops_v2.cc and torch/handle_manager.cc (names and
handles), common/controller.cc (what is compared), and measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from distdoctor.journal.format import RecordKind
from distdoctor.journal.packed_texts import OFTEN, group_text
from distdoctor.model.named_calls import BY_NAME, NameCounter
from distdoctor.model.operations import (
    CODE_OF,
    NO_REDUCE_OP,
    NOT_SEEN,
    REDUCE_OPS,
    signature,
)
from distdoctor.probes.recorder import RECORDER

_ENTER, _RETURN = int(RecordKind.ENTER), int(RecordKind.RETURN)
_WAIT, _WOKE, _WAIT_RAISE = (
    int(RecordKind.WAIT),
    int(RecordKind.WOKE),
    int(RecordKind.WAIT_RAISE),
)

FAMILIES = {
    "allreduce": "all_reduce",
    "grouped_allreduce": "all_reduce_coalesced",
    "allgather": "all_gather",
    "grouped_allgather": "all_gather_coalesced",
    "broadcast": "broadcast",
    "alltoall": "all_to_all_single",
    "reducescatter": "reduce_scatter",
    "grouped_reducescatter": "reduce_scatter_tensor_coalesced",
    "barrier": "barrier",
    "join": "join",
}
"""The operations by Horovod's names, and what they are called in a run."""

REDUCTIONS = {0: "avg", 1: "sum", 2: "adasum", 3: "min", 4: "max", 5: "product"}
"""Horovod's numbers of reduce ops. Source: common/common.h (`ReduceOp`)."""

REDUCTION_CODES = {code: REDUCE_OPS.index(name) for code, name in REDUCTIONS.items()}
"""Positions in `REDUCE_OPS`, by Horovod's numbers."""

_OWN_SIZES = {"allgather", "grouped_allgather", "alltoall"}
"""Families in which ranks may give tensors of different first dimensions."""

_MOST_NAMES = 65_536
_MOST_HANDLES = 65_536
_LONGEST_NAME = 200


class Operation(NamedTuple):
    """What a call asks Horovod for.

    Attributes:
        family: A key of `FAMILIES`.
        name: The user's name of the tensor; "" if there is none.
        tensors: Dtype and shape of each tensor, e.g. ("float32", (3, 4)).
        reduce_op: Horovod's number; -1: none.
        root: Global rank of the root; -1: none.
        splits: What each rank of the process set gets, in rows; None: none are given.
        scales: Factors before and after the reduction.
        process_set: Horovod's number; 0 is the set of all ranks.
    """

    family: str
    name: str
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    reduce_op: int = -1
    root: int = -1
    splits: tuple[int, ...] | None = None
    scales: tuple[float, float] = (1.0, 1.0)
    process_set: int = 0


class _Pending(NamedTuple):
    call: int
    ordinal: int
    group: int


class NamedOperations:
    """The operations of this process, as Horovod's core is asked for them.

    Args:
        members: Gives the global ranks of a process set by its number.

    Attributes:
        met: How many operations of the set of all ranks were submitted.
    """

    def __init__(self, members: Callable[[int], tuple[int, ...]]) -> None:
        self._members = members
        self.reset()

    def reset(self) -> None:
        """Forget all that belongs to a job: the process begins or joins another one."""
        self._pending: dict[int, _Pending] = {}
        self._counter = NameCounter()
        self._groups: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._described: dict[Operation, tuple[int, int]] = {}
        self.met = 0

    def submitted(
        self,
        handle: int,
        operation: Operation,
        site: tuple[str, int],
        *,
        thread: int = 0,
        flags: int = 0,
    ) -> None:
        """Record an operation that Horovod has just taken; it never waits there.

        Args:
            handle: Horovod's number of the call.
            operation: What was asked for.
            site: The lines of the user's that led to it, as `layered_way` gives them,
                and the layer's bits.
            thread: The thread that makes the call; 0: this one.
            flags: Further bits; see `model.operations`.
        """
        writer = RECORDER.writer
        if writer is None or RECORDER.blind:
            return
        group, members = self._group(operation.process_set)
        if len(members) < 2:
            return
        described = self._described.get(operation)
        if described is None:
            described = self._describe(operation)
        number, spec = described
        code = CODE_OF[FAMILIES[operation.family]]
        reduce_op = REDUCTION_CODES.get(operation.reduce_op, NO_REDUCE_OP)
        peer = -1
        if operation.root >= 0 and operation.root in members:
            peer = members.index(operation.root)
        way, layer_bits = site
        with RECORDER.lock:
            RECORDER.calls = call = RECORDER.calls + 1
            self.met += not operation.process_set
            ordinal = self._counter.numbered(
                str(operation.process_set), operation.family, operation.name, handle
            ).packed()
        thread = thread or RECORDER.thread()
        writer.put(
            _ENTER,
            thread,
            call,
            ordinal,
            group,
            number,
            code,
            reduce_op,
            flags | layer_bits,
            RECORDER.intern(way),
            spec,
            peer,
        )
        writer.put(_RETURN, thread, call)
        if len(self._pending) >= _MOST_HANDLES:  # nobody will wait for the oldest
            self._pending.pop(next(iter(self._pending)), None)
        self._pending[handle] = _Pending(call, ordinal, group)

    def waiting(self, handle: int) -> None:
        """Record that a thread begins to wait for an operation."""
        self._put(_WAIT, self._pending.get(handle))

    def woke(self, handle: int) -> None:
        """Record that the operation is complete."""
        self._put(_WOKE, self._pending.pop(handle, None))

    def raised(self, handle: int) -> None:
        """Record that the operation ended in an error."""
        self._put(_WAIT_RAISE, self._pending.pop(handle, None))

    @staticmethod
    def _put(kind: int, pending: _Pending | None) -> None:
        if pending is not None and RECORDER.writer is not None:
            RECORDER.writer.put(kind, RECORDER.thread(), *pending)

    def _group(self, process_set: int) -> tuple[int, tuple[int, ...]]:
        known = self._groups.get(process_set)
        if known is None:
            members = self._members(process_set)
            assert RECORDER.writer is not None
            incarnation = OFTEN * RECORDER.writer.incarnation
            name = f"{BY_NAME}{process_set or ''}"
            title = f"{BY_NAME} process set {process_set}" if process_set else BY_NAME
            text = group_text(name, title, incarnation, members)
            known = RECORDER.number_of_group(text), members
            self._groups[process_set] = known
        return known

    def _describe(self, operation: Operation) -> tuple[int, int]:
        """The signature of a call, and the number of its text."""
        family, tensors = operation.family, operation.tensors
        text = ";".join(
            f"{dtype} {'x'.join(map(str, shape))}" for dtype, shape in tensors
        )
        if operation.splits is not None:
            row = 1
            for size in tensors[0][1][1:]:
                row *= size
            sent = [split * row for split in operation.splits]
            text += "|" + ",".join(map(str, sent)) + "|"
        name = operation.name[:_LONGEST_NAME]
        if name:
            text += "\n" + f"{family}.{name}".replace("\n", " ")
        number = NOT_SEEN
        if tensors or family in {"barrier", "join"}:
            number = self._signature(operation)
        if len(self._described) >= _MOST_NAMES:
            self._described.clear()
        known = number, RECORDER.intern(text)
        self._described[operation] = known
        return known

    @staticmethod
    def _signature(operation: Operation) -> int:
        """Equal on two ranks if their calls can meet, as far as Horovod compares."""
        own = operation.family in _OWN_SIZES
        shapes = [shape[1:] if own else shape for _, shape in operation.tensors]
        sizes = [size for shape in shapes for size in (-len(shape), *shape)]
        code = CODE_OF[FAMILIES[operation.family]]
        dtypes = tuple(dtype for dtype, _ in operation.tensors)
        return signature(
            code,
            operation.reduce_op & 0xFF,
            operation.root,
            dtypes,
            (),
            names=(operation.name, *map(str, sizes), *map(str, operation.scales)),
        )
