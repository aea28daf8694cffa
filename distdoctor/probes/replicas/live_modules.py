"""Finds all living modules, without a walk through all objects for each question.

Such a walk takes a tenth of a second where there are 300,000 objects, which is felt in
a process that makes hundreds of models, as test suites do. Modules pass by when
something is registered in them, and when they are copied or unpickled: so they are
known. The first questions are answered by a walk all the same. If it finds a module
with parameters or parts that did not pass by, others may not have either, and all
questions are answered so.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from distdoctor.probes.harmless import harmless
from distdoctor.probes.live_objects import living
from distdoctor.probes.patching import traced_as, unseen_by_compilers
from distdoctor.probes.probe import Probe

_Kind = TypeVar("_Kind", bound=nn.Module)

WALKS = 4
"""Questions that are answered by a walk in any case, and check what is known."""

_FEWEST = 4096  # entries before those of what is gone are thrown away

_known: dict[int, weakref.ref[nn.Module]] = {}
"""By the `id`: to hash a module may run code of its class. Some are gone.

Not one of the dictionaries of `weakref`: torch.compile would trace into its functions.
"""

_limit = _FEWEST

_walks = 0
_passes_by = False  # whether modules that come are seen
_is_whole = False  # whether all that matter were


def install() -> None:
    """Install the probe; called right after `import torch`."""
    register_module_module_registration_hook(
        unseen_by_compilers(_came, nn.Module.add_module)
    )
    register_module_parameter_registration_hook(
        unseen_by_compilers(_came, nn.Module.register_parameter)
    )
    made: Callable[..., None] = nn.Module.__setstate__

    @functools.wraps(made)
    def set_state(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        if not torch.compiler.is_compiling():
            _came(self)

    traced_as(made, set_state)
    nn.Module.__setstate__ = set_state  # type: ignore[method-assign]
    global _passes_by, _is_whole
    _passes_by = _is_whole = True


@harmless
def _came(module: nn.Module, _name: str = "", _child: object = None) -> None:
    global _limit
    if _is_known(module):
        return
    if len(_known) >= _limit:
        # A copy of all at once, as threads may add to them.
        for number, one in list(_known.items()):
            if one() is None and _known.get(number) is one:
                _known.pop(number, None)
        _limit = max(_FEWEST, 2 * len(_known))
    _known[id(module)] = weakref.ref(module)


def _is_known(module: nn.Module) -> bool:
    known = _known.get(id(module))
    return known is not None and known() is module


def modules(kind: type[_Kind]) -> list[_Kind]:
    """All living modules of a kind that have parameters or parts, and maybe others."""
    global _walks, _is_whole
    if _is_whole and _walks >= WALKS:
        every = [reference() for reference in list(_known.values())]
        return [cast(_Kind, one) for one in every if kind in type(one).__mro__]
    _walks += 1
    found = living(kind)
    _is_whole &= all(map(_is_known, filter(_matters, found)))
    return found


def _matters(module: nn.Module) -> bool:
    own = module.__dict__
    return bool(own.get("_parameters") or own.get("_modules"))


def reset() -> None:
    """Forget all state: the process starts to play in another run."""
    global _walks, _is_whole
    _walks, _is_whole = 0, _passes_by


PROBE = Probe(install=install, reset=reset)
