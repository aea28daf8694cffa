"""Tells accumulation over several batches from several losses on one batch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType

from torch import Tensor

from distdoctor.probes.accumulation.backward_passes import Account, BackwardPass, latest

_SHOWN = 64  # labels of a batch by which it is told from another


def stack() -> int:
    """A hash of the whole call stack, equal in each iteration of one loop."""
    found = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found = hash((found, id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return found


def batches_of(account: Account) -> tuple[int, bool]:
    """How many batches a window has (0: unknown), and if they are parts of one."""
    passes, now = account.passes, latest()
    numbers = {one.batch[0] for one in passes}
    if len(numbers) != 1 or now[0] not in numbers:
        return 0, False  # several loaders take turns, or an epoch ended
    batches = len({one.batch for one in passes})
    if batches > 1:
        return batches, False
    known = account.mark[0] == now[0]
    given = now[1] - account.mark[1] * known
    if known and given == len(passes):
        return given, False  # they were fetched all at once
    if _are_parts(passes):
        return len(passes), True
    # More were fetched at once, or no loader gives them.
    if (given == 0 or given >= len(passes)) and (
        not account.strange and are_others(passes)
    ):
        return len(passes), False
    return 0, False


def _are_parts(passes: list[BackwardPass]) -> bool:
    """Whether the labels of passes are one tensor, split without a rest."""
    labels = [one.main.target for one in passes]
    known = [one for one in labels if one is not None and one.is_contiguous()]
    if len(known) != len(passes):
        return False
    storages = {one.untyped_storage().data_ptr() for one in known}
    if len(storages) != 1 or len({one.dtype for one in known}) != 1:
        return False
    end = 0
    for one in sorted(known, key=Tensor.storage_offset):
        if one.storage_offset() != end or not one.numel():
            return False
        end += one.numel()
    return end * known[0].element_size() == known[0].untyped_storage().nbytes()


def are_others(passes: Sequence[BackwardPass]) -> bool:
    """Whether a loop computes the same losses on one batch after the other.

    Several losses on one batch have one and the same labels, or are called at several
    lines, or train parameters of their own; those of an adversary have labels that are
    all alike.
    """
    labels = [one.main.target for one in passes]
    known = [one for one in labels if one is not None and one.is_cpu]
    if len(known) != len(passes):
        return False
    if len({(one.stack, one.changed) for one in passes}) != 1:
        return False
    if len({(one.data_ptr(), one.numel()) for one in known}) != len(known):
        return False
    shown = [tuple(one.reshape(-1)[:_SHOWN].tolist()) for one in known]
    return len(set(shown)) > 1 and not all(len(set(one)) == 1 for one in shown)


def are_turns(passes: Sequence[BackwardPass]) -> bool:
    """Whether one loop runs all passes, on labels not known to be the same.

    An input that is changed by its gradient keeps its labels.
    """
    known = [one.main.target for one in passes if one.main.target is not None]
    where = {(one.data_ptr(), one.numel()) for one in known}
    return len({one.stack for one in passes}) == 1 and (
        len(known) < len(passes) or len(where) == len(passes)
    )
