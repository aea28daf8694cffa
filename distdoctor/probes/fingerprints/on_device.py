"""Computes fingerprints of tensors by torch operations, on their own device.

The bytes are taken as 64-bit words. Each word of a small tensor is mixed with its
place, and of a large one the sums of rows and of columns are. All is arithmetic of
whole numbers modulo 2**64, so that neither the number of threads nor the device makes
a difference.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_ROW = 4096  # words
_ROWS = 32  # of a part: 1 MiB, so that the second sum finds it in the cache
_MIX = -7046029254386353131  # odd: the golden ratio in 64 bits
_STIR = -4658895280553007687
_SIZE = 0x51B54A32D192ED03


def sums(tensors: Sequence[Tensor]) -> Tensor:
    """A fingerprint of each tensor: [tensors] int64, on their device.

    Thousands of small tensors cost one handful of operations together.

    Args:
        tensors: At least one; strided, with memory, all on one device.
    """
    words = [_words(tensor) for tensor in tensors]
    small = [n for n, one in enumerate(words) if one.numel() <= _ROW]
    found = torch.empty(len(words), dtype=torch.int64, device=words[0].device)
    if small:
        at = _numbers(small, found.device)
        found[at] = _of_small([words[n] for n in small])
    for n, one in enumerate(words):
        if one.numel() > _ROW:
            found[n] = _of_large(one)
    sizes = _numbers([tensor.nbytes for tensor in tensors], found.device)
    return found + sizes * _SIZE


def _numbers(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Whole numbers on a device: [numbers] int64.

    From memory that is not pinned, the copy would wait for all that the GPU has to do.
    """
    pinned = device.type == "cuda"
    made = torch.tensor(numbers, dtype=torch.int64, device="cpu", pin_memory=pinned)
    return made.to(device, non_blocking=True)


def _words(tensor: Tensor) -> Tensor:
    """A tensor's bytes as int64, filled up with zeros: [words]."""
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.dtype is torch.bool or flat.is_complex():
        flat = flat.view(torch.uint8) if flat.dtype is torch.bool else _real(flat)
    rest = -flat.nbytes % 8
    if rest or flat.storage_offset() * flat.element_size() % 8:
        data = flat.view(torch.uint8)
        flat = torch.cat([data, data.new_zeros(rest)])
    return flat.view(torch.int64)


def _real(flat: Tensor) -> Tensor:
    return torch.view_as_real(flat).reshape(-1)


def _stirred(words: Tensor, places: Tensor) -> Tensor:
    """Words, each changed by its place beyond recognition: [words] int64.

    A product alone would lose the sign of a number: 2**63 times any even one is 0.
    """
    mixed = words + places * _MIX
    mixed = (mixed ^ (mixed >> 29)) * _STIR
    return mixed ^ (mixed >> 32)


def _total(words: Tensor, salt: int) -> Tensor:
    """One number for words in their order: a scalar int64."""
    begin, end = salt << 48, (salt << 48) + words.numel()
    return _stirred(words, torch.arange(begin, end, device=words.device)).sum()


def _of_small(words: Sequence[Tensor]) -> Tensor:
    """Each word by its place in its tensor: [tensors] int64."""
    flat = torch.cat(list(words))
    counts = _numbers([one.numel() for one in words], flat.device)
    ends = counts.cumsum(0)
    begins = (ends - counts).repeat_interleave(counts, output_size=flat.numel())
    places = torch.arange(flat.numel(), device=flat.device) - begins
    running = torch.cat([flat.new_zeros(1), _stirred(flat, places).cumsum(0)])
    return running[ends] - running[ends - counts]


def _of_large(words: Tensor) -> Tensor:
    """Sums of rows and of columns, and the rest word by word: a scalar int64."""
    full = words.numel() // _ROW * _ROW
    rows, rest = words[:full].view(-1, _ROW), words[full:]
    by_row = words.new_empty(rows.shape[0])
    by_column = words.new_zeros(_ROW)
    for begin in range(0, rows.shape[0], _ROWS):
        part = rows[begin : begin + _ROWS]
        torch.sum(part, 1, out=by_row[begin : begin + _ROWS])
        by_column += part.sum(0)
    return _total(by_row, 1) + _total(by_column, 2) + _total(rest, 3)
