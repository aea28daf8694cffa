"""Tells which backend serves a process group on the devices of this job."""

from __future__ import annotations

import torch
import torch.distributed as dist

_UNDEFINED = "undefined"
"""What torch answers for a group that was made without naming a backend."""


def backend_of(group: dist.ProcessGroup | None = None) -> str:
    """The backend of a group; None: of the default one.

    Raises:
        ValueError: This rank is not in the group, or torch does not know it.
    """
    name = str(dist.get_backend(group))
    if name != _UNDEFINED:
        return name
    pairs = (one.partition(":") for one in dist.get_backend_config(group).split(","))
    by_device = {device: backend for device, _, backend in pairs}
    return by_device.get("cuda" if torch.cuda.is_available() else "cpu", name)
