"""Finds the models that a rank trains, and the names of their parameters.

Models are known from the wrappers of data parallelism, and otherwise looked for when an
optimizer steps for the first time: the modules that hold its parameters and are part of
no other. That costs one look at all objects, and nothing for each forward pass.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from torch import Tensor, nn

from distdoctor.probes.live_objects import living
from distdoctor.probes.probe import Probe

_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel", "OptimizedModule")


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
    order = {id(parameter): n for n, parameter in enumerate(parameters)}
    wanted = set(order)
    found = [model for model in models() if wanted & model.named().keys()]
    for model in found:
        wanted -= model.named().keys()
    if wanted:
        # In the order of the parameters, which is the same on all ranks.
        roots = sorted(_roots(wanted), key=lambda root: _first(root, order))
        found += [_known(root, "") for root in roots]
    return found


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
    for thing in living(nn.Module):
        own = thing.__dict__.get("_parameters") or {}
        if any(id(parameter) in wanted for parameter in own.values()):
            holding[id(thing)] = thing
    parents = _parents()
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


def _parents() -> dict[int, nn.Module]:
    """By the `id` of a module, one that it is a part of."""
    return {
        id(child): thing
        for thing in living(nn.Module)
        for child in (thing.__dict__.get("_modules") or {}).values()
        if child is not None
    }


def reset() -> None:
    """Forget all state: the process starts to play in another run."""
    _models.clear()


PROBE = Probe(reset=reset)
