"""How the machine let a rank run."""

from __future__ import annotations

from dataclasses import dataclass

from distdoctor.model.events import Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Delayed(Observation):
    """How long a rank's main thread was ready to run and had no processor so far."""

    at_ms: tuple[int, ...] = ()  # monotonic clock, ascending
    delay_ms: tuple[int, ...] = ()  # at each of these moments


KINDS = (Delayed,)
