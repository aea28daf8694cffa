"""Switches in a rank's environment that were set to find a fault."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from distdoctor.analysis.environment.variable_differences import (
    nccl_variable_differences,
    other_variable_differences,
)
from distdoctor.analysis.nccl.leftover_switches import FORCED, SWITCHES
from distdoctor.model.observations.environment import Variables
from distdoctor.model.run import Run

_ON = "1 true TRUE True on ON yes YES y Y"

_OF_OTHERS = {
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", "each collective is checked by further ones"),
    "TORCH_NCCL_BLOCKING_WAIT": (_ON, "each call blocks"),
    "TORCH_NCCL_DESYNC_DEBUG": (_ON, "each call is written to the store"),
    "TORCH_NCCL_NAN_CHECK": (_ON, "each tensor that is sent is read first"),
    "TORCH_COMPILE_DISABLE": (_ON, "nothing is compiled"),
    "TORCHDYNAMO_DISABLE": (_ON, "nothing is compiled"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": (_ON, "each tensor is allocated by the driver"),
    "HOROVOD_LOG_LEVEL": ("trace debug TRACE DEBUG", "each operation is printed"),
    "HOROVOD_TIMELINE_MARK_CYCLES": (_ON, "each cycle is written to the timeline"),
    "HOROVOD_STALL_CHECK_DISABLE": (_ON, "a rank that does not come is not told of"),
}
"""Like `SWITCHES`, of what is not NCCL itself."""


@dataclass(frozen=True, slots=True)
class LeftSwitch:
    """A switch that is on.

    Attributes:
        name: Of the variable.
        value: That it has.
        effect: What it does, as a clause.
        on: Who has it, with what they told.
        is_shared: All ranks that told of their environment have it.
    """

    name: str
    value: str
    effect: str
    on: dict[int, Variables]
    is_shared: bool


def left_switches(run: Run) -> Iterator[LeftSwitch]:
    """Switches that are on, by the environment of ranks.

    What some ranks alone have, and all should share, is told as a difference.

    Args:
        run: The run that is judged.
    """
    found: dict[tuple[str, str], dict[int, Variables]] = {}
    told = {rank: some[0] for rank in run.seen if (some := run.of(Variables, rank))}
    for rank, event in told.items():
        for setting in event.settings:
            name, _, value = setting.partition("=")
            if _effect(name, value.strip()):
                found.setdefault((name, value.strip()), {})[rank] = event
    differing = {one.name for one in nccl_variable_differences(run)}
    differing |= {one.name for one in other_variable_differences(run)}
    for (name, value), on in found.items():
        is_shared = len(on) == len(told)
        if name not in differing and (name not in FORCED or is_shared):
            yield LeftSwitch(name, value, _effect(name, value), on, is_shared)


def _effect(name: str, value: str) -> str:
    """What a variable does with this value; empty if it switches nothing."""
    if name in FORCED and value:
        return FORCED[name]
    values, effect = {**SWITCHES, **_OF_OTHERS}.get(name, ("", ""))
    return effect if value and value in values.split() else ""
