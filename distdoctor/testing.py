"""Assertions for tests of distributed code.

    from distdoctor.testing import assert_same_across_ranks, assert_well

Importing this does not import torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


class _Judged(Protocol):
    """What was run and judged: what `check_script` returns."""

    @property
    def verdict(self) -> str:
        """Either sick, well or unknown."""

    @property
    def has_failed(self) -> bool:
        """Whether the job failed by itself."""

    @property
    def text(self) -> str:
        """The report."""


def assert_well(run: _Judged, *, allow_incomplete: bool = False) -> None:
    """Fail with the whole report unless a run is well.

    Args:
        run: What `check_script` returned.
        allow_incomplete: Whether a run will do in which nothing wrong was found but not
            all was seen (verdict unknown); not where the job failed.

    Raises:
        AssertionError: It is not well.
    """
    __tracebackhide__ = True
    passes = allow_incomplete and run.verdict == "unknown" and not run.has_failed
    if run.verdict != "well" and not passes:
        raise AssertionError(f"the run is {run.verdict}, not well\n\n{run.text}")


def assert_same_across_ranks(
    tensor: Tensor, what: str = "the tensor", *, group: ProcessGroup | None = None
) -> None:
    """Fail on every rank unless a tensor is the same on all of them, bit for bit.

    Every rank of the group must call it. NaN equals NaN of the same bits, and 0.0 does
    not equal -0.0. A tensor that differs in shape or dtype, or is none, is told and
    never reaches the backend. Of a DTensor, the local part is compared.

    Args:
        tensor: On any device, of any dtype and shape.
        what: How to call it in the message.
        group: Whose ranks; by default all.

    Raises:
        AssertionError: It is not the same. The text, the same on all ranks, tells which
            ranks differ from the majority, at which index, and by how much.
        RuntimeError: There is no process group, or it is one of torch's fake backend,
            whose ranks never hear of each other.
    """
    __tracebackhide__ = True
    import torch.distributed as dist

    if not dist.is_initialized():
        raise RuntimeError(
            "there is no process group: call assert_same_across_ranks in a test marked "
            "with `ranks`, or after init_process_group"
        )
    if dist.get_backend(group) == "fake":
        raise RuntimeError(
            "ranks of torch's fake backend exchange nothing, so nothing can be said "
            "about their tensors: run this test on real ranks (lane='pool')"
        )
    mine, dense = _look_at(tensor)
    seen: list[_Look] = [mine] * dist.get_world_size(group)
    dist.all_gather_object(seen, mine, group=group)
    if len(set(seen)) == 1 and not mine.trouble:
        return
    usual = max(seen, key=lambda one: (not one.trouble, seen.count(one)))
    difference = ""
    if any(one.differs_inside(usual) for one in seen):
        first = dist.get_process_group_ranks(group)[seen.index(usual)]
        sent = [dense if mine == usual else None]
        dist.broadcast_object_list(sent, src=first, group=group)
        if mine.differs_inside(usual) and dense is not None and sent[0] is not None:
            difference = _difference(dense, sent[0])
    differences = [difference] * len(seen)
    dist.all_gather_object(differences, difference or mine.unlike(usual), group=group)
    members = dist.get_process_group_ranks(group)
    raise AssertionError("\n".join(_lines(what, members, seen, usual, differences)))


@dataclass(frozen=True, slots=True)
class _Look:
    """What one rank has."""

    dtype: str = ""
    shape: tuple[int, ...] = ()
    digest: str = ""
    trouble: str = ""  # why it cannot be compared

    def differs_inside(self, usual: _Look) -> bool:
        """Whether it is of the usual form and has other values."""
        alike = (self.dtype, self.shape) == (usual.dtype, usual.shape)
        return alike and not self.trouble and self.digest != usual.digest

    def unlike(self, usual: _Look) -> str:
        """How its form differs from the usual one; "" if it does not."""
        if self.trouble:
            return self.trouble
        parts = []
        if self.shape != usual.shape:
            parts.append(f"shape {list(self.shape)} instead of {list(usual.shape)}")
        if self.dtype != usual.dtype:
            parts.append(f"dtype {self.dtype} instead of {usual.dtype}")
        return ", ".join(parts)


def _look_at(tensor: object) -> tuple[_Look, Tensor | None]:
    """A tensor's form and digest, and itself on the CPU.

    It never raises: the other ranks are about to wait for this one's answer.
    """
    import torch

    if not isinstance(tensor, torch.Tensor):
        return _Look(trouble=f"{type(tensor).__name__} instead of a tensor"), None
    try:
        with torch.no_grad():
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            dense = local.detach().to_dense() if local.is_sparse else local.detach()
            dense = dense.resolve_conj().resolve_neg().cpu().contiguous()
            digest = hashlib.blake2b(_bytes_of(dense).numpy().data).hexdigest()
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        return _Look(trouble=f"a tensor that cannot be read: {error}"), None
    dtype = str(tensor.dtype).removeprefix("torch.")
    return _Look(dtype, tuple(dense.shape), digest), dense


def _bytes_of(dense: Tensor) -> Tensor:
    """The bytes of a contiguous tensor; [elements * itemsize] uint8."""
    import torch

    return dense.reshape(-1).view(torch.uint8)


def _difference(mine: Tensor, usual: Tensor) -> str:
    """Where and by how much a tensor differs from another of its dtype and shape."""
    import torch

    unequal = _bytes_of(mine) != _bytes_of(usual)
    rows = unequal.reshape(-1, mine.element_size()).any(dim=1).nonzero().flatten()
    flat, flat_usual = mine.reshape(-1), usual.reshape(-1)
    first = int(rows[0])
    here, there = flat[first].item(), flat_usual[first].item()
    bits = " (of other bits)" if repr(here) == repr(there) else ""
    at = [int(index) for index in torch.unravel_index(rows[0], mine.shape)]
    count = f"{len(rows):,} of {mine.numel():,} elements differ"
    text = f"{count}, first at {at}: {here!r} instead of {there!r}{bits}"
    if mine.dtype == torch.bool:
        return text
    wide = torch.complex128 if mine.is_complex() else torch.float64
    gaps = (flat[rows].to(wide) - flat_usual[rows].to(wide)).abs()
    gaps = gaps[gaps.isfinite()]
    return f"{text}; at most by {gaps.max().item():.6g}" if len(gaps) else text


def _lines(
    what: str,
    members: Sequence[int],
    seen: Sequence[_Look],
    usual: _Look,
    differences: Sequence[str],
) -> Iterator[str]:
    """The message: who differs, then a line for all ranks that differ alike."""
    from distdoctor.model.run import named

    same = [rank for rank, one in zip(members, seen, strict=True) if one == usual]
    other = [rank for rank in members if rank not in same]
    if usual.trouble:
        yield f"{what} cannot be compared across ranks"
        same, other = [], list(members)
    elif max(map(seen.count, (one for one in seen if one != usual))) == len(same):
        yield (
            f"{what} differs across ranks; {named(other)} compared with {named(same)}, "
            "which are no majority"
        )
    else:
        yield f"{what} differs across ranks: {named(other)} from {named(same)}"
    folded: dict[tuple[str, str], list[int]] = {}
    for rank, one, words in zip(members, seen, differences, strict=True):
        if rank in other:
            folded.setdefault((one.digest, words), []).append(rank)
    for (_, words), ranks in folded.items():
        yield f"  {named(ranks)}: {words}"
