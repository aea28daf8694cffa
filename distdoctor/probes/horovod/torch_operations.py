"""Sees each operation that Horovod's core is asked for by torch.

All functions of `horovod.torch` end in functions of one module of C++, which Python
looks up by name at each call: those are replaced, so that it does not matter what the
user has imported, or when. What they are given is not changed, and nothing waits for
anything that would not have waited.

Source: Horovod 0.28.1, torch/mpi_ops.py.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from distdoctor.model.layers import LAYER_SHIFT, LAYERS
from distdoctor.model.observations.horovod import NameInFlight
from distdoctor.model.operations import ASYNCHRONOUS, FAILING, IN_BACKWARD
from distdoctor.probes.call_sites import call_site, frame_above, layered_way
from distdoctor.probes.collectives.loop_names import TURNS
from distdoctor.probes.gradients.exchanges import EXCHANGES
from distdoctor.probes.harmless import harmless
from distdoctor.probes.horovod.named_operations import (
    FAMILIES,
    CallPlan,
    NamedOperations,
    RequestedOperation,
)
from distdoctor.probes.interruptions import is_interruption
from distdoctor.probes.metrics.evaluations import METRICS
from distdoctor.probes.metrics.printed_figures import FIGURES
from distdoctor.probes.metrics.small_values import MOST_VALUES
from distdoctor.probes.recorder import RECORDER, blinded

_PREFIX = "horovod_torch_"

_ARGUMENTS = {
    # family: positions of name, process set, reduce op, factors; -1: it has none
    "allreduce": (3, 7, 4, 5),
    "allgather": (2, 3, -1, -1),
    "broadcast": (3, 4, -1, -1),
    "alltoall": (4, 5, -1, -1),
    "reducescatter": (2, 4, 3, 5),
}

_DUPLICATE = "with the same name as another tensor"
"""In the error of a call whose name is in flight. Source: common/tensor_queue.cc."""

_OPTIMIZER, _BACKWARD = LAYERS.index("horovod"), LAYERS.index("backward")

_task_id = torch._C._current_graph_task_id

_modules: list[ModuleType] = []


def members_of_set(number: int) -> tuple[int, ...]:
    """Global ranks of a process set; empty if it is none, or cannot be asked."""
    basics = _modules[0].__dict__["_basics"]
    if not number:
        return tuple(range(basics.size()))
    ranks = basics._get_process_set_ids_and_ranks().get(number, ())
    return tuple(ranks)


OPERATIONS_HERE = NamedOperations(members_of_set)
"""The operations of this process."""


def watch(mpi_ops: ModuleType) -> None:
    """Replace the functions of Horovod's core, right after they were loaded.

    Args:
        mpi_ops: The module `horovod.torch.mpi_ops`.
    """
    _modules[:] = [mpi_ops]
    core, file = mpi_ops.__dict__["mpi_lib"], mpi_ops.__dict__["__file__"]
    for attribute in dir(core):
        stem = attribute.removeprefix(_PREFIX)
        family, is_async, _ = stem.partition("_async_")
        if stem == attribute:
            continue
        made = getattr(core, attribute)
        if is_async and family in FAMILIES:
            setattr(core, attribute, _submitting(made, family, file))
        elif stem in {"join", "barrier"}:
            setattr(core, attribute, _submitting(made, stem, file))
        elif stem == "wait_and_clear":
            setattr(core, attribute, _waiting(made))


def _submitting(made: Callable[..., Any], family: str, file: str) -> Callable[..., Any]:
    """A function of the core that is given an operation, and records it."""
    key_of, read = _reader(family)
    here, recorder = OPERATIONS_HERE, RECORDER
    waits_itself = family in {"join", "barrier"}

    @functools.wraps(made)
    def submit(*args: Any) -> Any:
        try:
            handle = made(*args)
        except ValueError as refused:
            _refused(str(refused), family, args)
            raise
        if recorder.writer is None:
            return handle
        try:
            key = key_of(args)
            plan = here.plans.get(key) or here.plan(key, read(args))
            flags, text, way, layer = 0, *layered_way(1)
            thread = recorder.thread()
            in_backward = _task_id() != -1
            if in_backward:
                flags = IN_BACKWARD
                if not text:  # a thread of autograd's own, which never waits
                    thread = os.getpid()
            elif layer == _BACKWARD:  # Horovod's functions are autograd functions
                layer = 0
            if not waits_itself:
                # Ours, a private one and an asynchronous one of Horovod's: whose is it?
                caller = frame_above(2)
                if caller is None or caller.f_code.co_filename != file:
                    flags |= ASYNCHRONOUS
            error = sys.exception()
            if error is not None and not isinstance(error, StopIteration):
                flags |= FAILING
            bits = flags | layer << LAYER_SHIFT
            count = here.submitted(handle, plan, way, bits, thread)
        except Exception as failed:  # the job must not feel the probe
            if is_interruption(failed):
                raise
            blinded(family, failed)
            return handle
        if plan.elements:
            _look(plan, args[0], text, layer, in_backward)
        if count and not (layer or in_backward) and TURNS.are_open(text):
            TURNS.look(text, count)
        return handle

    return submit


@harmless
def _look(
    plan: CallPlan, tensors: Any, text: str, layer: int, in_backward: bool
) -> None:
    """Count what is exchanged, as for a call of torch's own."""
    elements = plan.elements
    # What its optimizer submits in `step` are gradients as well.
    EXCHANGES.count(elements, tensors, layer, in_backward or layer == _OPTIMIZER)
    if layer:
        return
    if METRICS.passes and plan.family != "broadcast":
        METRICS.contribute(elements, tensors, text)
    if elements <= MOST_VALUES and "reduce" in plan.family:
        FIGURES.summed(elements, tensors, text)


@harmless
def _refused(why: str, family: str, args: tuple[Any, ...]) -> None:
    """Tell of a call that Horovod did not take, because it has one of that name."""
    # Later: both are brought in while torch, or Horovod, is being imported.
    from distdoctor.probes.horovod.optimizer_wrapping import held_by_name

    if _DUPLICATE not in why or RECORDER.writer is None:
        return
    name = _reader(family)[1](args).name
    holders, parameters = held_by_name(name) if _task_id() != -1 else (0, 0)
    RECORDER.observe(
        NameInFlight(name=f"{family}.{name}", holders=holders, parameters=parameters),
        call_site(3),
    )


_Arguments = tuple[Any, ...]


def _reader(
    family: str,
) -> tuple[Callable[[_Arguments], object], Callable[[_Arguments], RequestedOperation]]:
    """Functions that make a short key, and an operation, of the core's arguments."""
    if family == "join":
        return lambda _args: family, lambda _args: RequestedOperation(family, "", ())
    if family == "barrier":
        return (
            lambda args: (family, args[0]),
            lambda args: RequestedOperation(family, "", (), process_set=int(args[0])),
        )
    at_name, at_set, at_op, at_scales = _ARGUMENTS[family.removeprefix("grouped_")]
    is_alltoall = family == "alltoall"

    def key_of(args: _Arguments) -> object:
        given = args[0]
        if is_alltoall:
            return family, given.dtype, given.shape, _splits(args[1]), *args[4:]
        if isinstance(given, torch.Tensor):
            return family, given.dtype, given.shape, args[2:]
        return family, tuple((one.dtype, one.shape) for one in given), args[2:]

    def read(args: _Arguments) -> RequestedOperation:
        given, name = args[0], args[at_name]
        tensors = given if isinstance(given, list | tuple) else (given,)
        return RequestedOperation(
            family,
            name.decode(errors="replace") if isinstance(name, bytes) else name,
            tuple((str(one.dtype)[6:], tuple(one.shape)) for one in tensors),
            -1 if at_op < 0 else int(args[at_op]),
            int(args[2]) if family == "broadcast" else -1,
            _splits(args[1]) if is_alltoall else None,
            (1.0, 1.0) if at_scales < 0 else (args[at_scales], args[at_scales + 1]),
            int(args[at_set]),
        )

    return key_of, read


def _splits(splits: Any) -> tuple[int, ...] | None:
    """What each rank gets; an empty tensor means equal parts."""
    if not isinstance(splits, torch.Tensor) or splits.is_cuda or not splits.numel():
        return None
    return tuple(splits.tolist())


def _waiting(made: Callable[..., Any]) -> Callable[..., Any]:
    """The function that waits for an operation, recording begin and end."""
    here = OPERATIONS_HERE
    waiting, woke, raised = map(harmless, (here.waiting, here.woke, here.raised))

    @functools.wraps(made)
    def wait(handle: Any) -> Any:
        waiting(handle)
        try:
            result = made(handle)
        except BaseException:
            raised(handle)
            raise
        woke(handle)
        return result

    return wait
