"""Reads the reduce op of a collective, also in torch releases that hide it.

A kernel gets the reduce op as a script object. From torch 2.10 on it tells its number;
in 2.8 it tells nothing (seen with both). There, Python's calls pass through methods of
ProcessGroup that can be replaced and whose options name the op. What C++ issues by
itself (the reducer of DistributedDataParallel) stays unknown, and counts as equal.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from distdoctor.model.operations import UNKNOWN_REDUCE_OP
from distdoctor.probes.frame_variables import variable
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe

_METHODS = (
    *("allreduce", "allreduce_coalesced", "reduce", "reduce_scatter"),
    *("_reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
)

_asked = threading.local()
_hidden = False


def read(boxed: Any) -> int:
    """The number of a reduce op, from the script object that a kernel gets."""
    if _hidden:
        number: int = getattr(_asked, "number", UNKNOWN_REDUCE_OP)
    else:  # its attribute `op` is the same method, found in twice the time
        number = boxed._get_method("op")()
    return number


_MOST_ASKED = 1024


def _asking() -> dict[int, CodeType]:
    """Functions of torch's whose variable `op` is what they hand on, by `id`."""
    names = ("all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter")
    found = {}
    for name in (*names, "reduce_scatter_tensor", "_reduce_scatter_base"):
        made = inspect.unwrap(getattr(distributed_c10d, name, None) or _asking)
        code = getattr(made, "__code__", None)
        if (
            isinstance(code, CodeType)
            and code.co_filename == distributed_c10d.__file__
            and "op" in code.co_varnames[: code.co_argcount]
        ):
            found[id(code)] = code
    return found


_ASKING = _asking()

_asked_for: dict[tuple[int, int], tuple[Any, int]] = {}
"""By `id` of the function and of what it was given: this, and the number it meant."""


def asked(boxed: Any, caller: FrameType | None) -> int:
    """The number of a reduce op; as `read`, in a quarter of the time where it can.

    To ask the script object is slow, so that it is asked once for each member of
    `ReduceOp.RedOpType` that a function of torch's is given.

    Args:
        boxed: The script object that a kernel gets.
        caller: The frame that called the operator.
    """
    if _hidden or caller is None:
        return read(boxed)
    function = id(caller.f_code)
    if function not in _ASKING:
        return read(boxed)
    op = variable(caller, "op")
    if type(op) is not dist.ReduceOp.RedOpType:  # such as one with a factor
        return read(boxed)
    known = _asked_for.get((function, id(op)))
    if known is None:
        known = op, read(boxed)
        if len(_asked_for) < _MOST_ASKED:
            _asked_for[function, id(op)] = known
    return known[1]


_TELLS = (2, 10)  # the release of torch from which on a kernel can read them


def install() -> None:
    """In releases that hide reduce ops, note the one that Python code asks for."""
    global _hidden
    if tuple(map(int, torch.__version__.split(".")[:2])) >= _TELLS:
        return
    _hidden = True
    for name in _METHODS:
        made = getattr(dist.ProcessGroup, name, None)
        if made is not None:
            setattr(dist.ProcessGroup, name, _remembering(made))


def _remembering(made: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(made)
    def call(*args: Any, **kwargs: Any) -> Any:
        _remember([*args, *kwargs.values()])
        try:
            return made(*args, **kwargs)
        finally:
            _asked.number = UNKNOWN_REDUCE_OP

    return call


@harmless
def _remember(arguments: list[Any]) -> None:
    for argument in arguments:
        op = getattr(argument, "reduceOp", argument)
        if isinstance(op, dist.ReduceOp):
            _asked.number = int(op.op)  # type: ignore[attr-defined]


PROBE = Probe(install=install)
