"""Registers probes for backward passes and optimizer steps, in their order."""

from __future__ import annotations

from distdoctor.probes.accumulation import accumulation_windows, microbatch_weighting
from distdoctor.probes.amp import low_precision_steps, non_finite_weights, skipped_steps
from distdoctor.probes.gradients import (
    gradient_reduction,
    gradient_samples,
    scaled_shards,
)
from distdoctor.probes.gradients.exchanges import EXCHANGES
from distdoctor.probes.groups import world
from distdoctor.probes.metrics.printed_figures import FIGURES
from distdoctor.probes.optimizer_step import optimizers, piled_hooks, step_protocol
from distdoctor.probes.optimizer_step.step_hooks import STEP_HOOKS
from distdoctor.probes.probe import Probe


def install() -> None:
    """Register all; where one moment has several probes, they write in this order."""
    STEP_HOOKS.begun += [
        FIGURES.begun,
        gradient_samples.begun,
        skipped_steps.ROUNDS.begun,
        gradient_reduction.begun,
        accumulation_windows.WINDOWS.begin,
        microbatch_weighting.WEIGHING.begin,
    ]
    STEP_HOOKS.passed += [
        accumulation_windows.WINDOWS.passed,
        microbatch_weighting.WEIGHING.passed,
        gradient_reduction.passed,
        scaled_shards.passed,
        skipped_steps.ROUNDS.passed,
        gradient_samples.bypassed,
        gradient_samples.passed,
    ]
    STEP_HOOKS.stepping += [
        accumulation_windows.WINDOWS.stepping,
        microbatch_weighting.WEIGHING.stepping,
        skipped_steps.ROUNDS.stepping,
        step_protocol.PROTOCOL.stepping,
        gradient_samples.stepping,
    ]
    STEP_HOOKS.looking += [
        low_precision_steps.looking,
        piled_hooks.looking,
        gradient_reduction.looking,
        scaled_shards.looking,
    ]
    STEP_HOOKS.stepped += [
        step_protocol.PROTOCOL.stepped,
        non_finite_weights.stepped,
        low_precision_steps.stepped,
        gradient_reduction.stepped,
        gradient_samples.stepped,
    ]


def _look_at_exchanges() -> None:
    """Begin anew, among the ranks that there are now."""
    EXCHANGES.look(optimizers.trained)
    EXCHANGES.members = world.size()


PROBE = Probe(install=install, joined=_look_at_exchanges, reset=_look_at_exchanges)
