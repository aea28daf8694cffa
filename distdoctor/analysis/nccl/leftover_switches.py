"""Switches that were set to find a fault, and cost speed as long as they are set."""

from __future__ import annotations

from collections.abc import Iterator

from distdoctor.analysis.nccl.logged_job import LoggedJob, Party, Told, who
from distdoctor.model.findings import Severity

SWITCHES = {
    "NCCL_IB_DISABLE": ("1", "InfiniBand and RoCE are not used"),
    "NCCL_P2P_DISABLE": ("1", "GPUs of a host do not reach each other directly"),
    "NCCL_SHM_DISABLE": ("1", "ranks of a host do not use its shared memory"),
    "NCCL_NET_GDR_DISABLE": ("1", "GPU Direct RDMA is not used"),
    "NCCL_CHECK_POINTERS": ("1", "each pointer of each call is looked up"),
    "NCCL_IGNORE_DISABLED_P2P": ("1", "a broken NVLink is passed over"),
    "NCCL_LAUNCH_MODE": ("GROUP", "kernels are launched together"),
    "CUDA_LAUNCH_BLOCKING": ("1", "each kernel waits for its end"),
    "NCCL_NVLS_ENABLE": ("0", "NVLink SHARP is not used"),
    "NCCL_CUMEM_ENABLE": ("0", "the newer allocator is not used"),
    "NCCL_P2P_LEVEL": ("LOC 0", "GPUs of a host do not reach each other directly"),
    "NCCL_NET_GDR_LEVEL": ("LOC 0", "GPU Direct RDMA is not used"),
    "NCCL_DEBUG": ("TRACE", "each step is printed"),
    "NCCL_BLOCKING_WAIT": ("1", "each call blocks"),
}
"""By name: the values that switch, parted by blanks, and what that does."""

FORCED = {
    "NCCL_ALGO": "NCCL does not choose the algorithm by the size of a call",
    "NCCL_PROTO": "NCCL does not choose the protocol by the size of a call",
}
"""By name: what any value does that all ranks share."""

_OF_TORCH = frozenset({"NCCL_ALGO=^NVLS"})
"""What torch sets by itself, where `torch.use_deterministic_algorithms` asks for it.

Source: seen with torch 2.11; torch, csrc/distributed/c10d/ProcessGroupNCCL.cpp.
"""


def leftover_switches(job: LoggedJob) -> Iterator[Told]:
    """Switches that are on.

    Args:
        job: The job.
    """
    found: dict[str, list[Party]] = {}
    for party in job.parties.values():
        for setting in party.process.settings if party.process else ():
            if setting in _OF_TORCH:
                continue
            name, _, value = setting.partition("=")
            switches = SWITCHES[name][0].split() if name in SWITCHES else ()
            if name in FORCED or value.strip() in switches:
                found.setdefault(setting, []).append(party)
    for setting, parties in found.items():
        name, _, _ = setting.partition("=")
        everyone = len(parties) == len(job.parties)
        if name in FORCED and not everyone:
            continue  # a difference between ranks, which is told as such
        effect = FORCED[name] if name in FORCED else SWITCHES[name][1]
        yield Told(
            code="DD611",
            message=f"{setting} is set on {'all ranks' if everyone else who(parties)}: "
            f"{effect}.",
            parties=() if everyone else parties,
            exhibits=[party.process for party in parties if party.process],
            severity=Severity.NOTE,
            cure=f"Unset {name} for production, if nothing else needs it.",
            details={"name": name},
        )
