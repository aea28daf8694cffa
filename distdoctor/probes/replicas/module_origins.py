"""Remembers which lines make modules and optimizers, and which load their state."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.optim import Optimizer

from distdoctor.probes.call_sites import call_site, making_site
from distdoctor.probes.harmless import harmless
from distdoctor.probes.patching import traced_as, unseen_by_compilers
from distdoctor.probes.probe import Probe

_modules: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
_optimizers: WeakKeyDictionary[Optimizer, str] = WeakKeyDictionary()
_loaded: WeakKeyDictionary[Optimizer, str] = WeakKeyDictionary()


def install() -> None:
    """Install the probe; called right after `import torch`."""
    register_module_parameter_registration_hook(
        unseen_by_compilers(_registered, nn.Module.register_parameter)
    )
    made = Optimizer.__init__

    @functools.wraps(made)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            _making(self)
        made(self, *args, **kwargs)

    traced_as(made, initialise)
    Optimizer.__init__ = initialise  # type: ignore[method-assign]
    made_loading = Optimizer.load_state_dict

    @functools.wraps(made_loading)
    def load_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            _loading(self)
        return made_loading(self, *args, **kwargs)

    traced_as(made_loading, load_state_dict)
    Optimizer.load_state_dict = load_state_dict  # type: ignore[method-assign]


def watch_loading(callback: Callable[[nn.Module, str], Any]) -> None:
    """Register a function to call with each module that is loaded, and the line."""
    made = nn.Module.load_state_dict

    @functools.wraps(made)
    def load_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            callback(self, call_site(1))
        return made(self, *args, **kwargs)

    traced_as(made, load_state_dict)
    nn.Module.load_state_dict = load_state_dict  # type: ignore[method-assign]


@harmless
def _registered(module: nn.Module, _name: str, _parameter: Any) -> None:
    """Every module with parameters of its own comes by here, in its `__init__`."""
    if module not in _modules:
        own = isinstance(module, _BatchNorm)
        _modules[module] = call_site(3) if own else making_site(3, nn.Module)


@harmless
def _making(optimizer: Optimizer) -> None:
    _optimizers[optimizer] = making_site(3, Optimizer)


@harmless
def _loading(optimizer: Optimizer) -> None:
    _loaded[optimizer] = call_site(3)


def loading_site_of(optimizer: Optimizer) -> str:
    """The line that loaded an optimizer's state since the last call; or ""."""
    return _loaded.pop(optimizer, "")


def site_of(model: nn.Module) -> str:
    """The line that made a model, by its first submodule that is known."""
    for module in model.modules():
        if not isinstance(module, _BatchNorm) and module in _modules:
            return _modules[module]
    return ""


def site_of_layer(module: nn.Module) -> str:
    """The line that made a BatchNorm layer, which may lie inside a model's code."""
    return _modules.get(module, "")


def site_of_optimizer(optimizer: Optimizer) -> str:
    """The line that made an optimizer; "" if not seen."""
    return _optimizers.get(optimizer, "")


PROBE = Probe(install=install)
