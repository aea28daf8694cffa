"""Records how torch's generators are seeded; see `seeds`."""

from __future__ import annotations

import torch

from distdoctor.probes.probe import Probe
from distdoctor.probes.rng import seeds


def install() -> None:
    """Install the probe; called right after `import torch`."""
    seeds.watch_torch(torch)


PROBE = Probe(install=install, joined=seeds.tell_early)
