"""Records by what an optimizer's gradients were multiplied between backward and step.

That is looked at where the rank has shards of the gradients alone, as with FSDP, at the
steps that are looked at anyway. Who clips by hand multiplies all of them by one factor.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from distdoctor.model.observations.gradients import ScaledShards
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.fingerprints.sampled import is_capturing
from distdoctor.probes.gradients.exchanges import EXCHANGES
from distdoctor.probes.gradients.gradient_provenance import factor, sample
from distdoctor.probes.optimizer_step import optimizers
from distdoctor.probes.optimizer_step.optimizers import Optimizer
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_MOST = 1000  # parameters that are followed

_ALIKE = 1e-3  # relative difference of two factors that are one


@dataclass(slots=True)
class _Shard:
    """A gradient as backward left it."""

    reference: weakref.ref[Tensor]
    norm: Tensor
    sample: Tensor


_shards: dict[int, _Shard] = {}


def reset() -> None:
    """Forget all state: the process starts to play in another run."""
    _shards.clear()


def passed(_reduced: bool, _local: bool) -> None:
    """Called after a backward pass: keep what it gave."""
    _shards.clear()
    if not EXCHANGES.looking or is_capturing():
        return
    for one in optimizers.trained()[:_MOST]:
        gradient = _own_part(one.grad) if _is_shard(one) else None
        if gradient is not None:
            norm = torch.linalg.vector_norm(gradient)
            _shards[id(one)] = _Shard(weakref.ref(one), norm, sample(gradient).clone())


def looking(known: Optimizer) -> None:
    """Called before an optimizer step that is sampled."""
    kept = [
        (one, shard)
        for one in known.parameters
        if (shard := _shards.pop(id(one), None)) is not None
        and shard.reference() is one
    ]
    if not kept or len(kept) < len(known.parameters):
        return
    norm = math.hypot(*(float(shard.norm) for _, shard in kept))
    factors = [
        factor(shard.sample, sample(gradient))
        for one, shard in kept
        if shard.sample.any() and (gradient := _own_part(one.grad)) is not None
    ]
    if not factors or not math.isfinite(norm) or not min(factors) > 0.0:
        return
    if max(factors) <= min(factors) * (1 + _ALIKE):
        observation = ScaledShards(
            optimizer=known.number, step=known.steps, norm=norm, factor=factors[0]
        )
        RECORDER.observe(observation, call_site(4))


def _is_shard(parameter: Tensor) -> bool:
    return optimizers.is_sharded(parameter) or optimizers.is_flattened(parameter)


def _own_part(gradient: Tensor | None) -> Tensor | None:
    """This rank's part of a gradient; None: it has none that can be read."""
    here: Tensor | None = getattr(gradient, "_local_tensor", gradient)
    if (
        here is None
        or type(here) not in {Tensor, torch.nn.Parameter}
        or not here.is_floating_point()
        or here.layout is not torch.strided
        or not here.numel()
    ):
        return None
    return here.detach()


PROBE = Probe(reset=reset)
