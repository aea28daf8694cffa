"""Sees each operation that Horovod's core is asked for by TensorFlow, in eager code.

Horovod looks its kernels up by name, at each call, on one object: they are replaced
there. A call waits until all ranks have made it. What is called while TensorFlow traces
a function runs later, and is seen by `graph_calls`.

In eager code Horovod goes by the kernel's name, whatever name the user gives: calls of
a kind meet in the order in which ranks make them.

Source: Horovod 0.28.1, tensorflow/mpi_ops.py and tensorflow/mpi_ops.cc, and measured.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from distdoctor.probes.call_sites import is_users, layered_way, text_of
from distdoctor.probes.harmless import harmless
from distdoctor.probes.horovod.named_operations import (
    FAMILIES,
    NamedOperations,
    RequestedOperation,
)
from distdoctor.probes.horovod.reduction_chains import follow
from distdoctor.probes.interruptions import is_interruption
from distdoctor.probes.recorder import RECORDER, blinded

_PREFIX = "horovod_"

_REDUCING = {"allreduce", "grouped_allreduce"}
_MOST_SPLITS = 4096
_MOST_TRACED = 100_000

_modules: list[ModuleType] = []

handles = itertools.count(1)
"""Numbers of calls; TensorFlow's part of Horovod has none of its own."""


def members_of_set(number: int) -> tuple[int, ...]:
    """Global ranks of a process set; empty if it is none, or cannot be asked."""
    basics = _modules[0].__dict__["_basics"]
    if not number:
        return tuple(range(basics.size()))
    return tuple(basics._get_process_set_ids_and_ranks().get(number, ()))


OPERATIONS_HERE = NamedOperations(members_of_set)
"""The operations of this process."""


def watch(mpi_ops: ModuleType) -> None:
    """Replace the functions of Horovod's core, right after they were loaded.

    Args:
        mpi_ops: The module `horovod.tensorflow.mpi_ops`.
    """
    _modules[:] = [mpi_ops]
    core, is_eager = mpi_ops.__dict__["MPI_LIB"], mpi_ops.__dict__["_executing_eagerly"]
    for family in FAMILIES:
        made = getattr(core, _PREFIX + family, None)
        if made is not None:
            setattr(core, _PREFIX + family, _calling(made, family, is_eager))


def was_loaded() -> bool:
    """Whether the job has loaded Horovod for TensorFlow."""
    return bool(_modules)


def _calling(
    made: Callable[..., Any], family: str, is_eager: Callable[[], bool]
) -> Callable[..., Any]:
    """A function of the core, recording when it is called and when it returns."""
    kernel = "Horovod" + "".join(word.capitalize() for word in family.split("_"))
    here = OPERATIONS_HERE

    @functools.wraps(made)
    def call(*args: Any, **kwargs: Any) -> Any:
        if RECORDER.writer is None:
            return made(*args, **kwargs)
        if not is_eager():
            result = made(*args, **kwargs)
            _trace(args, result)
            return result
        handle, site, operation = 0, "", None
        try:
            operation = _read(family, kernel, args, kwargs)
            plan = here.plans.get(operation) or here.plan(operation, operation)
            site, way, _ = layered_way(1)
            handle = next(handles)
            here.submitted(handle, plan, way, 0, RECORDER.thread())
        except Exception as failed:  # the job must not feel the probe
            if is_interruption(failed):
                raise
            blinded(family, failed)
            handle = 0
        result = _waited(here, (handle,), lambda: made(*args, **kwargs))
        if family in _REDUCING and operation is not None and plan.met:
            scale = operation.scales[0] * operation.scales[1]
            follow(operation.reduce_op, scale, args[0], result, site)
        return result

    # AutoGraph would look for the source of what is wrapped, and warn that it has none.
    call.autograph_info__ = {}  # type: ignore[attr-defined]
    return call


traced: dict[str, tuple[tuple[str, tuple[int, ...]], ...]] = {}
"""By the name of a node, what it was given when it was traced last.

A size that was not known then is 0.
"""

traced_sites: dict[str, str] = {}
"""By the name of a node, the line of the user's that led to it."""


@harmless
def _trace(args: tuple[Any, ...], result: Any) -> None:
    if not args or len(traced) >= _MOST_TRACED:
        return
    given: Any = args[0]
    tensors = given if isinstance(given, list | tuple) else (given,)
    output = result
    while isinstance(output, list | tuple) and output:
        output = output[0]
    node = getattr(output, "op", output)
    traced[node.name] = tuple(map(_described, tensors))
    traced_sites[node.name] = _site_of(node)


def _site_of(node: Any) -> str:
    """The line that made a node; TensorFlow knows it though it rewrites functions."""
    for frame in reversed(list(node.traceback)):
        if is_users(frame.filename):
            return text_of(frame.filename, frame.lineno, frame.name)
    return ""


def waited(given: tuple[int, ...], made: Callable[[], Any]) -> Any:
    """Make a call that waits for operations, recording begin and end.

    Args:
        given: Numbers of operations; all of them are complete when it returns.
        made: The call.
    """
    return _waited(OPERATIONS_HERE, given, made)


def _waited(
    here: NamedOperations, given: tuple[int, ...], made: Callable[[], Any]
) -> Any:
    _each(here.waiting, given)
    try:
        result = made()
    except BaseException:
        _each(here.raised, given)
        raise
    _each(here.woke, given)
    return result


@harmless
def _each(tell: Callable[[int], None], given: tuple[int, ...]) -> None:
    for handle in given:
        tell(handle)


def _read(
    family: str, kernel: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> RequestedOperation:
    """What a call asks for; keywords are as `mpi_ops` gives them."""
    if family == "join":
        return RequestedOperation(family, "", ())
    given: Any = args[0] if args else ()
    tensors: Sequence[Any] = given if isinstance(given, list | tuple) else (given,)
    return RequestedOperation(
        family,
        kernel,
        tuple(map(_described, tensors)),
        int(kwargs.get("reduce_op", -1)) if "reduce" in family else -1,
        int(kwargs.get("root_rank", -1)),
        _splits(kwargs.get("splits")),
        (
            float(kwargs.get("prescale_factor", 1.0)),
            float(kwargs.get("postscale_factor", 1.0)),
        ),
        int(kwargs.get("process_set_id", 0)),
        str(kwargs.get("name") or ""),
    )


def _described(tensor: Any) -> tuple[str, tuple[int, ...]]:
    dtype, shape = getattr(tensor, "dtype", None), getattr(tensor, "shape", ())
    name = getattr(dtype, "name", "") or str(dtype)
    if getattr(shape, "rank", 0) is None:
        return name, ()
    return name, tuple(size or 0 for size in shape)


def _splits(splits: Any) -> tuple[int, ...] | None:
    """What each rank gets; an empty tensor means equal parts."""
    shape: Any = getattr(splits, "shape", ())
    if len(shape) != 1 or not 0 < int(shape[0]) <= _MOST_SPLITS:
        return None
    return tuple(int(one) for one in splits.numpy())
