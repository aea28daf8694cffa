"""Sees every communication operation that goes through torch's dispatcher.

The dispatcher asks the key `BackendSelect` before the backends, and the `c10d`
operators leave that slot empty. A kernel there sees each call, whoever makes it
(Python, the reducer of DistributedDataParallel, FSDP2, DTensor, functional collectives,
batched point-to-point, compiled code, any thread), and passes it on with the key
removed. What does not pass here: methods of a backend object, RPC.

Source: measured with torch 2.8 to 2.15; nothing in stock torch fills the slot.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.library import Library

from distdoctor.compiled import HOT
from distdoctor.journal.environment import RECORD_VARIABLE
from distdoctor.journal.format import NODES_MODULO, RecordKind
from distdoctor.journal.layout import CHILDREN_FILE
from distdoctor.journal.packed_texts import OFTEN, group_text
from distdoctor.model.events import Misplaced
from distdoctor.model.layers import LAYER_SHIFT
from distdoctor.model.operations import (
    ASYNCHRONOUS,
    BATCHED,
    FAILING,
    IN_BACKWARD,
    NO_REDUCE_OP,
    NOT_SEEN,
    OPERATIONS,
    UNUSED,
    Operation,
)
from distdoctor.probes.call_sites import call_site, codes, frame_above, layered_way
from distdoctor.probes.collectives import reduce_ops
from distdoctor.probes.collectives.board import board_of
from distdoctor.probes.collectives.gpu_waits import WAITS
from distdoctor.probes.collectives.loop_names import TURNS
from distdoctor.probes.collectives.parking import park
from distdoctor.probes.collectives.pending_calls import PendingCall, UsedGroup
from distdoctor.probes.collectives.tensor_specs import (
    Key,
    describe,
    floating_elements,
    reader_of,
)
from distdoctor.probes.collectives.work_handles import (
    READ_BY,
    Handles,
    is_users_own,
    watchable,
)
from distdoctor.probes.gradients.exchanges import EXCHANGES
from distdoctor.probes.groups.backends import backend_of
from distdoctor.probes.harmless import harmless, lose_or_raise
from distdoctor.probes.interruptions import is_interruption
from distdoctor.probes.metrics.evaluations import METRICS
from distdoctor.probes.metrics.printed_figures import FIGURES
from distdoctor.probes.metrics.small_values import MOST_VALUES
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER, blinded

_BACKEND_SELECT = torch._C.DispatchKey.BackendSelect
_META = torch._C.DispatchKey.Meta

# A member of an Enum costs a lookup of 0.1 µs each time.
_ENTER, _REFUSE = int(RecordKind.ENTER), int(RecordKind.REFUSE)
_RETURN, _WAIT, _WOKE = (
    int(RecordKind.RETURN),
    int(RecordKind.WAIT),
    int(RecordKind.WOKE),
)

_is_completed = dist.Work.is_completed  # before anybody replaces it
_unbox = dist.Work.unbox

_UNREAD = (NOT_SEEN, 0, 0)  # signature, text and elements of a call

_ENGINE = getattr(torch.autograd.graph, "_engine_run_backward").__code__  # noqa: B009
"""The innermost line of Python while autograd runs: what calls from it is C++."""

_MOST_SPECS = 65_536
_MOST_KEPT = 4096
_MOST_KEYSETS = 1024
_MOST_WORKS = 1024
_MOST_UNPOLLED = 16
_MOST_IN_VAIN = 100


class Collectives:
    """The dispatcher kernels that record calls, and their state; one per process.

    Attributes:
        inside: By thread, calls issued inside a function that waits for all of them.
        works: Work objects and their calls, by the identity of the Work: it is held so
            that pybind hands the user this very object.
        by_pointer: Calls by the address of their result, for functional collectives.
        handles: The Work handles that the user was given.
    """

    def __init__(self) -> None:
        self.works: OrderedDict[int, tuple[Any, PendingCall]] = OrderedDict()
        self.inside: dict[int, list[PendingCall]] = {}
        self.by_pointer: OrderedDict[int, PendingCall] = OrderedDict()
        self.handles = Handles()
        self._groups: dict[str, UsedGroup | None] = {}
        self._seen: dict[tuple[str, tuple[int, ...]], int] = {}
        self._specs: dict[Key, tuple[int, int, int]] = {}
        # By operator: what to record of calls that were made before, see `_keep`.
        self._kept: dict[int, dict[Key, tuple[Any, ...]]] = {}
        # Reduce ops of what autograd issues: by operation, group and tensors.
        self._reduced: dict[tuple[int, str, Key], int] = {}
        self._keysets: dict[int, tuple[Any, bool]] = {}  # see `_below`
        self._tasks: dict[int, int] = {}  # thread -> autograd task with a bracket
        # By thread: the autograd task that issued last, its line, layer and site.
        self._walked: dict[int, tuple[int, tuple[str, int, int]]] = {}
        # By thread: the last call that autograd issued, in a pass that is not over.
        self._of_engine: dict[int, PendingCall] = {}
        self._failing = 0
        self._in_vain = 0
        # Dropping this object takes the kernels away.
        self._library = Library("c10d", "IMPL")
        for code, operation in enumerate(OPERATIONS):
            op = getattr(torch.ops.c10d, operation.c10d or "none", None)
            if op is not None:
                kernel = self._kernel(code, operation, op.default)
                self._library.impl(
                    operation.c10d, kernel, "BackendSelect", with_keyset=True
                )

    def close(self) -> None:
        """Remove the kernels from the dispatcher."""
        self._library._destroy()

    def forget_groups(self) -> None:
        """Forget groups, whose names may be reused, and release Work objects."""
        self._groups.clear()
        self._specs.clear()  # their numbers are of a journal that may be another now
        for kept in self._kept.values():
            kept.clear()
        self._reduced.clear()
        self._walked.clear()
        self._of_engine.clear()
        self.works.clear()
        self.by_pointer.clear()
        self.handles.reset()
        WAITS.reset()

    def reset(self) -> None:
        """Forget all state: the process starts to play in another run."""
        self.forget_groups()
        self._seen.clear()
        self._tasks.clear()
        self._failing = self._in_vain = 0
        TURNS.reset()

    def met(self) -> int:
        """How many collectives this process has issued on the default group."""
        world = dist.group.WORLD
        group = None if world is None else self._groups.get(world.group_name)
        return 0 if group is None else group.ordinal

    def _kernel(self, code: int, operation: Operation, op: Any) -> Callable[..., Any]:
        enter, left, raised = (
            self._entering(code, operation, op),
            self._left,
            self._raised,
        )
        keysets = self._keysets
        # `redispatch` without its frame of Python, where torch has it by that name.
        handle = getattr(op, "_handle", None)
        redispatch = getattr(handle, "redispatch_boxed", op.redispatch)

        # The guards are written out: as calls they cost as much as the work.
        def kernel(keyset: Any, *args: Any) -> Any:
            known = keysets.get(keyset.raw_repr()) or self._below(keyset)
            below, is_meta = known
            if is_meta:  # a tensor without memory: no call is made
                self._without_memory(operation, args)
                return redispatch(below, *args)
            try:
                pending = enter(args)
            except Exception as error:  # the job must not feel the probe
                self._go_blind(error)
                if is_interruption(error):  # it may have come when the call was counted
                    raise
                pending = None
            if pending is None:
                return redispatch(below, *args)
            try:
                out = redispatch(below, *args)
            except BaseException:
                raised(pending)
                raise
            try:
                left(pending, out)
            except Exception as error:  # noqa: BLE001
                lose_or_raise("left", error)
            return out

        return kernel

    def _below(self, keyset: Any) -> tuple[Any, bool]:
        """What is left of a call's dispatch keys here, and whether it is on meta."""
        if len(self._keysets) >= _MOST_KEYSETS:
            self._keysets.clear()
        known = keyset.remove(_BACKEND_SELECT), keyset.has(_META)
        self._keysets[keyset.raw_repr()] = known
        return known

    def _go_blind(self, error: BaseException) -> None:
        """Make nothing of any further call: which of the others' it meets is lost."""
        blinded("entering", error)
        for name in list(self._groups):
            self._groups[name] = None

    @harmless
    def _without_memory(self, operation: Operation, args: tuple[Any, ...]) -> None:
        """Note a call on real meta tensors; a tracer's fake ones mean no call."""
        tensors = torch.utils._pytree.tree_leaves(args)
        kinds = {type(leaf) for leaf in tensors if isinstance(leaf, torch.Tensor)}
        if (
            kinds <= {torch.Tensor, torch.nn.Parameter}
            and self._in_vain < _MOST_IN_VAIN
        ):
            self._in_vain += 1
            RECORDER.tell(Misplaced(op=operation.name), call_site(4))

    def _in_child(self, operation: Operation, group: Any) -> None:
        """Note the first call of a process that a rank has forked, if this is one."""
        parent, RECORDER.child_of = RECORDER.child_of, 0
        if not parent or dist.ProcessGroup.unbox(group).size() < 2:
            return
        worker = torch.utils.data.get_worker_info()
        note: dict[str, object] = {"by": parent, "pid": os.getpid()}
        note |= {"op": operation.name, "site": call_site(4)}
        note["worker"] = -1 if worker is None else worker.id
        RECORDER.append(CHILDREN_FILE, note)

    def _entering(
        self, code: int, operation: Operation, op: Any
    ) -> Callable[[tuple[Any, ...]], PendingCall | None]:
        """The function that notes that a call of this operator is about to be made."""
        at = {argument.name: n for n, argument in enumerate(op._schema.arguments)}
        at_group, at_reduce = at["process_group"], at.get("reduce_op")
        at_peer = at.get("root_rank", at.get("src", at.get("dst")))
        at_tag, at_async = at.get("tag"), at.get("async_op")
        at_read = next((at[name] for name in READ_BY if name in at), at_group)
        read, look = reader_of(operation.c10d, at), _looking(operation)
        counts = RECORD_VARIABLE not in os.environ  # else nobody asks
        point_to_point = operation.is_point_to_point
        needs_all = not point_to_point and not operation.is_rooted
        batching = RECORDER.batching if point_to_point else None
        unbox = dist.ProcessGroup.unbox
        groups, specs, recorder = self._groups, self._specs, RECORDER
        kept = self._kept[code] = {}
        task_id = torch._C._current_graph_task_id
        nodes = torch._C._autograd._get_sequence_nr

        def entering(
            args: tuple[Any, ...], known_as: Key | None = None
        ) -> PendingCall | None:
            writer = recorder.writer
            if writer is None:
                self._in_child(operation, args[at_group])
                return None
            unboxed = unbox(args[at_group])
            name = unboxed.group_name
            try:
                group = groups[name]
            except KeyError:
                group = groups[name] = self._meet(unboxed, name)
            if group is None:
                return None
            # What cannot be read of a call is left out; the call itself is counted.
            spec, reduce_op, peer = _UNREAD, NO_REDUCE_OP, -1
            text, layer, site, flags, task = "", 0, 0, 0, -1
            of_engine = False
            thread = recorder.thread()
            try:
                task = task_id()
                caller = frame_above(2)
                if task != -1:
                    flags |= IN_BACKWARD
                    of_engine = caller is None or caller.f_code is _ENGINE
                moved = read(args)
                if at_reduce is not None:
                    boxed = args[at_reduce]
                    known_by = (code, name, moved) if of_engine else None
                    reduce_op = self._reduce_op(boxed, known_by, caller)
                peer = -1 if at_peer is None else args[at_peer]
                key = (code, reduce_op, peer, moved)
                spec = specs.get(key) or self._spec(key, point_to_point)
                # A trailing argument equal to its default is not passed: it is True.
                if at_async is not None and (at_async >= len(args) or args[at_async]):
                    flags |= ASYNCHRONOUS
                elif batching and thread in batching:
                    flags |= BATCHED
                if of_engine:
                    text, layer, site = self._engines_way(thread, task)
                else:
                    text, way, layer = layered_way(2)
                    site = recorder.intern(way)
                flags |= layer << LAYER_SHIFT
                if (
                    not of_engine
                    and (flags & ASYNCHRONOUS or point_to_point)
                    and is_users_own(2, point_to_point=point_to_point)
                ):
                    flags |= UNUSED
                flags |= self._failing_with(sys.exception())
                if known_as is not None and flags == layer << LAYER_SHIFT:
                    found = *spec, reduce_op, peer, flags, site, layer, text
                    _keep(kept, known_as, found, caller)
            except Exception as failed:  # noqa: BLE001 - the job must not feel the probe
                lose_or_raise("entering", failed)
            signature, described, elements = spec
            kind, ordinal = _ENTER, 0
            with recorder.lock:
                recorder.calls = call = recorder.calls + 1
                if not point_to_point:
                    group.ordinal = ordinal = group.ordinal + 1
                    group.board.write(ordinal, signature)
            if ordinal and not group.board.agrees(ordinal, signature):
                kind = _REFUSE
            writer.put(
                kind,
                thread,
                call,
                ordinal,
                group.number,
                signature,
                code,
                reduce_op,
                flags,
                site,
                described,
                peer,
                args[at_tag] if at_tag is not None else nodes() % NODES_MODULO,
            )
            if kind == _REFUSE:
                _refused(thread, call, ordinal, group.number)
            pending = PendingCall(call, group, ordinal, flags, of_engine)
            pending.needs_all = needs_all
            WAITS.forget()
            try:
                if task != -1 and self._tasks.get(thread) != task:
                    self._bracket(thread, task, call)
                if elements and counts:
                    EXCHANGES.count(elements, args[at_read], layer, task != -1)
                if not layer:
                    look(pending, args[at_read], elements, text, flags)
            except Exception as failed:  # noqa: BLE001
                lose_or_raise("counting", failed)
            return pending

        return _repeating(
            operation,
            entering=entering,
            kept=kept,
            groups=groups,
            unbox=unbox,
            read=read,
            task=task_id,
            nodes=nodes,
            count=EXCHANGES.count if counts else None,
            look=look,
            at_group=at_group,
            at_read=at_read,
            at_reduce=at_reduce,
            at_peer=at_peer,
            at_async=at_async,
            code=code,
            needs_all=needs_all,
        )

    # --- after the call ---

    def _left(self, pending: PendingCall, out: Any) -> None:
        writer = RECORDER.writer
        if writer is None:
            return
        thread = RECORDER.thread()
        writer.mark(_RETURN, thread, pending.call)
        result, boxed = (out[0], out[-1]) if isinstance(out, tuple) else (None, out)
        if pending.of_engine:  # no Python is given its Work
            self._of_engine[thread] = pending
            self._remember_result(pending, result)
            return
        if boxed is None:  # monitored_barrier has done all its waiting
            writer.mark(_WOKE, thread, pending.call, pending.ordinal, pending.group)
            return
        issued = self.inside.get(thread)
        if issued is not None:
            issued.append(pending)
            writer.mark(_WAIT, thread, pending.call, pending.ordinal, pending.group)
            return
        polled, asynchronous = pending.polled, pending.asynchronous
        if WAITS.watching and pending.needs_all and not (asynchronous or polled):
            WAITS.queue(pending)  # the stream waits at once, and there may be no Work
        work = _unbox(boxed)
        works = self.works
        while works:
            # A Work keeps its tensors alive: let the finished ones go.
            oldest, (held, _) = next(iter(works.items()))
            most = _MOST_WORKS if polled else _MOST_UNPOLLED
            if len(works) < most and not (polled and _is_completed(held)):
                break
            works.pop(oldest, None)
        works[id(work)] = (work, pending)
        if pending.watched is not None:
            self.handles.hold(work, pending, thread)
        if asynchronous:
            self._remember_result(pending, result)

    @harmless
    def _raised(self, pending: PendingCall) -> None:
        if RECORDER.writer is not None:
            RECORDER.writer.put(RecordKind.RAISE, RECORDER.thread(), pending.call)

    def _remember_result(self, pending: PendingCall, result: Any) -> None:
        while isinstance(result, list) and result:
            result = result[0]
        if isinstance(result, torch.Tensor) and result.layout is torch.strided:
            self.by_pointer[result.data_ptr()] = pending
            if len(self.by_pointer) > _MOST_WORKS:
                self.by_pointer.popitem(last=False)

    # --- what is worked out once ---

    def _meet(self, group: Any, name: str) -> UsedGroup | None:
        """What to remember of a group; None if its calls are not to be written."""
        if group.size() < 2 or RECORDER.blind:
            return None
        try:
            ranks = tuple(dist.get_process_group_ranks(group))
            polled = backend_of(group) == "gloo"
        except (KeyError, RuntimeError, ValueError):
            ranks = tuple(range(group.size()))  # not (yet) known to torch's Python side
            polled = False
        generation = self._seen.get((name, ranks), 0)
        self._seen[name, ranks] = generation + 1
        assert RECORDER.writer is not None
        generation += OFTEN * RECORDER.writer.incarnation
        text = group_text(name, getattr(group, "group_desc", ""), generation, ranks)
        # Without the description, which members of a mixed-up mesh differ in.
        shared = group_text(name, "", generation, ranks)
        number = RECORDER.number_of_group(text)
        me = group.rank(), dist.get_rank(), dist.get_world_size()
        board = board_of(RECORDER.folder, shared, group.size(), *me)
        return UsedGroup(number, board, polled)

    def _engines_way(self, thread: int, task: int) -> tuple[str, int, int]:
        """The line, layer and site of what autograd issues: one for all of a pass.

        The lines of Python that began the pass stand still as long as it goes.
        """
        known = self._walked.get(thread)
        if known is None or known[0] != task:
            text, way, layer = layered_way(3)
            known = self._walked[thread] = task, (text, layer, RECORDER.intern(way))
        return known[1]

    def _reduce_op(
        self, boxed: Any, key: tuple[int, str, Key] | None, caller: FrameType | None
    ) -> int:
        """The number of a reduce op.

        To read it costs as much as all else; what autograd issues by itself (it has a
        key: operation, group, tensors) has the same one again for the same tensors.
        """
        if key is None:
            return reduce_ops.asked(boxed, caller)
        known = self._reduced.get(key)
        if known is None:
            if len(self._reduced) >= _MOST_SPECS:
                self._reduced.clear()
            known = self._reduced[key] = reduce_ops.read(boxed)
        return known

    def _spec(self, key: Key, point_to_point: bool) -> tuple[int, int, int]:
        """Signature, number of the text, and floating-point elements of a call."""
        code, reduce_op, peer, tensors = key
        if len(self._specs) >= _MOST_SPECS:
            self._specs.clear()
        root = -1 if point_to_point else peer
        number, text = describe(code, reduce_op, root, tensors)
        elements = floating_elements(tensors)
        spec = self._specs[key] = (number, RECORDER.intern(text), elements)
        return spec

    def _failing_with(self, error: BaseException | None) -> int:
        """The flag of a call that is made while an exception is handled."""
        if error is None or isinstance(error, StopIteration):
            return 0
        if id(error) != self._failing:
            self._failing = id(error)
            RECORDER.failure(error, error.__traceback__, fatal=False)
        return FAILING

    # --- waiting inside backward ---

    def _bracket(self, thread: int, task: int, call: int) -> None:
        """Note when autograd is done and the reducer starts, and ends, its wait.

        The reducer waits in C++, in a callback it queues after ours; a callback that
        is queued by ours runs after the reducer's. (Measured: torch 2.8 to 2.15.)
        """
        queue = torch.autograd.Variable._execution_engine.queue_callback
        self._tasks[thread] = task

        @harmless
        def before() -> None:
            if RECORDER.writer is not None:
                RECORDER.writer.put(RecordKind.BACKWARD_WAIT, thread, call)
                queue(after)

        @harmless
        def after() -> None:
            self._tasks.pop(thread, None)
            last = self._of_engine.pop(thread, None)
            if last is not None and last.needs_all and not last.polled:
                WAITS.queue(last)
            if RECORDER.writer is not None:
                RECORDER.writer.put(RecordKind.BACKWARD_WOKE, thread, call)

        queue(before)


def _repeating(
    operation: Operation, entering: Callable[..., PendingCall | None], **way: Any
) -> Callable[..., PendingCall | None]:
    """What notes that a call is about to be made: in C, if it was made before.

    Args:
        operation: Of which kind.
        entering: What notes any call; it is given a key for what it is to keep.
        way: What that asks about the call, and where among its arguments what lies.
    """
    if HOT is None or operation.is_point_to_point:
        return entering
    places = {name: -1 for name, value in way.items() if value is None}
    places.pop("count", None)
    repeats: Callable[..., PendingCall | None] = HOT.Repeats(
        SimpleNamespace(
            **way | places,
            entering=entering,
            recorder=RECORDER,
            asked=reduce_ops.asked,
            pending=PendingCall,
            forget=WAITS.forget,
            refused=_refused,
            lose=lose_or_raise,
            is_interruption=is_interruption,
            enter=_ENTER,
            refuse=_REFUSE,
        )
    )
    return repeats


def _refused(thread: int, call: int, ordinal: int, group: int) -> None:
    """Hold a call that the others do not make; if nobody watches, it is made."""
    park()
    if RECORDER.writer is not None:
        RECORDER.writer.put(RecordKind.REISSUE, thread, call, ordinal, group)


def _keep(
    kept: dict[Key, tuple[Any, ...]],
    key: Key,
    found: tuple[Any, ...],
    caller: FrameType | None,
) -> None:
    """Keep what to record of a call, for when this very line makes it again.

    Args:
        kept: Where; the compiled part looks there, and knows the order.
        key: By what it is found: the stack, the tensors, reduce op and peer.
        found: What is recorded and told of it.
        caller: The innermost frame of the stack.
    """
    if len(kept) >= _MOST_KEPT:
        kept.clear()
    # The stack is known by its codes' places, which no others must get.
    kept[key] = *found, tuple(codes(caller))


def _looking(operation: Operation) -> Callable[..., None]:
    """The function that tells those who look into the user's own calls of one."""
    gives, reduces = operation.payload, "reduce" in operation.name

    def looking(
        pending: PendingCall, tensors: Any, elements: int, text: str, flags: int
    ) -> None:
        if gives and METRICS.passes:
            METRICS.contribute(elements, tensors, text)
        if reduces and 0 < elements <= MOST_VALUES and FIGURES.are_open(text):
            FIGURES.summed(elements, tensors, text)
        if pending.ordinal and not flags & IN_BACKWARD and TURNS.are_open(text):
            TURNS.look(text, pending.ordinal)
        if flags & UNUSED:
            pending.watched = watchable(tensors, pending.polled)

    return looking


_installed: list[Collectives] = []


def installed() -> Collectives | None:
    """The kernels of this process; None if none are installed."""
    return _installed[0] if _installed else None


def install(kernels: type[Collectives] = Collectives) -> None:
    """Register the kernels in the dispatcher."""
    _installed.append(kernels())


def _reset() -> None:
    for collectives in _installed:
        collectives.reset()


PROBE = Probe(install=install, reset=_reset)
