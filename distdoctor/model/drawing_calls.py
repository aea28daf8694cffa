"""Words of drawings that tell a call: `all_reduce(4,op=max)/tp@train.py:12&...`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from typing import Any
from urllib.parse import quote, unquote

from distdoctor.model.events import SETUP, STORE, WORLD, Call, Place, State, Tensor
from distdoctor.model.layers import LAYERS
from distdoctor.model.operations import CODE_OF, OPERATIONS, REDUCE_OPS, Operation


def _joined(numbers: Iterable[int], separator: str = "/") -> str:
    return separator.join(map(str, numbers))


def _numbers(text: str, separator: str = "/") -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(separator) if number)


def _one_of(known: Collection[str]) -> Callable[[str], str]:
    return {name: name for name in known}.__getitem__


_QUOTED = (
    lambda text: tuple(map(unquote, text.split("+"))),
    lambda names: "+".join(map(quote, names)),
)
_OPTIONS: dict[str, tuple[str, object, Callable[[str], Any], Callable[[Any], str]]] = {
    "op": ("reduce_op", "sum", _one_of(REDUCE_OPS), str),
    "root": ("root", 0, int, str),
    "peer": ("peer", None, int, str),
    "tag": ("tag", 0, int, str),
    "sent": ("sent", None, _numbers, _joined),
    "received": ("received", None, _numbers, _joined),
    "names": ("names", (), *_QUOTED),
    "by": ("layer", "", _one_of(LAYERS), str),
}
"""By key: the field of a call, what goes without saying, how to read and to write it.

"sent" and "received" are the parts of its splits.
"""

_FLAGS = {"&": "asynchronous", "'": "unused", "~": "failing", "+": "batched"}

_ENDINGS = {
    State.DONE: "",
    State.WAITING: "...",
    State.INSIDE: "...inside",
    State.ISSUED: "...issued",
    State.REFUSED: "!",
    State.RAISED: "^",
}
_STATES = {ending: state for state, ending in _ENDINGS.items()}


def read(
    rank: int, match: re.Match[str], place: Place | None, ordinals: dict[str, int]
) -> Call:
    """The call that a word tells.

    Args:
        rank: Whose it is.
        match: Of the word; its name is that of an operation.
        place: Its line.
        ordinals: How many collectives there were before, by group; is counted on.

    Raises:
        KeyError: There is no such option, or it has no such value.
        ValueError: A number is none.
    """
    operation = OPERATIONS[CODE_OF[match["name"]]]
    group = match["group"] or _usual_group(operation)
    given: dict[str, Any] = {f: flag in match["flags"] for flag, f in _FLAGS.items()}
    for part in filter(None, (match["tensors"] or "").split(",")):
        key, equals, value = part.partition("=")
        if equals:
            field, _, read_value, _ = _OPTIONS[key]
            given[field] = read_value(value)
        else:
            given["tensors"] = tuple(map(_tensor, part.split("+")))
    if "sent" in given or "received" in given:
        given["splits"] = given.pop("sent"), given.pop("received")
    if "reduce" in operation.name:
        given.setdefault("reduce_op", "sum")
    given["root"] = given.get("root", 0) if operation.is_rooted else None
    if operation.is_collective:
        ordinals[group] = given["ordinal"] = ordinals.get(group, 0) + 1
    callers = [part.rpartition(":") for part in (match["callers"] or "").split("<")]
    return Call(
        rank=rank,
        op=operation.name,
        group=group,
        state=_STATES[match["end"] or ""],
        place=place,
        callers=tuple(Place(file, int(line)) for file, _, line in callers if file),
        thread=int(match["thread"] or 0),
        entered_ms=int(match["entered"] or 0),
        **given,
    )


def write(call: Call, where: str) -> str:
    """The word for a call.

    Args:
        call: The call.
        where: Its place as words have it; "": it is not to be written.
    """
    options = ["+".join(map(_tensor_text, call.tensors))] if call.tensors else []
    splits = dict(zip(("sent", "received"), call.splits or (None, None), strict=True))
    for key, (field, usual, _, write_value) in _OPTIONS.items():
        value = splits[key] if key in splits else getattr(call, field)
        if value is not None and value != usual:
            options.append(f"{key}={write_value(value)}")
    usual = _usual_group(OPERATIONS[CODE_OF[call.op]])
    return "".join(
        [
            call.op,
            f"({','.join(options)})" if options else "",
            "" if call.group == usual else f"/{call.group}",
            "<".join([where, *map(str, call.callers)]) if where else "",
            *(flag for flag, field in _FLAGS.items() if getattr(call, field)),
            _ENDINGS[call.state],
            f"%{call.thread}" if call.thread else "",
        ]
    )


def _tensor(text: str) -> Tensor:
    shape, _, dtype = text.partition(":")
    return Tensor(_numbers(shape.replace("-", ""), "x"), dtype or "float32")


def _tensor_text(tensor: Tensor) -> str:
    dtype = "" if tensor.dtype == "float32" else f":{tensor.dtype}"
    return f"{_joined(tensor.shape, 'x') or '-'}{dtype}"


def _usual_group(operation: Operation) -> str:
    if not operation.sets_up:
        return WORLD
    return SETUP if operation.is_collective else STORE
