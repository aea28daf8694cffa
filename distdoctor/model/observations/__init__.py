"""Kinds of observation, by the subject they are about; see `Observation`.

A new kind is a `value` in one of these modules and an entry in its `KINDS`; probes
write it by `RECORDER.observe`, and drawings spell it `kind(field=value,…)`.
"""

from __future__ import annotations

from distdoctor.model.events import Observation
from distdoctor.model.observations import (
    amp,
    checkpoints,
    collectives,
    communicators,
    comparison,
    data,
    divergence,
    environment,
    equivalence,
    failures,
    gradients,
    groups,
    horovod,
    learning_rate,
    memory,
    metrics,
    nccl,
    optimizer_step,
    processes,
    replicas,
    rng,
)
from distdoctor.model.observations.learning_rate import RateCourse, RateRise

KINDS: tuple[type[Observation], ...] = (
    *checkpoints.KINDS,
    *comparison.KINDS,
    *data.KINDS,
    *equivalence.KINDS,
    *failures.KINDS,
    *gradients.KINDS,
    *groups.KINDS,
    *horovod.KINDS,
    *collectives.KINDS,
    *communicators.KINDS,
    *memory.KINDS,
    *metrics.KINDS,
    *nccl.KINDS,
    *processes.KINDS,
    *optimizer_step.KINDS,
    *rng.KINDS,
    *amp.KINDS,
    *environment.KINDS,
    *learning_rate.KINDS,
    *divergence.KINDS,
    *replicas.KINDS,
)
"""All of them."""

FORMER_NAMES = {"Climbed": RateRise, "Course": RateCourse}
"""Kinds by names that they had in earlier releases, whose records are still read."""

BY_NAME = {kind.__name__: kind for kind in KINDS} | FORMER_NAMES
"""Kinds by the name they have in notes."""
