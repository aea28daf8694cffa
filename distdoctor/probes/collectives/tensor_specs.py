"""Reads dtypes, shapes and splits of a call, and makes its text and signature.

A key is a small tuple that determines both, so that each is worked out once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from distdoctor.model.operations import OPERATIONS, signature

Key: TypeAlias = tuple[Any, ...]
"""(tensors, splits): tensors is a tuple of dtype and shape in turn."""

Reader: TypeAlias = Callable[[Sequence[Any]], Key]

_NOTHING: Key = ((), None)


def reader_of(op: str, at: dict[str, int]) -> Reader:
    """A function that reads the tensor specs from an operator's arguments.

    Args:
        op: Its name in the c10d library.
        at: Position of each argument by its name in the operator's schema.
    """
    match op:
        case "barrier" | "monitored_barrier_":
            return lambda _args: _NOTHING
        case "alltoall_":
            return _all_to_all(at["output_tensors"], at["input_tensors"])
        case "alltoall_base_":
            return _all_to_all_single(at)
        case "allgather_":
            return _all_gather(at["output_tensors"], at["input_tensors"])
        case "scatter_":  # only the root has inputs
            return _listed(at["output_tensors"])
        case "reduce_scatter_":
            return _inner_listed(at["input_tensors"])
        case "_allgather_base_" | "_reduce_scatter_base_":
            return _single(at["input_tensor"])
    names = ("tensors", "input_tensors", "inputs", "input_list", "input_tensor")
    return _listed(next(at[name] for name in names if name in at))


def _single(i: int) -> Reader:
    def read(args: Sequence[Any]) -> Key:
        tensor = args[i]
        return (tensor.dtype, tensor.shape), None

    return read


def _listed(i: int) -> Reader:
    def read(args: Sequence[Any]) -> Key:
        tensors = args[i]
        if len(tensors) == 1:
            tensor = tensors[0]
            return (tensor.dtype, tensor.shape), None
        return _flat(tensors), None

    return read


def _inner_listed(i: int) -> Reader:
    return lambda args: (_flat(args[i][0]), None)


def _all_gather(outputs: int, inputs: int) -> Reader:
    """Inputs may differ in size if the outputs say so (NCCL allows that, gloo not)."""

    def read(args: Sequence[Any]) -> Key:
        tensor = args[inputs][0]
        if len({output.numel() for output in args[outputs][0]}) > 1:
            return _flat(args[outputs][0]), None
        return (tensor.dtype, tensor.shape), None

    return read


def _all_to_all(outputs: int, inputs: int) -> Reader:
    def read(args: Sequence[Any]) -> Key:
        sent = tuple(tensor.numel() for tensor in args[inputs])
        received = tuple(tensor.numel() for tensor in args[outputs])
        tensor = args[inputs][0]
        return (tensor.dtype, torch.Size((sum(sent),))), (sent, received)

    return read


def _all_to_all_single(at: dict[str, int]) -> Reader:
    def read(args: Sequence[Any]) -> Key:
        sent, received = args[at["input"]], args[at["output"]]
        size = args[at["process_group"]]
        members = torch.distributed.ProcessGroup.unbox(size).size()
        return (sent.dtype, sent.shape), (
            _elements(sent, args[at["input_split_sizes"]], members),
            _elements(received, args[at["output_split_sizes"]], members),
        )

    return read


def _elements(
    tensor: torch.Tensor, splits: Sequence[int], members: int
) -> tuple[int, ...]:
    """Elements that go to or come from each member."""
    if not splits:
        return (tensor.numel() // members,) * members
    row = tensor.shape[1:].numel()
    return tuple(int(split) * row for split in splits)


def _flat(tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    flat: list[Any] = []
    for tensor in tensors:
        flat += (tensor.dtype, tensor.shape)
    return tuple(flat)


def describe(op: int, reduce_op: int, root: int, key: Key) -> tuple[int, str]:
    """The signature of a call, and its text.

    Returns:
        The 64-bit signature, and the text that `journal.texts.parse_spec` reads.
    """
    flat, splits = key
    dtypes = tuple(str(dtype).removeprefix("torch.") for dtype in flat[::2])
    shapes = flat[1::2]
    numels = tuple(shape.numel() for shape in shapes)
    text = ";".join(
        f"{dtype} {'x'.join(map(str, shape))}"
        for dtype, shape in zip(dtypes, shapes, strict=True)
    )
    if splits is not None:
        text += "".join("|" + ",".join(map(str, part)) for part in splits)
    if not OPERATIONS[op].sizes_agree:
        dtypes = tuple(sorted(set(dtypes)))
    return signature(op, reduce_op, root, dtypes, numels), text


def floating_elements(key: Key) -> int:
    """Elements of the tensors of a key whose dtype can be that of a gradient."""
    flat, _splits = key
    return sum(
        shape.numel()
        for dtype, shape in zip(flat[::2], flat[1::2], strict=True)
        if dtype.is_floating_point
    )
