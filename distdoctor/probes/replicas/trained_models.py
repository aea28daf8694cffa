"""Finds the models that a rank trains, and the names of their parameters.

Models are known from the wrappers of data parallelism, and otherwise looked for when an
optimizer steps for the first time: the modules that hold its parameters and are part of
no other. That costs one look at all modules, and nothing for each forward pass. Such a
look may take a tenth of a second (see `live_modules`), so a process that trains one
model after the other makes it for the first of them only.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from torch import Tensor, nn

from distdoctor.probes.probe import Probe
from distdoctor.probes.replicas import live_modules

_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "OptimizedModule")

_MOST_SEARCHES = 24  # looks at all modules

_MOST_TRIES = 3  # for a parameter that no module has


class Model:
    """A model that this rank trains.

    Attributes:
        number: Among the rank's models, in the order in which they were found.
        how: "ddp", "fsdp", or "" where no wrapper is known.
    """

    def __init__(self, number: int, module: nn.Module, how: str) -> None:
        self.number, self.how = number, how
        self._module = weakref.ref(bare(module))

    @property
    def module(self) -> nn.Module | None:
        """The module without wrappers; None if it is gone."""
        return self._module()

    def named(self) -> dict[int, str]:
        """The qualified names of its parameters, by `id`."""
        module = self.module
        if module is None:
            return {}
        return {id(parameter): name for name, parameter in module.named_parameters()}


_models: list[Model] = []

_searches = 0

_strangers: dict[int, tuple[weakref.ref[Tensor], int]] = {}
"""Parameters that no module had, by `id`, and how often they were looked for."""


def models() -> list[Model]:
    """The known models that are alive."""
    return [model for model in _models if model.module is not None]


def numbered(number: int) -> nn.Module | None:
    """The module of a model's number, without wrappers; None if it is gone."""
    found = (model.module for model in _models if model.number == number)
    return next(found, None)


def wrapped(module: nn.Module, how: str) -> Model:
    """Called when a model was wrapped: note it as a trained model."""
    return _known(bare(module), how)


def holding(parameters: Iterable[Tensor]) -> list[Model]:
    """The models that have some of these parameters; searched for if necessary."""
    global _searches
    every = {id(parameter): parameter for parameter in parameters}
    order = {number: n for n, number in enumerate(every)}
    wanted = set(every)
    found = [model for model in models() if wanted & model.named().keys()]
    for model in found:
        wanted -= model.named().keys()
    wanted = {number for number in wanted if not _is_stranger(every[number])}
    if wanted and _searches < _MOST_SEARCHES:
        _searches += 1
        # In the order of the parameters, which is the same on all ranks.
        roots = sorted(_roots(wanted), key=lambda root: _first(root, order))
        found += [_known(root, "") for root in roots]
        for root in roots:
            wanted -= set(map(id, root.parameters()))
        for number in wanted:
            _not_found(every[number])
    return found


def _is_stranger(parameter: Tensor) -> bool:
    known, tries = _strangers.get(id(parameter), (None, 0))
    return known is not None and known() is parameter and tries >= _MOST_TRIES


def _not_found(parameter: Tensor) -> None:
    known, tries = _strangers.get(id(parameter), (None, 0))
    if known is None or known() is not parameter:
        known, tries = weakref.ref(parameter), 0
    _strangers[id(parameter)] = known, tries + 1


def _first(root: nn.Module, order: dict[int, int]) -> int:
    places = (order[id(one)] for one in root.parameters() if id(one) in order)
    return min(places, default=len(order))


def bare(module: nn.Module) -> nn.Module:
    """A module without the wrappers around it."""
    while type(module).__name__ in _WRAPPERS:
        inner = getattr(module, "module", None)
        if inner is None:  # one that has no length may be false, or refuse to tell
            inner = getattr(module, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            break
        module = inner
    return module


def _known(module: nn.Module, how: str) -> Model:
    for model in _models:
        if model.module is module:
            model.how = model.how or how
            return model
    _models.append(Model(len(_models), module, how))
    return _models[-1]


def _roots(wanted: set[int]) -> list[nn.Module]:
    """Modules with some of these parameters that are part of no other such module."""
    holding: dict[int, nn.Module] = {}
    modules = live_modules.modules(nn.Module)
    for thing in modules:
        own = thing.__dict__.get("_parameters") or {}
        if any(id(parameter) in wanted for parameter in own.values()):
            holding[id(thing)] = thing
    parents = _parents(modules)
    roots: dict[int, nn.Module] = {}
    for module in holding.values():
        root = module
        seen = {id(root)}
        while (above := parents.get(id(root))) is not None and id(above) not in seen:
            root = above
            seen.add(id(root))
        root = bare(root)
        roots[id(root)] = root
    return list(roots.values())


def _parents(modules: Iterable[nn.Module]) -> dict[int, nn.Module]:
    """By the `id` of a module, one of these that it is a part of."""
    return {
        id(child): thing
        for thing in modules
        for child in (thing.__dict__.get("_modules") or {}).values()
        if child is not None
    }


def reset() -> None:
    """Forget all state: the process starts to play in another run."""
    global _searches
    _searches = 0
    _models.clear()
    _strangers.clear()


PROBE = Probe(reset=reset)
