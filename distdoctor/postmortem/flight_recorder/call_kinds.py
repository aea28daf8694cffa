"""What an entry of a dump is in the terms of the model: operation, tensors, peer.

Recorders name calls by the method of the backend, and what they write of tensors
depends on it. What is kept here of a call's tensors is what has to agree on all ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from distdoctor.model.events import Tensor
from distdoctor.model.operations import CODE_OF, NO_REDUCE_OP, NOT_SEEN, signature
from distdoctor.model.run import Spec
from distdoctor.postmortem.flight_recorder.entry_columns import Kind

_OPERATIONS = {
    "allreduce": "all_reduce",
    "allreducecoalesced": "all_reduce_coalesced",
    "broadcast": "broadcast",
    "broadcastoop": "broadcast",
    "reduce": "reduce",
    "reduceoop": "reduce",
    "allgather": "all_gather",
    "allgatherv": "all_gather",
    "allgathercoalesced": "all_gather",
    "allgatherbase": "all_gather_into_tensor",
    "allgatherintotensor": "all_gather_into_tensor",
    "allgathersingle": "all_gather_into_tensor",
    "allgatherintotensorcoalesced": "all_gather_into_tensor_coalesced",
    "reducescatter": "reduce_scatter",
    "reducescatterv": "reduce_scatter",
    "reducescattercoalesced": "reduce_scatter",
    "reducescatterbase": "reduce_scatter_tensor",
    "reducescattertensor": "reduce_scatter_tensor",
    "reducescattersingle": "reduce_scatter_tensor",
    "reducescattertensorcoalesced": "reduce_scatter_tensor_coalesced",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "alltoallbase": "all_to_all_single",
    "alltoallsingle": "all_to_all_single",
    "alltoallvsingle": "all_to_all_single",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "allreducebarrier": "barrier",
    "monitoredbarrier": "monitored_barrier",
    "send": "send",
    "isend": "send",
    "recv": "recv",
    "irecv": "recv",
    "recvanysource": "recv_any",
}
"""By the recorder's name in small letters, without underscores and prefix."""

_UNEVEN = {"allgatherv", "reducescatterv", "alltoall", "alltoallv", "alltoallbase"}
_UNEVEN |= {"alltoallsingle", "alltoallvsingle"}
"""Sizes may differ between ranks."""

_BY_INPUT = {"all_reduce", "all_reduce_coalesced", "reduce", "gather"}
_BY_INPUT |= {"all_gather", "all_gather_into_tensor"}
_BY_INPUT |= {"all_gather_into_tensor_coalesced"}
"""The input is what has to agree; of others it is the output."""

_MESSAGE = re.compile(r"(i?send|i?recv)\s+(\d{1,9}|\?)\s*(?:->|<-)\s*(\d{1,9}|\?)")
_CLOSES = re.compile(r"coalesced$", re.IGNORECASE)

_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexHalf": "complex32",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}
_UNDEFINED = "Undefined"


@dataclass(frozen=True, slots=True)
class CallKind:
    """What many entries have in common.

    Attributes:
        group: The group's name.
        op: Position in `OPERATIONS`.
        is_message: It joins two ranks.
        closes: It ends a number of calls that were given to the backend together.
        peer: Rank in the group that a message goes to or comes from; -1: none, or any.
        spec: The tensors that have to agree, and an odd name if it has one.
        signature: Equal on two ranks if and only if their calls can meet.
        evented: The backend by which it went tells what is complete.
    """

    group: str
    op: int
    is_message: bool
    closes: bool
    peer: int
    spec: Spec
    signature: int
    evented: bool = True


def call_kind(raw: Kind) -> CallKind | None:
    """What entries of one kind are.

    Args:
        raw: As the dump has it.

    Returns:
        The kind; None if it is not of the form that recorders write.
    """
    group, name, ins, outs, in_types, out_types, is_p2p = raw
    if not _is_sound(group, name, ins, outs, in_types, out_types):
        return None
    backend, _, method = name.rpartition(":")
    inputs, outputs = _tensors(ins, in_types), _tensors(outs, out_types)
    message = _MESSAGE.search(method)
    evented = not backend or any(one in backend.lower() for one in _WITH_EVENTS)
    if message is not None:
        word = message[1].lstrip("i")
        peer = int(message[3]) if message[3].isdigit() else -1
        op = "recv_any" if word == "recv" and peer < 0 else word
        return _of(group[0], op, inputs or outputs, peer=peer, evented=evented)
    plain = re.sub(r"[_\W]", "", method).lower()
    op = _OPERATIONS.get(plain, "")
    if plain == "coalesced" or (_CLOSES.search(method) and method[:1].isupper()):
        # What it closes tells the tensors; it has none of its own.
        op = op or ("send" if is_p2p else "all_reduce_coalesced")
        return CallKind(
            *(group[0], CODE_OF[op], bool(is_p2p), True, -1, Spec(), NOT_SEEN),
            evented=evented,
        )
    names = () if op else (method[:64],)
    op = op or "barrier"
    compared = _compared(op, inputs, outputs)
    moved = (0, 0)
    if "all_to_all" in op:
        moved = (sum(t.numel for t in inputs), sum(t.numel for t in outputs))
    return _of(
        group[0],
        op,
        compared,
        names=names,
        uneven=plain in _UNEVEN,
        moved=moved,
        evented=evented,
    )


_WITH_EVENTS = ("nccl", "xccl", "rccl", "hccl", "mccl")


def _of(
    group: str,
    op: str,
    tensors: tuple[Tensor, ...],
    *,
    peer: int = -1,
    names: tuple[str, ...] = (),
    uneven: bool = False,
    moved: tuple[int, int] = (0, 0),
    evented: bool = True,
) -> CallKind:
    code = CODE_OF[op]
    numels = tuple(tensor.numel for tensor in tensors)
    dtypes = tuple(tensor.dtype for tensor in tensors)
    # Both forms of an all-to-all have one name, and not all dumps have stacks.
    told = CODE_OF["all_to_all"] if "all_to_all" in op else code
    reported = signature(
        told, NO_REDUCE_OP, -1, (*dtypes, *names), () if uneven else numels
    )
    splits = ((moved[0],), (moved[1],)) if any(moved) else None
    spec = Spec(tensors, splits, names)
    is_message = op in {"send", "recv", "recv_any"}
    return CallKind(
        group, code, is_message, False, peer, spec, reported % (1 << 64), evented
    )


def together(closing: CallKind, parts: Sequence[CallKind]) -> CallKind:
    """Calls that were given to the backend together, as one call.

    Args:
        closing: The entry behind them; it knows no tensors.
        parts: What it closes.

    Returns:
        The call, with the tensors of all.
    """
    named = closing.op != CODE_OF["all_reduce_coalesced"]
    op = closing.op if named else parts[0].op
    tensors = tuple(tensor for part in parts for tensor in part.spec.tensors)
    reported = signature(
        op,
        NO_REDUCE_OP,
        -1,
        (*(tensor.dtype for tensor in tensors), *(str(part.op) for part in parts)),
        tuple(tensor.numel for tensor in tensors),
    )
    return CallKind(
        *(closing.group, op, False, True, -1, Spec(tensors), reported % (1 << 64)),
        evented=closing.evented,
    )


def _compared(
    op: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    if op in {"barrier", "monitored_barrier"}:
        return ()
    if op in {"scatter", "gather"}:
        # One side is the root's alone: a list, or one tensor with the parts of all.
        return tuple(sorted((*inputs[:1], *outputs[:1]), key=lambda one: one.numel)[:1])
    if op in _BY_INPUT:
        return inputs or outputs
    return outputs or inputs


def _is_sound(
    group: object,
    name: object,
    ins: object,
    outs: object,
    in_types: object,
    out_types: object,
) -> bool:
    return (
        isinstance(group, list | tuple)
        and len(group) == 2
        and all(isinstance(part, str) for part in group)
        and isinstance(name, str)
        and all(map(_is_shapes, (ins, outs)))
        and all(map(_is_names, (in_types, out_types)))
    )


def _is_shapes(value: object) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(shape, list | tuple)
        and len(shape) < _MOST_DIMENSIONS
        and all(type(size) is int and 0 <= size < 1 << 62 for size in shape)
        for shape in value
    )


def _is_names(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(n, str) for n in value)


_MOST_DIMENSIONS = 64


def _tensors(
    shapes: Iterable[Sequence[int]], dtypes: Sequence[str]
) -> tuple[Tensor, ...]:
    """Tensors that are there: those a rank has no use for are recorded as undefined."""
    found = []
    for position, shape in enumerate(shapes):
        dtype = dtypes[position] if position < len(dtypes) else ""
        if dtype != _UNDEFINED:
            known = _DTYPES.get(dtype, dtype[:32].lower() or "unknown")
            found.append(Tensor(tuple(shape), known))
    return tuple(found)
