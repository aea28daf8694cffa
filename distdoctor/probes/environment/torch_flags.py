"""Records who sets torch's flags that affect reproducibility."""

from __future__ import annotations

import functools
from typing import Any

import torch

from distdoctor.model.observations.rng import Flag
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.environment import settings
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe


def install() -> None:
    """Install the probe; called right after `import torch`."""
    kind = vars(type(torch.backends.cudnn))
    for name in ("benchmark", "deterministic"):
        prop = kind[name]
        prop.setter = _noting(prop.setter, f"cudnn.{name}")
    library: Any = torch
    made = library.use_deterministic_algorithms
    library.use_deterministic_algorithms = _noting(made, "deterministic")


def _noting(made: Any, name: str) -> Any:
    @functools.wraps(made)
    def setter(value: Any, *args: Any, **kwargs: Any) -> Any:
        result = made(value, *args, **kwargs)
        _set(name, value)
        return result

    return setter


@harmless
def _set(name: str, value: object) -> None:
    if site := call_site(2):
        settings.note(Flag(name=name, on=bool(value)), site)


PROBE = Probe(install=install, joined=settings.tell_early)
