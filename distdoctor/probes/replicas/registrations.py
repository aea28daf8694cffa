"""Remembers which user's lines registered each module and parameter.

DistributedDataParallel goes by the order in which that was done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from weakref import WeakKeyDictionary

from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from distdoctor.model.observations.replicas import Registered
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.harmless import harmless
from distdoctor.probes.patching import unseen_by_compilers
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_MOST = 20_000  # names that are remembered

_lines: WeakKeyDictionary[nn.Module, dict[str, str]] = WeakKeyDictionary()
_remembered = 0


def install() -> None:
    """Install the probe; called right after `import torch`."""
    register_module_module_registration_hook(
        unseen_by_compilers(_registered, nn.Module.add_module)
    )
    register_module_parameter_registration_hook(
        unseen_by_compilers(_registered, nn.Module.register_parameter)
    )


@harmless
def _registered(parent: nn.Module, name: str, child: object) -> None:
    global _remembered
    if child is None or _remembered >= _MOST:
        return
    site = call_site(3)
    if site:
        _remembered += 1
        _lines.setdefault(parent, {})[name] = site


def lines_of(model: nn.Module) -> dict[str, str]:
    """The line that registered each parameter of a model, by its qualified name."""
    found = {}
    for path, module in model.named_modules():
        for name, site in _lines.get(module, {}).items():
            if name in module._parameters:
                found[f"{path}.{name}" if path else name] = site
    return found


def tell(model: nn.Module, parameters: Iterable[str]) -> None:
    """Record the lines that registered these parameters and their modules."""
    by_site: dict[str, list[str]] = {}
    for path, site in _on_the_way(model, parameters):
        by_site.setdefault(site, []).append(path)
    for site, paths in by_site.items():
        RECORDER.observe(Registered(names=tuple(paths)), site)


def _on_the_way(
    model: nn.Module, parameters: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """Each part of the parameters' names, `a`, `a.b`, `a.b.weight`, with its line."""
    known: set[str] = set()
    for parameter in parameters:
        module: nn.Module | None = model
        path = ""
        for name in parameter.split("."):
            if module is None:
                break
            path = f"{path}.{name}" if path else name
            site = _lines.get(module, {}).get(name, "")
            if site and path not in known:
                yield path, site
            known.add(path)
            module = module._modules.get(name)


PROBE = Probe(install=install)
