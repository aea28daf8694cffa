"""What takes the place of CUDA where a job runs without GPUs, and what that hides.

The probes write the names, the report tells the rest.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Substitute:
    """One thing that a GPU would have done, and what did it instead."""

    what: str
    by: str
    hides: str = ""  # what the job therefore cannot show; empty: nothing of weight


SUBSTITUTES = {
    "devices": Substitute(
        "CUDA devices", "the CPU", "kernels and their speed, tensors on two devices"
    ),
    "nccl": Substitute("NCCL", "gloo", "NCCL's own behaviour"),
    "streams": Substitute("streams", "one order", "races between streams"),
    "memory": Substitute("memory statistics", "zeros", "a lack of device memory"),
    "properties": Substitute("device properties", "fixed ones"),
    "amp": Substitute(
        "CUDA's autocast and scaler", "the CPU's", "what autocast leaves in float32"
    ),
    "random": Substitute(
        "CUDA's generators", "the CPU's", "random numbers drawn on a device"
    ),
    "pinned": Substitute("pinned memory", "plain memory", "copies that overlap"),
    "batch-norm": Substitute("SyncBatchNorm's kernels", "the same formulas"),
    "replicas": Substitute(
        "DataParallel's replicas", "the module itself", "splitting over devices"
    ),
    "profiling": Substitute("CUDA's profiler", "nothing"),
}
"""By the names that the probes write."""
