"""What the first simulated rank of a group received, kept for those that follow.

Values are kept as plain data: numbers, texts, and the elements of tensors and arrays.
Reading them runs no code, whoever has written the file. What is neither plain nor made
of plain parts is not kept, and ranks that follow go on with a value of their own.
"""

from __future__ import annotations

import base64
import json
import math
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from distdoctor.journal.private_files import append_line, open_private

_LARGEST_FILE = 16 * 1024 * 1024  # of one group's values
_LARGEST_TENSOR = 1024 * 1024  # bytes
_DEEPEST = 64  # of values in values

_DAMAGED = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


class NotPlain(TypeError):
    """A value that is not made of plain data alone."""


class GroupValues:
    """The values of a group's calls, in their order.

    Args:
        path: The file that they are in; who finds none is the first, and writes it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._first = not os.path.lexists(path)
        self._known = [] if self._first else list(_read(path))
        self._next = 0
        self._size = 0

    def agree(self, kind: str, mine: Any, own: bool) -> tuple[Any, bool]:
        """The value this call is to give, and whether a simulated rank sent it.

        Args:
            kind: What kind of value; another kind is no stand-in.
            mine: What this rank would get if all were like it; None if it is large.
            own: Whether this rank's value is what the others get.

        Raises:
            OSError: It is to be kept, and cannot be.
        """
        number = self._next
        self._next += 1
        if self._first and self._size < _LARGEST_FILE:
            try:
                value = as_plain(mine)
            except NotPlain:
                value = None
            line = json.dumps({"kind": kind, "own": own, "value": value})
            self._size += len(line)
            append_line(self._path, line, below=2)
        if not self._first and not own and number < len(self._known):
            known, theirs, sent = self._known[number]
            if known == kind and theirs is not None:
                return theirs, sent
        return mine, own


def _read(path: Path) -> Iterator[tuple[str, Any, bool]]:
    with suppress(OSError):
        number = open_private(path, os.O_RDONLY, below=2)
        with open(number, encoding="ascii", errors="replace") as file:  # noqa: PTH123
            for line in file.read(4 * _LARGEST_FILE).splitlines():
                kind, value, own = "", None, False  # none is left out: they are counted
                with suppress(*_DAMAGED):
                    kept = json.loads(line)
                    kind, own = str(kept["kind"]), bool(kept["own"])
                    value = of_plain(kept["value"])
                yield kind, value, own


def as_plain(value: Any, depth: int = 0) -> Any:
    """A value as `of_plain` reads it, of what JSON has.

    Args:
        value: Anything.
        depth: How many values it lies in.

    Raises:
        NotPlain: It cannot be told so.
    """
    if depth > _DEEPEST:
        raise NotPlain("it is nested too deeply, or holds itself")
    kind: type = type(value)
    if value is None or kind in {bool, int, float, str}:
        return value
    if kind is list:
        return [as_plain(part, depth + 1) for part in value]
    if kind in _SEQUENCES:
        return {_SEQUENCES[kind]: [as_plain(part, depth + 1) for part in value]}
    if kind in _MAPPINGS:
        items = (value if kind is dict else vars(value)).items()
        return {
            _MAPPINGS[kind]: [
                [as_plain(name, depth + 1), as_plain(part, depth + 1)]
                for name, part in items
            ]
        }
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, Path):
        return {"path": str(value)}
    if kind is torch.Tensor:
        return {"tensor": _of_tensor(value)}
    return _of_numpy(value, kind)


def of_plain(told: Any) -> Any:
    """The value that `as_plain` has told.

    Args:
        told: What JSON has.

    Raises:
        ValueError: It tells none; or another of the errors of damaged data.
    """
    if isinstance(told, list):
        return [of_plain(part) for part in told]
    if not isinstance(told, dict):
        return told
    ((what, data),) = told.items()
    return _MADE_OF[what](data)


_SEQUENCES: dict[type, str] = {
    tuple: "tuple",
    torch.Size: "tuple",
    set: "set",
    frozenset: "frozenset",
}
_MAPPINGS: dict[type, str] = {
    dict: "dict",
    Namespace: "namespace",
    SimpleNamespace: "simple namespace",
}


def _of_tensor(tensor: torch.Tensor) -> list[Any]:
    size = tensor.numel() * tensor.element_size()
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise NotPlain("a tensor that is no array")
    if size > _LARGEST_TENSOR or tensor.is_meta:
        raise NotPlain("a tensor that is too large, or has no elements")
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    data = bytes(flat.view(torch.uint8).tolist()) if size else b""
    name = str(tensor.dtype).removeprefix("torch.")
    return [name, list(tensor.shape), base64.b64encode(data).decode()]


def _tensor(told: Any) -> torch.Tensor:
    name, shape, text = told
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name} is no dtype")
    data = base64.b64decode(text)
    if math.prod(shape) * dtype.itemsize != len(data) or min(shape, default=0) < 0:
        raise ValueError("the elements of a tensor are not all there")
    if not data:
        return torch.empty(shape, dtype=dtype)
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return flat.view(dtype).reshape(shape)


def _of_numpy(value: Any, kind: type) -> dict[str, Any]:
    """An array or a number of numpy, if the job uses that."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and (kind is numpy.ndarray or issubclass(kind, numpy.generic)):
        with suppress(TypeError, RuntimeError, ValueError):  # not a dtype of torch's
            array = numpy.array(value)  # its own: others may be read-only
            what = "array" if kind is numpy.ndarray else "number"
            return {what: _of_tensor(torch.from_numpy(array))}
    raise NotPlain(f"{kind.__name__} is no plain data")


def _pairs(told: Any) -> dict[Any, Any]:
    return {of_plain(name): of_plain(part) for name, part in told}


_MADE_OF: dict[str, Callable[[Any], Any]] = {
    "tuple": lambda told: tuple(map(of_plain, told)),
    "set": lambda told: set(map(of_plain, told)),
    "frozenset": lambda told: frozenset(map(of_plain, told)),
    "dict": _pairs,
    "namespace": lambda told: Namespace(**_pairs(told)),
    "simple namespace": lambda told: SimpleNamespace(**_pairs(told)),
    "bytes": base64.b64decode,
    "path": Path,
    "tensor": _tensor,
    "array": lambda told: _tensor(told).numpy(),
    "number": lambda told: _tensor(told).numpy()[()],
}
