"""Kinds of observation, by the subject they are about; see `Observation`.

A new kind is a dataclass in one of these modules and an entry in its `KINDS`; probes
write it by `RECORDER.observe`, and drawings spell it `kind(field=value,…)`.
"""

from __future__ import annotations

from distdoctor.model.events import Observation
from distdoctor.model.observations import (
    amp,
    checkpoints,
    collectives,
    comparison,
    data,
    divergence,
    environment,
    equivalence,
    gradients,
    learning_rate,
    memory,
    metrics,
    optimizer_step,
    precision,
    processes,
    replicas,
    rng,
    written,
)

KINDS: tuple[type[Observation], ...] = (
    *checkpoints.KINDS,
    *comparison.KINDS,
    *data.KINDS,
    *equivalence.KINDS,
    *gradients.KINDS,
    *collectives.KINDS,
    *memory.KINDS,
    *metrics.KINDS,
    *precision.KINDS,
    *processes.KINDS,
    *optimizer_step.KINDS,
    *rng.KINDS,
    *amp.KINDS,
    *environment.KINDS,
    *learning_rate.KINDS,
    *divergence.KINDS,
    *replicas.KINDS,
    *written.KINDS,
)
"""All of them."""

BY_NAME = {kind.__name__: kind for kind in KINDS}
"""Kinds by the name they have in notes."""
