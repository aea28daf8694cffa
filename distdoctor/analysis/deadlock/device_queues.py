"""Collectives that all members have given to their devices, in other orders.

A device that is given calls one behind the other begins the next when the one before is
over, unless its rank takes care that they run side by side. So a call that each member
has made may still wait for a device that has it behind another.
"""

from __future__ import annotations

from collections.abc import Iterable

from distdoctor.analysis.deadlock.wait_for_graph import Wait
from distdoctor.model.run import Run


def queued(run: Run, complete: Iterable[int]) -> list[Wait]:
    """Waits for ranks whose device has not begun a call that all members have made.

    Args:
        run: Of which recorders tell; see `Run.on_devices`.
        complete: Rows of open calls that all members have made.

    Returns:
        Of each rank at most one: what its device is at.
    """
    devices = run.on_devices
    first: dict[int, int] = {}
    behind: dict[tuple[int, int], set[int]] = {}
    keys = run.calls[["rank", "group", "ordinal"]][devices.rows].tolist()
    rows = devices.rows.tolist()
    for row, begun, key in zip(rows, devices.begun.tolist(), keys, strict=True):
        rank, *call = key
        if first.setdefault(rank, row) != row and not begun:
            behind.setdefault((call[0], call[1]), set()).add(rank)
    if not behind:
        return []
    at = set(first.values()).intersection(complete)
    missing = {call: frozenset(ranks) for call, ranks in behind.items()}
    return [
        Wait(key[0], row, missing[key[1:]])
        for row, key in zip(rows, keys, strict=True)
        if row in at and key[1:] in missing
    ]
