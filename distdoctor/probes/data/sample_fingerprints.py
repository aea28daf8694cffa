"""Makes fingerprints of samples, from a batch's rows or from a dataset's content.

Nothing of the user's is called: no dataset is asked for a sample, and values are read
only of types whose reading has no effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor

from distdoctor.model.observations.data import Held
from distdoctor.probes.fingerprints import exact

MOST_ROW_BYTES = 64 * 1024
"""Of a sample's part of a tensor; of a larger one, evenly spread pieces are taken.

Source: measured, 4 µs for 64 KiB; a picture of 600 KB takes 24, and by pieces 16.
"""

PIECES = 16
"""Pieces of a larger row, together of `MOST_ROW_BYTES` / 4."""

HELD_ROWS = 16
"""Rows of a dataset's attributes that are told, evenly spread."""

MOST_BAGGED = 20_000
"""Rows of which all are taken, to tell the same samples in another order."""

MOST_BAGGED_BYTES = 32 * 1024 * 1024
"""The same, in bytes."""

_MASK = (1 << 64) - 1
_FACTOR = 0x9E3779B97F4A7C15  # 2**64 / the golden ratio, odd: order counts
_MOST_LEAVES = 32
_DEEPEST = 4
_PLAIN = (str, int, float, bool, bytes)


def of_samples(batch: object, count: int | None) -> tuple[int, ...] | None:
    """A fingerprint of each sample of a batch.

    Args:
        batch: As a loader gives it: tensors, arrays, texts and numbers, nested.
        count: Number of its samples; None: as many as its first tensor has rows.

    Returns:
        None if no part of it has so many rows.
    """
    if count is None:
        count = next(_rows_of_tensors(batch, 0), None)
    if not count:
        return None
    together = [0] * count
    found = 0
    for part in _parts(batch, count, 0):
        for at, print_ in enumerate(part):
            together[at] = (together[at] * _FACTOR + print_) & _MASK
        found += 1
        if found == _MOST_LEAVES:
            break
    return tuple(one or 1 for one in together) if found else None


def of_whole(sample: object) -> int | None:
    """A fingerprint of a single sample; None if nothing in it can be read."""
    combined = 0
    for leaf in _leaves(sample, 0):
        print_ = _of_leaf(leaf)
        if print_ is not None:
            combined = (combined * _FACTOR + print_) & _MASK
    return combined or None


def _rows_of_tensors(value: object, depth: int) -> Iterator[int]:
    for leaf in _leaves(value, depth):
        if _is_array(leaf) and len(leaf.shape):
            yield int(leaf.shape[0])


def _inside(value: object) -> list[Any] | None:
    """The parts of a container; None if it is none."""
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | tuple):
        return list(value)
    fields = getattr(value, "__dataclass_fields__", None)
    if fields is not None and hasattr(value, "__dict__"):
        return list(vars(value).values())
    if type(value).__name__ == "BatchEncoding":  # of transformers
        return _inside(getattr(value, "data", None))
    return None


def _leaves(value: object, depth: int) -> Iterator[Any]:
    inside = _inside(value)
    if inside is None:
        yield value
    elif depth < _DEEPEST:
        for part in inside[:_MOST_LEAVES]:
            yield from _leaves(part, depth + 1)


def _is_array(value: object) -> bool:
    if isinstance(value, Tensor):
        return not value.is_nested
    return _is_numpy(value)


def _is_numpy(value: object) -> bool:
    """Told by name: numpy need not be there."""
    kind = type(value)
    return kind.__module__ == "numpy" and kind.__name__ in {"ndarray", "memmap"}


def _parts(value: object, count: int, depth: int) -> Iterator[Sequence[int]]:
    """Fingerprints by sample of each part of a batch."""
    if _is_array(value):
        rows = _of_rows(value, count)
        if rows is not None:
            yield rows
        return
    inside = _inside(value)
    if inside is None or depth >= _DEEPEST:
        return
    if isinstance(value, list | tuple) and _is_list_of_samples(inside, count):
        prints = [of_whole(sample) for sample in inside]
        if None not in prints:
            yield [one or 0 for one in prints]
        return
    for part in inside:
        yield from _parts(part, count, depth + 1)


def _is_list_of_samples(inside: list[Any], count: int) -> bool:
    """Whether a list has a part for each sample, rather than tensors of all samples."""
    if len(inside) != count:
        return False
    arrays = [part for part in inside if _is_array(part) and len(part.shape)]
    return not arrays or any(part.shape[0] != count for part in arrays)


def _of_rows(array: Any, count: int) -> Sequence[int] | None:
    tensor = _as_tensor(array)
    if tensor is None or not tensor.ndim or tensor.shape[0] != count:
        return None
    size = tensor.numel() // count * tensor.element_size()
    if size <= MOST_ROW_BYTES:
        return exact.of_rows(tensor)
    return [_of_pieces(row) for row in tensor]


def _as_tensor(array: Any) -> Tensor | None:
    """A view of an array on the CPU; None: reading it would make a device wait.

    None, too, of a tensor that only stands for others, as a DTensor does: its samples
    are those of several ranks.
    """
    if isinstance(array, Tensor):
        known = array.device.type == "cpu" and array.layout is torch.strided
        own = exact.local(array) is array and exact.has_memory(array)
        return array.detach() if known and own and not array.is_quantized else None
    if array.dtype.hasobject or array.dtype.kind not in "biufc":
        return None
    if not array.flags.writeable:  # torch would warn
        array = array.copy()
    try:
        return torch.as_tensor(array)
    except TypeError:  # a dtype that torch has not
        return None


def _of_pieces(row: Tensor) -> int:
    data = exact.bytes_of(row)
    size = MOST_ROW_BYTES // 4 // PIECES
    last = len(data) - size
    begins = [last * piece // (PIECES - 1) for piece in range(PIECES)]
    return exact.of_bytes(b"".join([data[at : at + size] for at in begins]))


def _of_leaf(leaf: Any) -> int | None:
    if _is_array(leaf):
        tensor = _as_tensor(leaf)
        if tensor is None:
            return None
        large = tensor.numel() * tensor.element_size() > MOST_ROW_BYTES
        return _of_pieces(tensor) if large else exact.of_tensor(tensor)
    return exact.of_value(leaf) if isinstance(leaf, _PLAIN) else None


# --- what a dataset holds ---


def held_by(dataset: object, length: int, number: int) -> Held | None:
    """Fingerprints of a dataset's stored samples; None if none are found.

    Args:
        dataset: Only its own attributes are read.
        length: Of the dataset.
        number: The dataset's number in observations.
    """
    names: list[str] = []
    rows: list[int] = []
    bags: list[int] = []
    spread = [at * (length - 1) // (HELD_ROWS - 1) for at in range(HELD_ROWS)]
    for name, column in _columns(dataset):
        if length < 2 or len(column) != length or len(names) == _MOST_LEAVES:
            continue
        prints = _of_items(column, spread)
        if prints is None:
            continue
        names.append(name)
        rows += prints
        bags.append(_bag(column))
    if not names:
        return None
    return Held(
        number=number,
        length=length,
        names=tuple(names),
        rows=tuple(rows),
        bags=tuple(bags),
    )


def _columns(dataset: object) -> Iterator[tuple[str, Any]]:
    if type(dataset) in {list, tuple}:
        yield "", dataset
        return
    for name, value in list(getattr(dataset, "__dict__", {}).items()):
        if type(value) in {list, tuple} and value and all(map(_is_array, value[:4])):
            for at, part in enumerate(value[:_MOST_LEAVES]):
                if _is_array(part) and len(part.shape):
                    yield f"{name}.{at}", part
        elif type(value) is dict:
            for key, part in list(value.items())[:_MOST_LEAVES]:
                if _is_column(part):
                    yield f"{name}.{key}", part
        if _is_column(value):
            yield name, value


def _is_column(value: Any) -> bool:
    if _is_array(value):
        return bool(len(value.shape))
    return type(value) in {list, tuple}


def _of_items(column: Any, places: Sequence[int]) -> list[int] | None:
    prints: list[int] = []
    for at in places:
        item = _of_item(column[at], 0)
        if item is None:
            return None
        prints.append(item)
    return prints


def _of_item(item: Any, depth: int) -> int | None:
    """A fingerprint of one row; None if it is of a kind whose meaning is not known.

    Of paths the last part alone counts: ranks may have their own copies of the files.
    """
    if isinstance(item, str):
        return exact.of_value(item.rsplit("/", 1)[-1])
    if isinstance(item, PurePath):
        return exact.of_value(item.name)
    if _is_array(item) or isinstance(item, _PLAIN):
        return _of_leaf(item)
    if type(item).__module__ == "numpy" and hasattr(item, "item"):
        return exact.of_value(item.item())
    inside = _inside(item)
    if inside is None or depth >= _DEEPEST:
        return None
    combined = 0
    for part in inside:
        print_ = _of_item(part, depth + 1)
        if print_ is None:
            return None
        combined = (combined * _FACTOR + print_) & _MASK
    return combined


def _bag(column: Any) -> int:
    """All rows of a column, whatever their order; 0 if that would take long."""
    count = len(column)
    if count > MOST_BAGGED:
        return 0
    if _is_array(column):
        # Of a file in memory, only what is read is loaded.
        small = column.nbytes <= MOST_BAGGED_BYTES
        tensor = None
        if small and type(column).__name__ != "memmap":
            tensor = _as_tensor(column)
        return 0 if tensor is None else sum(exact.of_rows(tensor)) & _MASK
    total = 0
    for item in column:
        if _is_array(item):  # may be large, and is not needed to tell lists of names
            return 0
        print_ = _of_item(item, 0)
        if print_ is None:
            return 0
        total += print_
    return total & _MASK
