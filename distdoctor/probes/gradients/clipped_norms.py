"""Records by which norms gradients are clipped, where each rank computes its own."""

from __future__ import annotations

import math

from torch import Tensor

from distdoctor.model.observations.gradients import NormClip
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.fingerprints.sampled import is_capturing
from distdoctor.probes.gradients import clip_hooks
from distdoctor.probes.gradients.clip_hooks import Clipping
from distdoctor.probes.optimizer_step import optimizers
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_MOST = 6  # clips; a GPU has to be waited for to know a norm

_clips = 0


def install() -> None:
    """Install the probe; called at the first `init_process_group`."""
    clip_hooks.watch(end=_clipped)


def reset() -> None:
    """Forget all state: the process starts to play in another run."""
    global _clips
    _clips = 0


def _clipped(this: Clipping) -> None:
    global _clips
    # That of a DTensor is one of all ranks.
    if _clips >= _MOST or type(this.norm) is not Tensor or is_capturing():
        return
    norm, bound = float(this.norm), float(this.bound)
    # Without a bound, it is only asked what the norm is.
    if not math.isfinite(norm) or not norm or not math.isfinite(bound):
        return
    observation = NormClip(
        clip=_clips,
        norm=norm,
        bound=bound,
        sharded=any(map(optimizers.is_flattened, this.parameters)),
    )
    _clips += 1
    RECORDER.observe(observation, call_site(3))


PROBE = Probe(install=install, reset=reset)
