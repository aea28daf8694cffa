"""Finds parameters that get gradients but belong to no optimizer."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor, nn

from distdoctor.model.observations.gradients import Forgotten
from distdoctor.probes.fingerprints import exact
from distdoctor.probes.harmless import harmless
from distdoctor.probes.optimizer_step import optimizers
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replicas import late_parameters, live_modules

_FIRST, _SECOND = 2, 4  # steps of all optimizers at which they are looked for

_MOST_TIMES = 10  # that they are looked for anew, in a job of many trainings

_MOST_NAMES = 50

_Seen: TypeAlias = tuple[weakref.ref[Tensor], str, int, int]
"""A parameter, its name, and fingerprints of its values and of its gradient."""

_candidates: list[_Seen] = []


@dataclass(slots=True)
class _Looks:
    """When modules are examined: again after each new optimizer or wrapped model.

    And when an optimizer makes its first step, which may be long after.
    """

    begun: int = -1
    since: int = 0  # the step before
    times: int = 0


_looks = _Looks()


@harmless
def look(step: int, *, first: bool) -> None:
    """Examine all modules at two early steps, for parameters found at both.

    Args:
        step: Number of this one, of all optimizers together.
        first: Whether it is its optimizer's first.
    """
    begun = sum(optimizers.made())
    if (first or _looks.begun != begun) and _looks.times < _MOST_TIMES:
        _looks.begun, _looks.since = begun, step - 1
        _looks.times += 1
        _candidates.clear()
    step -= _looks.since
    if step == _FIRST:
        _candidates[:] = [
            (weakref.ref(parameter), name, _print(parameter), _print(parameter.grad))
            for name, parameter in _unheld()
        ]
    elif step == _SECOND and _candidates:
        _tell(step + _looks.since)


def _tell(step: int) -> None:
    still = {id(parameter) for _, parameter in _unheld()}
    names, changed, site = [], False, ""
    for reference, name, seen, given in _candidates:
        parameter = reference()
        # A gradient that stays what it was is left from a training that is over.
        if (
            parameter is not None
            and id(parameter) in still
            and _print(parameter.grad) != given
        ):
            names.append(name)
            changed |= _print(parameter) != seen
            site = site or late_parameters.site_of(parameter)
    _candidates.clear()
    if names:
        observation = Forgotten(
            step=step,
            names=tuple(names[:_MOST_NAMES]),
            changed=changed,
            late=bool(site),
        )
        RECORDER.observe(observation, site)


def _unheld() -> list[tuple[str, Tensor]]:
    """With their names, those that have a gradient."""
    found: dict[int, Tensor] = {}
    for thing in live_modules.modules(nn.Module):
        for parameter in (thing.__dict__.get("_parameters") or {}).values():
            if (
                parameter is not None
                and parameter.requires_grad
                and parameter.grad is not None
                and parameter.is_leaf
                and exact.has_memory(parameter)
            ):
                found[id(parameter)] = parameter
    unheld = optimizers.unheld(found.values())
    return list(zip(optimizers.names_of(unheld), unheld, strict=True)) if unheld else []


def _print(tensor: Tensor | None) -> int:
    return 0 if tensor is None else exact.of_tensor(tensor)


def reset() -> None:
    """Forget all state: the process starts to play in another run."""
    _candidates.clear()
    _looks.begun, _looks.since, _looks.times = -1, 0, 0


PROBE = Probe(reset=reset)
