"""Kinds of observation, by the subject they are about; see `Observation`.

A new kind is a dataclass in one of these modules and an entry in its `KINDS`; probes
write it by `RECORDER.observe`, and drawings spell it `kind(field=value,…)`.
"""

from __future__ import annotations

from distdoctor.model.events import Observation
from distdoctor.model.observed import (
    checkpoints,
    comparison,
    data,
    equivalence,
    gradients,
    handles,
    memory,
    metrics,
    precision,
    processes,
    protocol,
    randomness,
    scaling,
    scheduling,
    settings,
    turns,
    weights,
    written,
)

KINDS: tuple[type[Observation], ...] = (
    *checkpoints.KINDS,
    *comparison.KINDS,
    *data.KINDS,
    *equivalence.KINDS,
    *gradients.KINDS,
    *handles.KINDS,
    *memory.KINDS,
    *metrics.KINDS,
    *precision.KINDS,
    *processes.KINDS,
    *protocol.KINDS,
    *randomness.KINDS,
    *scaling.KINDS,
    *scheduling.KINDS,
    *settings.KINDS,
    *turns.KINDS,
    *weights.KINDS,
    *written.KINDS,
)
"""All of them."""

BY_NAME = {kind.__name__: kind for kind in KINDS}
"""Kinds by the name they have in notes."""
