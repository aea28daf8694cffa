"""Fingerprints of tensors: 64 bits that change with any bit, and with any order.

On the CPU XXH3 is used, which reads about as fast as memory gives. Where the job's
environment lacks it, BLAKE2b of Python's own takes its place for little data and sums
in torch for much. On another device the sums are made there, and nobody waits for
them. Fingerprints of different ways are never equal, and must not be compared; they
tell equal bits, not equal values: 0.0 and -0.0 differ.

Source: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md, XXH3 64 bits;
RFC 7693.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from distdoctor.probes.fingerprints.on_device import sums


def _slow_hash(data: Any, seed: int = 0) -> int:
    key = seed.to_bytes(8, "little")
    return int.from_bytes(blake2b(data, digest_size=8, key=key).digest(), "little")


_hash: Callable[..., int] = _slow_hash
with suppress(ImportError):
    from xxhash import xxh3_64_intdigest

    _hash = xxh3_64_intdigest

EMPTY = _hash(b"")
"""Of what has no bytes."""

_COPIED = 4096  # bytes up to which a copy costs less than a view

_MUCH = 65_536  # bytes from which on sums in torch are faster than BLAKE2b


def of_tensor(tensor: Tensor) -> int:
    """A fingerprint of a tensor's elements in order, without dtype and shape.

    Args:
        tensor: With memory; of a dense layout, or it is made dense. Of a DTensor the
            local part counts.

    Raises:
        RuntimeError, NotImplementedError: It has none: a meta or fake tensor, or one
            whose memory was given back.
    """
    if not tensor.is_cpu:
        return pending([tensor]).result()[0]
    tensor = local(tensor)
    plain = type(tensor) in _PLAIN and tensor.layout is torch.strided
    if plain and tensor.is_contiguous() and 0 < tensor.nbytes <= _COPIED:
        return _hash(ctypes.string_at(_address(tensor), tensor.nbytes))
    data = bytes_of(tensor)
    if not len(data):
        return EMPTY
    if _hash is _slow_hash and len(data) >= _MUCH:
        return int(sums([_dense(tensor)]).item()) & _MASK
    return _hash(data)


_PLAIN = {Tensor, torch.nn.Parameter}

_MASK = 2**64 - 1


def of_tensors(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Fingerprints of several tensors."""
    return pending(tensors).result()


def of_rows(tensor: Tensor, seed: int = 0) -> tuple[int, ...]:
    """A fingerprint of each slice of a tensor along its first dimension.

    Args:
        tensor: With at least one dimension.
        seed: Seed of the hash; that of an earlier part of the same sample joins them.
    """
    data = bytes_of(tensor)
    count = tensor.shape[0]
    size = len(data) // count if count else 0
    return tuple(
        _hash(data[at : at + size], seed) for at in range(0, size * count, size or 1)
    )


def of_bytes(data: bytes | memoryview[Any]) -> int:
    """A fingerprint of some bytes."""
    return _hash(data)


def of_value(value: object) -> int:
    """A fingerprint of a small Python value, by its `repr`."""
    return _hash(repr(value).encode("utf-8", "replace"))


def joined(numbers: Sequence[int]) -> int:
    """One fingerprint of several fingerprints, in order."""
    return _hash(b"".join(number.to_bytes(8, "little") for number in numbers))


def bytes_of(tensor: Tensor) -> memoryview[Any]:
    """A tensor's elements as bytes; copied if not contiguous, or on a device."""
    with torch.no_grad():
        flat = _dense(tensor).detach().cpu().contiguous().reshape(-1)
        if flat.stride(0) != 1:  # a single element may have any
            flat = flat.clone(memory_format=torch.contiguous_format)
        return _view(flat)


def local(tensor: Tensor) -> Tensor:
    """The local part of a DTensor; any other tensor as it is."""
    if type(tensor) in _PLAIN:  # most are
        return tensor
    part = getattr(tensor, "_local_tensor", tensor)
    return part if isinstance(part, Tensor) else tensor


def has_memory(tensor: Tensor) -> bool:
    """Whether there is something to read: FSDP frees parameters that it gathered."""
    part = local(tensor)
    return not part.numel() or part.layout is not torch.strided or bool(part.data_ptr())


def _dense(tensor: Tensor) -> Tensor:
    if tensor.layout is torch.strided:
        return tensor
    return tensor.coalesce().values() if tensor.is_sparse else tensor.to_dense()


def _view(flat: Tensor) -> memoryview[Any]:
    """A contiguous tensor's memory, without numpy, which need not be there."""
    size = flat.numel() * flat.element_size()
    view = _memory(_address(flat) if size else 0, size)
    vars(view.obj)["tensor"] = flat  # lives as long as the view
    return view


def _address(tensor: Tensor) -> int:
    """Where the elements of a tensor with some begin.

    Raises:
        RuntimeError: Its memory was given back, as FSDP does with gathered parameters.
    """
    address = tensor.data_ptr()
    if not address:
        raise RuntimeError("the tensor's memory was given back")
    return address


def _memory(address: int, size: int) -> memoryview[Any]:
    buffer = (ctypes.c_ubyte * size).from_address(address)
    return memoryview(buffer).cast("B")


class Heads:
    """The first bytes of some CPU tensors, as a cheap fingerprint to take repeatedly.

    That is far cheaper than to read all of them, and sees what changes whole tensors.

    Args:
        size: Bytes of each tensor.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._addresses: list[int] = []
        self._parts: list[ctypes.Array[ctypes.c_ubyte]] = []
        self._kinds: dict[int, type[ctypes.Array[ctypes.c_ubyte]]] = {}

    def print_of(self, tensors: Sequence[Tensor | None]) -> int:
        """One fingerprint of all; None and empty tensors are left out.

        Args:
            tensors: On the CPU and strided; the same in number each time.
        """
        addresses = [0 if one is None else one.data_ptr() for one in tensors]
        # Memory may be given back and taken again; what is read is always the
        # tensors' of now.
        if addresses != self._addresses:
            self._parts = self._see(addresses, tensors)
            self._addresses = addresses
        return _hash(b"".join(self._parts))

    def _see(
        self, addresses: Sequence[int], tensors: Sequence[Tensor | None]
    ) -> list[ctypes.Array[ctypes.c_ubyte]]:
        """Their first bytes where they lie; most gradients move at each step."""
        parts, kinds = [], self._kinds
        for address, tensor in zip(addresses, tensors, strict=True):
            if address and tensor is not None:
                size = min(self._size, tensor.nbytes)
                kind = kinds.get(size)
                if kind is None:
                    kind = kinds[size] = ctypes.c_ubyte * size
                parts.append(kind.from_address(address))
        return parts


# --- without waiting for a device ---


class PendingFingerprint:
    """Fingerprints that a device may still be computing."""

    def __init__(self, here: list[int], copied: Tensor | None, event: Any) -> None:
        self._here, self._copied, self._event = here, copied, event

    def ready(self) -> bool:
        """Whether `result` returns without waiting."""
        return self._event is None or bool(self._event.query())

    def result(self) -> tuple[int, ...]:
        """The fingerprints; waits for the device if necessary."""
        if self._copied is None:
            return tuple(self._here)
        if self._event is not None:
            self._event.synchronize()
        there = iter(self._copied.tolist())
        return tuple(next(there) & _MASK if n < 0 else n for n in self._here)


def pending(tensors: Sequence[Tensor]) -> PendingFingerprint:
    """Start fingerprints of several tensors, without waiting for a GPU."""
    away = [tensor for tensor in tensors if not tensor.is_cpu]
    here = [of_tensor(tensor) if tensor.is_cpu else -1 for tensor in tensors]
    if not away:
        return PendingFingerprint(here, None, None)
    with torch.no_grad():
        made = sums([_dense(local(tensor)) for tensor in away])
        if not made.is_cuda:
            return PendingFingerprint(here, made.cpu(), None)
        # The job may have made another device the default one.
        copied = torch.empty(
            made.shape, dtype=torch.int64, device="cpu", pin_memory=True
        )
        copied.copy_(made, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
    return PendingFingerprint(here, copied, event)
