"""Records each optimizer's construction, parameters and steps.

Public hooks tell of each step, of every optimizer; a GradScaler that skips one calls
none. Only the construction has no hook.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DistributedSampler

from distdoctor.model.observations.gradients import Holds
from distdoctor.probes import horovod
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.data import creation_sites
from distdoctor.probes.fingerprints import exact
from distdoctor.probes.harmless import harmless
from distdoctor.probes.patching import traced_as
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replicas import (
    late_parameters,
    pipeline_stages,
    trained_models,
)

HALVES = (torch.float16, torch.bfloat16)

STRANGER = "?"
"""Name of a parameter that is in no model."""

_MOST = 1000  # parameters of one optimizer that are looked at

_ASKED = 64  # of them, at every step, whether they are trained

_MOST_NEWS = 8  # some scripts freeze and unfreeze at each step

_MOST_OPTIMIZERS = 4096  # one for each parameter, where they step inside backward

_SETTINGS = ("lr", "momentum", "betas", "weight_decay", "eps", "nesterov", "alpha")

_ADAPTIVE = ("betas", "alpha", "rho", "lr_decay", "etas", "eps")
"""Settings of the optimizers that divide a gradient by its size; SGD has none."""

_FLATTENED = ("_fsdp_flattened", "_is_flat_param", "ds_id")
"""Attributes of parameters of FSDP (both ways to write it) and DeepSpeed."""

_SHARDED = ("device_mesh", *_FLATTENED)
"""Likewise, and of DTensor."""


class Optimizer:
    """What the probes know of one optimizer of this process.

    Attributes:
        number: Among the rank's, in order of construction.
        site: The line that made it.
        steps: Steps made, including one about to be made.
        parameters: The sampled parameters, by position in `Holds`.
        elements: Number of elements of all its parameters.
        marks: Values of the process's counters at its last step, by name.
        most: Elements that were exchanged before a step that was not looked at.
        usual: Most elements that were exchanged before a step that was.
        extra: Steps that were looked at because much was exchanged before.
        fresh: How many of the next steps are looked at because it trains more.
        finite: The last step at which all gradients were seen to be finite.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, number: int, site: str):
        self.number, self.site = number, site
        self.steps = 0
        self.parameters: list[Tensor] = []
        self.elements = self.most = self.usual = 0
        self.extra = self.fresh = self.finite = 0
        self.marks: dict[str, int] = {}
        self._optimizer = weakref.ref(optimizer)
        self._held: tuple[int, ...] | None = None  # not looked at; () is told, too
        self._counts, self._news = (0, 0), 0

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer itself; None if it is gone."""
        return self._optimizer()

    def is_new(self) -> bool:
        """Whether it has more parameters, or trains more, than at the last call."""
        optimizer = self.optimizer
        groups = [] if optimizer is None else optimizer.param_groups
        some = self.parameters[:: max(1, len(self.parameters) // _ASKED)]
        # Lists, as generators would take twice as long.
        count = sum([len(group["params"]) for group in groups])
        trained = sum([parameter.requires_grad for parameter in some])
        before, self._counts = self._counts, (count, trained)
        if self._counts == before:
            return False
        self._news += 1
        return self._news <= _MOST_NEWS

    def names(self, positions: Iterable[int]) -> list[str]:
        """The names of some of its sampled parameters, by position."""
        return names_of([self.parameters[n] for n in positions])

    def held(self) -> list[Tensor]:
        """All parameters in its groups now."""
        optimizer = self.optimizer
        if optimizer is None:
            return []
        return [
            tensor for group in optimizer.param_groups for tensor in group["params"]
        ]

    def since(self, **sums: int) -> dict[str, int]:
        """How much counters have grown since its last step; resets the marks."""
        grown = {name: now - self.marks.get(name, 0) for name, now in sums.items()}
        self.marks = sums
        return grown

    def look(self) -> None:
        """Record its parameters, if they have changed since the last look."""
        held = self.held()
        if (now := tuple(map(id, held))) == self._held:
            return
        self._held = now
        self.elements = sum(tensor.numel() for tensor in held)
        every = max(1, -(-len(held) // _MOST))
        self.parameters = chosen = held[::every]
        names = names_of(chosen)
        optimizer = self.optimizer
        assert optimizer is not None
        averaged, late = _by_horovod(optimizer, chosen) or _wrapped(chosen)
        RECORDER.observe(
            Holds(
                optimizer=self.number,
                kind=type(optimizer).__name__,
                names=tuple(names),
                sizes=tuple(tensor.numel() for tensor in chosen),
                averaged=averaged,
                late=late,
                settings=_settings(optimizer),
                adaptive=any(name in optimizer.defaults for name in _ADAPTIVE),
                halves=any(tensor.dtype in HALVES for tensor in chosen),
                sharded=any(map(is_sharded, chosen)),
                divided=_is_divided(),
            ),
            self.site,
        )


_optimizers: dict[weakref.ref[torch.optim.Optimizer], Optimizer] = {}
"""Those that are alive. A WeakKeyDictionary takes 2 µs to list one that it holds
(measured: Python 3.11), and they are listed for each backward pass."""

_made = 0

_divided = False  # whether a DistributedSampler of several ranks was seen

_wrappers: list[tuple[weakref.ref[Any], dict[int, weakref.ref[Tensor]]]] = []
"""Wrapped models, each with the parameters that its reducer averages."""


def install() -> None:
    """Wrap the construction of optimizers, to note the lines that make them."""
    made = torch.optim.Optimizer.__init__

    @functools.wraps(made)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            _make(self)
        made(self, *args, **kwargs)

    traced_as(made, initialise)
    torch.optim.Optimizer.__init__ = initialise  # type: ignore[method-assign]


@harmless
def _make(optimizer: torch.optim.Optimizer) -> None:
    of(optimizer, call_site(3))


def of(optimizer: torch.optim.Optimizer, site: str = "") -> Optimizer | None:
    """The record of an optimizer; None if too many are known already."""
    global _made
    known = _optimizers.get(weakref.ref(optimizer))
    if known is None and len(_optimizers) < _MOST_OPTIMIZERS:
        late_parameters.optimizer_made()
        known = Optimizer(optimizer, _made, site)
        _optimizers[weakref.ref(optimizer, _forget)] = known
        _made += 1
    return known


def _forget(
    gone: weakref.ref[torch.optim.Optimizer],
    known: dict[weakref.ref[torch.optim.Optimizer], Optimizer] = _optimizers,
) -> None:  # the module may be empty by then
    known.pop(gone, None)


def every() -> list[Optimizer]:
    """All known optimizers that are alive."""
    return list(_optimizers.values())


def made() -> tuple[int, int]:
    """How many optimizers and how many wrapped models were made so far."""
    return _made, len(_wrappers)


def trained() -> list[Tensor]:
    """All parameters of the known optimizers."""
    return [tensor for optimizer in every() for tensor in optimizer.held()]


def names_of(parameters: Sequence[Tensor]) -> list[str]:
    """The names of parameters in their models."""
    found = trained_models.holding(parameters)
    names: dict[int, str] = {}
    stages = pipeline_stages.prefixes()
    for model in found:
        prefix = f"{type(model.module).__name__}." if len(found) > 1 else ""
        prefix = stages.get(id(model.module), prefix)
        for number, name in model.named().items():
            names.setdefault(number, prefix + name)
    return [names.get(id(parameter), STRANGER) for parameter in parameters]


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is one rank's shard of a larger tensor."""
    return any(hasattr(tensor, name) for name in _SHARDED)


def is_flattened(tensor: Tensor) -> bool:
    """Whether a tensor is one rank's shard of several flattened parameters."""
    return any(hasattr(tensor, name) for name in _FLATTENED)


# --- what wrappers average ---


@harmless
def wrapped(ddp: Any) -> None:
    """Called when a DDP wrapper was made: note which parameters it averages."""
    ignored = getattr(ddp, "parameters_to_ignore", ())
    averaged = {
        id(parameter): weakref.ref(parameter)
        for name, parameter in ddp.module.named_parameters()
        if parameter.requires_grad and name not in ignored
    }
    _wrappers.append((weakref.ref(ddp), averaged))
    late_parameters.wrapped(ddp.module)
    trained_models.wrapped(ddp.module, "ddp")


def wrappers() -> list[Any]:
    """All DDP wrappers that are alive."""
    return [ddp for reference, _ in _wrappers if (ddp := reference()) is not None]


def averaging(parameters: Sequence[Tensor]) -> list[Any]:
    """The DDP wrappers that average the gradients of some of these parameters."""
    wanted = set(map(id, parameters))
    return [
        ddp
        for reference, known in _wrappers
        if (ddp := reference()) is not None and wanted & known.keys()
    ]


def _wrapped(parameters: Sequence[Tensor]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Positions of those that a wrapper averages, and of those that it missed."""
    averaged: set[int] = set()
    inside: set[int] = set()
    for reference, known in _wrappers:
        ddp = reference()
        if ddp is None:
            continue
        ignored = getattr(ddp, "parameters_to_ignore", ())
        inside |= {
            id(parameter)
            for name, parameter in ddp.module.named_parameters()
            if name not in ignored
        }
        averaged |= {number for number, alive in known.items() if alive() is not None}
    at = [(n, id(parameter)) for n, parameter in enumerate(parameters)]
    return (
        tuple(n for n, number in at if number in averaged),
        tuple(n for n, number in at if number in inside - averaged),
    )


def _by_horovod(
    optimizer: Any, parameters: Sequence[Tensor]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The same positions for Horovod's optimizer; None if it is none that averages.

    It puts hooks on those that required gradients when it was made.
    """
    if (
        type(optimizer).__module__ != horovod.OPTIMIZERS
        or getattr(optimizer, "op", None) != 0
    ):
        return None
    hooked = set(map(id, getattr(optimizer, "_requires_update", ())))
    at = [(n, id(parameter)) for n, parameter in enumerate(parameters)]
    return (
        tuple(n for n, number in at if number in hooked),
        tuple(n for n, number in at if number not in hooked),
    )


# --- what is looked up once ---


def _settings(optimizer: torch.optim.Optimizer) -> int:
    groups = [
        [repr(group.get(name)) for name in _SETTINGS]
        for group in optimizer.param_groups
    ]
    return exact.of_value(groups)


def _is_divided() -> bool:
    """Whether a DistributedSampler of several ranks lives, or lived at an earlier call.

    All objects are not gone through for it: that takes a tenth of a second.
    """
    global _divided
    _divided = _divided or any(
        getattr(sampler, "num_replicas", 1) > 1
        for sampler in creation_sites.living(DistributedSampler)
    )
    return _divided


def unheld(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The parameters that no optimizer has; none if some optimizers are unknown."""
    if len(_optimizers) >= _MOST_OPTIMIZERS:
        return []
    held = set(map(id, trained()))
    return [parameter for parameter in parameters if id(parameter) not in held]


def reset() -> None:
    """Forget all state: the process starts to play in another run."""
    global _divided, _made
    _made, _divided = 0, False
    _optimizers.clear()
    _wrappers.clear()


PROBE = Probe(install=install, reset=reset)
