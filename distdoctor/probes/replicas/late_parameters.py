"""Finds modules and parameters that are added to a model too late.

Late is: after an optimizer was made, or after the model was wrapped. Public hooks tell
of every registration; none of them is a part of training.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from distdoctor.model.observations.gradients import Added
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.harmless import harmless
from distdoctor.probes.patching import unseen_by_compilers
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_MOST = 10_000  # parameters that are remembered

_MOST_LINES = 8

_late: dict[int, tuple[weakref.ref[Tensor], str]] = {}
"""By the `id` of a parameter, the line that registered it."""

_inside: dict[int, weakref.ref[nn.Module]] = {}
"""Modules of wrapped models, by `id`."""

_lines: set[str] = set()
_hooks: list[Any] = []


def watch() -> None:
    """Register hooks for new modules and parameters."""
    if not _hooks:
        _hooks.append(
            register_module_module_registration_hook(
                unseen_by_compilers(_module, nn.Module.add_module)
            )
        )
        _hooks.append(
            register_module_parameter_registration_hook(
                unseen_by_compilers(_parameter, nn.Module.register_parameter)
            )
        )


def optimizer_made() -> None:
    """Called when an optimizer was made: existing parameters are in time."""
    _late.clear()
    watch()


def wrapped(model: nn.Module) -> None:
    """Called when a model was wrapped: parameters added later are missed by DDP."""
    watch()
    _inside.update({id(module): weakref.ref(module) for module in model.modules()})


def site_of(parameter: Tensor) -> str:
    """The line that added a parameter after the last optimizer; "" if none did."""
    known = _late.get(id(parameter))
    return known[1] if known is not None and known[0]() is parameter else ""


@harmless
def _module(parent: nn.Module, _name: str, child: nn.Module | None) -> None:
    if child is not None:
        _came(parent, list(child.parameters()))


@harmless
def _parameter(parent: nn.Module, _name: str, child: Tensor | None) -> None:
    if child is not None:
        _came(parent, [child])


def _came(parent: nn.Module, parameters: list[Tensor]) -> None:
    if not parameters or len(_late) > _MOST:
        return
    site = call_site(4)
    for parameter in parameters:
        _late[id(parameter)] = weakref.ref(parameter), site
    known = _inside.get(id(parent))
    if known is None or known() is not parent or len(_lines) >= _MOST_LINES:
        return
    if site not in _lines:
        _lines.add(site)
        RECORDER.observe(Added(), site)


def reset() -> None:
    """Forget all state: the process starts to play in another run."""
    _late.clear()
    _inside.clear()
    _lines.clear()


PROBE = Probe(reset=reset)
