"""Records the scale of a GradScaler, and when the job reads its state to save it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.amp import GradScaler

from distdoctor.model.observations.amp import Kept
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.checkpoints.checkpoint_contents import is_optimizer, number_of
from distdoctor.probes.gpu_emulation.replacement import replace
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_LONGEST_INTERVAL = 1_000_000  # steps

_MOST_NODES = 2_000  # of a checkpoint
_DEEPEST = 4
_LARGE = 64  # entries of a mapping that may be weights by name

_made: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
"""By GradScaler, the scale it was made with."""

_reported: list[bool] = []


def install() -> None:
    """Install the probe; called right after `import torch`."""
    replace(GradScaler, "__init__", _make)
    for name in ("state_dict", "__getstate__"):
        replace(GradScaler, name, _keep)


def scale_of(scaler: Any) -> float:
    """The scale of a GradScaler, 1.0 if it is disabled; may wait for a GPU.

    Unlike `get_scale`, this does not tell that the job has asked for it.
    """
    if not scaler.is_enabled():
        return 1.0
    scale = scaler._get_scale_async()
    return float(scaler._init_scale if scale is None else scale)


def running(thing: Any) -> dict[str, Any]:
    """The scale of the GradScaler whose scale moved furthest; fields of a `Stored`.

    Args:
        thing: What was saved. If there is a number in it that is the scale, then the
            scale is saved.
    """
    used = [
        (scale_of(one), first)
        for one, first in list(_made.items())
        if one.is_enabled() and one._scale is not None and _has_torchs_state(one)
        if _moves(one, first)
    ]
    if not used or _reported:
        return {}
    scale, first = max(used, key=lambda pair: max(pair) / max(min(pair), 1e-30))
    if _holds(thing, scale, [_MOST_NODES], 0):
        return {}
    return {"running_scale": scale, "first_scale": first}


def _has_torchs_state(scaler: Any) -> bool:
    return type(scaler).state_dict is GradScaler.state_dict


def _moves(scaler: Any, first: float) -> bool:
    """Whether its scale has moved, or will: some make it a constant in this way."""
    soon: bool = scaler.get_growth_interval() <= _LONGEST_INTERVAL
    return soon or scale_of(scaler) != first


def _make(made: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
    made(self, *args, **kwargs)
    _note(self)


@harmless
def _note(scaler: Any) -> None:
    if scaler.is_enabled():
        _made[scaler] = number_of(scaler._init_scale)


def _keep(made: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    result = made(self, *args, **kwargs)
    if not _reported:
        _tell()
    return result


@harmless
def _tell() -> None:
    _reported.append(True)
    RECORDER.observe(Kept(), call_site(3))


def _holds(thing: Any, scale: float, left: list[int], depth: int) -> bool:
    left[0] -= 1
    if left[0] < 0 or depth > _DEEPEST:
        return False
    if isinstance(thing, (int, float)):
        return thing == scale
    if isinstance(thing, torch.Tensor):
        return thing.numel() == 1 and thing.is_cpu and number_of(thing) == scale
    if isinstance(thing, Mapping):
        if is_optimizer(thing) or len(thing) > _LARGE:
            return False
        return any(_holds(one, scale, left, depth + 1) for one in thing.values())
    if isinstance(thing, (list, tuple)):
        return any(_holds(one, scale, left, depth + 1) for one in thing[:_LARGE])
    fields = getattr(thing, "__dict__", None)
    if isinstance(fields, dict) and not isinstance(thing, torch.nn.Module):
        return any(
            _holds(one, scale, left, depth + 1)
            for name, one in fields.items()
            if not name.startswith("_")
        )
    return False


PROBE = Probe(install=install, reset=_reported.clear)
