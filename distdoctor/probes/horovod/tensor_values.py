"""Tensors of TensorFlow in what programs hand on: found in it, and where they lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_DEEPEST = 16


def leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    """What is in nested containers, in the order in which TensorFlow numbers it.

    Args:
        value: A tensor, or dictionaries, lists and tuples of such.
        depth: How many containers it is in already.

    Yields:
        Whatever is no container, and not None.
    """
    if depth > _DEEPEST or value is None:
        return
    if isinstance(value, dict):
        for name in sorted(value, key=str):
            yield from leaves(value[name], depth + 1)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from leaves(one, depth + 1)
    else:
        yield value


def is_on_gpu(tensor: Any) -> bool:
    """Whether to read its values is to wait for a GPU."""
    return "GPU" in str(tensor.device)
