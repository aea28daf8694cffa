"""Records Horovod's operations, of any framework, in the rank's journal.

Horovod matches by name: `allreduce(x, name="loss")` meets that of the other ranks
whenever they make it. So a call tells its name, and how often the name was used. A call
without a name is called by the number of its handle, which counts all of a process's
calls: one call more on one rank shifts the names of all later ones.

Source: Horovod 0.28.1, torch/mpi_ops_v2.cc and torch/handle_manager.cc (names and
handles), common/controller.cc (what is compared), and measured.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from math import prod
from typing import NamedTuple
from weakref import WeakSet

from distdoctor.journal.format import RecordKind
from distdoctor.journal.packed_texts import OFTEN, group_text
from distdoctor.model.named_calls import BY_NAME, packed
from distdoctor.model.operations import (
    CODE_OF,
    NO_REDUCE_OP,
    REDUCE_OPS,
    signature,
)
from distdoctor.probes.recorder import RECORDER

_ENTER, _WAIT, _WOKE, _WAIT_RAISE = (
    int(RecordKind.ENTER),
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

_ELASTIC = "HOROVOD_ELASTIC"
"""Set where ranks may come and go. Source: Horovod 0.28.1, runner/elastic."""

_MOST_NAMES = 1_000_000
_MOST_PLANS = 65_536
_MOST_HANDLES = 65_536
_LONGEST_NAME = 200


class RequestedOperation(NamedTuple):
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
        given: What the user calls the tensor, where Horovod does not go by that.
        sized: Whether the shapes are those of the call; else they are of another time.
    """

    family: str
    name: str
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    reduce_op: int = -1
    root: int = -1
    splits: tuple[int, ...] | None = None
    scales: tuple[float, float] = (1.0, 1.0)
    process_set: int = 0
    given: str = ""
    sized: bool = True


class CallPlan:
    """What is worked out once for all calls that ask for the same operation.

    Attributes:
        met: Whether it is of the set of all ranks.
        group: Number of the group's text in the journal; 0: nobody is there to meet.
        elements: Floating-point numbers in its tensors.
        family: As in `RequestedOperation`.
        uses: How often the name was used since the last join, in a list of one; None:
            the call has no name.
        process_set: As in `RequestedOperation`.
        record: Signature, code, reduce op, number of the text, and root.
    """

    __slots__ = ("elements", "family", "group", "met", "process_set", "record", "uses")

    def __init__(
        self,
        operation: RequestedOperation,
        group: int,
        uses: list[int] | None,
        record: tuple[int, int, int, int, int],
    ) -> None:
        self.family, self.process_set = operation.family, operation.process_set
        self.met = not operation.process_set
        self.group, self.uses, self.record = group, uses, record
        self.elements = sum(
            prod(shape)
            for dtype, shape in operation.tensors
            if dtype.startswith(("float", "bfloat"))
        )


class NamedOperations:
    """The operations of this process, as Horovod's core is asked for them.

    Args:
        members: Gives the global ranks of a process set by its number.

    Attributes:
        met: How many operations of the set of all ranks were submitted.
    """

    def __init__(self, members: Callable[[int], tuple[int, ...]]) -> None:
        self._members = members
        _all.add(self)
        self.reset()

    def reset(self) -> None:
        """Forget all state: the process starts to play in another run."""
        self._times = -1
        self.join_job()

    def join_job(self) -> None:
        """Forget all that belongs to a job: the process joins one, perhaps again."""
        self._times += 1
        self.met = 0
        self._pending: dict[int, tuple[int, int, int]] = {}  # call, ordinal, group
        self._uses: dict[tuple[int, str, str], list[int]] = {}
        self._joins: dict[int, int] = {}
        self._counts: dict[int, int] = {}  # calls by group
        self._groups: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.forget_plans()

    def forget_plans(self) -> None:
        """Forget what was worked out; there may be other process sets now."""
        self.plans: dict[object, CallPlan] = {}

    def plan(self, key: object, operation: RequestedOperation) -> CallPlan:
        """Work out how calls of an operation are recorded.

        Args:
            key: By which it is found in `plans` from now on.
            operation: What is asked for.

        Returns:
            The plan.

        Raises:
            MemoryError: The journal has no room to name its process set.
        """
        if len(self.plans) >= _MOST_PLANS:
            self.forget_plans()
        group, members = self._group(operation.process_set)
        code = CODE_OF[FAMILIES[operation.family]]
        root = operation.root
        self.plans[key] = plan = CallPlan(
            operation,
            group if len(members) > 1 else 0,
            self._cell(operation),
            (
                _signature(operation),
                code,
                REDUCTION_CODES.get(operation.reduce_op, NO_REDUCE_OP),
                RECORDER.intern(_text(operation)),
                members.index(root) if root in members else -1,
            ),
        )
        return plan

    def _cell(self, operation: RequestedOperation) -> list[int] | None:
        """Where uses of its name are counted."""
        if not operation.name and operation.family != "barrier":
            return None
        key = operation.process_set, operation.family, operation.name
        if len(self._uses) >= _MOST_NAMES and key not in self._uses:
            raise MemoryError("so many names that their uses are not counted")
        return self._uses.setdefault(key, [0])

    def submitted(
        self, handle: int, plan: CallPlan, way: str, flags: int, thread: int
    ) -> int:
        """Record an operation that Horovod has just taken; it never waits there.

        Args:
            handle: Horovod's number of the call.
            plan: What was asked for.
            way: The lines of the user's that led to it; see `layered_way`.
            flags: Bits; see `model.operations`.
            thread: The thread that makes the call.

        Returns:
            How many calls this process has made on the process set; 0: it was not
            recorded.
        """
        writer, group = RECORDER.writer, plan.group
        if writer is None or not group or RECORDER.blind:
            return 0
        joins, use = self._joins.get(plan.process_set, 0), 1
        number, code, reduce_op, spec, peer = plan.record
        site = RECORDER.intern(way)
        with RECORDER.lock:
            RECORDER.calls = call = RECORDER.calls + 1
            self.met += plan.met
            if plan.uses is not None:
                plan.uses[0] = use = plan.uses[0] + 1
            elif plan.family == "join":
                self._join(plan.process_set)
        ordinal = packed(handle, use, joins)
        writer.put(
            *(_ENTER, thread, call, ordinal, group, number, code, reduce_op),
            *(flags, site, spec, peer),
        )
        pending = self._pending
        if len(pending) >= _MOST_HANDLES:  # nobody will wait for the oldest
            pending.pop(next(iter(pending)), None)
        pending[handle] = call, ordinal, group
        self._counts[group] = count = self._counts.get(group, 0) + 1
        return count

    def _join(self, process_set: int) -> None:
        """From here on, names are counted anew."""
        self._joins[process_set] = self._joins.get(process_set, 0) + 1
        for key, uses in self._uses.items():
            if key[0] == process_set:
                uses[0] = 0

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
    def _put(kind: int, pending: tuple[int, int, int] | None) -> None:
        if pending is not None and RECORDER.writer is not None:
            RECORDER.writer.put(kind, RECORDER.thread(), *pending)

    def _group(self, process_set: int) -> tuple[int, tuple[int, ...]]:
        known = self._groups.get(process_set)
        if known is None:
            members = self._members(process_set)
            assert RECORDER.writer is not None
            before = RECORDER.writer.incarnation
            # Who takes the place of a rank that died joins those that join again.
            times = self._times + (before if _ELASTIC in os.environ else 0)
            generation = times % OFTEN + OFTEN * before
            name = f"{BY_NAME}{process_set or ''}"
            title = f"{BY_NAME} process set {process_set}" if process_set else BY_NAME
            text = group_text(name, title, generation, members)
            known = RECORDER.number_of_group(text), members
            self._groups[process_set] = known
        return known


_all: WeakSet[NamedOperations] = WeakSet()


def reset_all() -> None:
    """Have all of them forget all state; see `NamedOperations.reset`."""
    for operations in _all:
        operations.reset()


def join_all() -> None:
    """Tell all of them that the process joins a job; see `NamedOperations.join_job`."""
    for operations in _all:
        operations.join_job()


def _text(operation: RequestedOperation) -> str:
    """What a call moves and names, as `journal.texts.parse_spec` reads it."""
    text = ";".join(
        f"{dtype} {'x'.join(map(str, shape))}" for dtype, shape in operation.tensors
    )
    if operation.splits is not None:
        row = prod(operation.tensors[0][1][1:])
        text += "|" + ",".join(str(split * row) for split in operation.splits) + "|"
    name, given = (
        one[:_LONGEST_NAME].replace("\n", " ")
        for one in (operation.name, operation.given)
    )
    if not name:
        return text
    told = f"{text}\n{operation.family}.{name}"
    return f"{told}\n{given}" if given else told


def _signature(operation: RequestedOperation) -> int:
    """Equal on two ranks if their calls can meet, as far as Horovod compares."""
    own = operation.family in _OWN_SIZES
    shapes = [
        shape[1:] if own else shape for _, shape in operation.tensors if operation.sized
    ]
    sizes = [size for shape in shapes for size in (-len(shape), *shape)]
    return signature(
        CODE_OF[FAMILIES[operation.family]],
        operation.reduce_op & 0xFF,
        operation.root,
        tuple(dtype for dtype, _ in operation.tensors),
        (),
        names=(operation.name, *map(str, sizes), *map(str, operation.scales)),
    )
