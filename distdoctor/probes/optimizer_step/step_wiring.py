"""Puts the probes of training steps in place, and says who is told before whom."""

from __future__ import annotations

import torch.distributed as dist

from distdoctor.probes.accumulation import accumulation_windows, microbatch_weighting
from distdoctor.probes.amp import (
    autocast_backward,
    low_precision_steps,
    non_finite_weights,
    scaled_gradients,
    skipped_steps,
)
from distdoctor.probes.data import model_inputs
from distdoctor.probes.gradients import gradient_reduction, gradient_samples
from distdoctor.probes.gradients.exchanges import EXCHANGES
from distdoctor.probes.metrics.printed_figures import FIGURES
from distdoctor.probes.optimizer_step import (
    call_hooks,
    optimizers,
    piled_hooks,
    step_hooks,
    step_protocol,
    unheld_parameters,
)
from distdoctor.probes.optimizer_step.step_hooks import STEP_HOOKS
from distdoctor.probes.replicas import late_parameters, trained_models, wrapper_bypass


def install() -> None:
    """At the first `init_process_group`."""
    call_hooks.watch()
    accumulation_windows.install()
    microbatch_weighting.install()
    skipped_steps.install()
    step_protocol.install()
    scaled_gradients.install()
    _listen()
    step_hooks.watch()
    autocast_backward.install()
    gradient_reduction.install()
    EXCHANGES.look(optimizers.trained)
    EXCHANGES.members = dist.get_world_size()


def turn() -> None:
    """Forget all: the process begins to play in another run."""
    for module in (
        *(
            optimizers,
            late_parameters,
            trained_models,
            wrapper_bypass,
            unheld_parameters,
            non_finite_weights,
            model_inputs,
        ),
        *(
            gradient_samples,
            low_precision_steps,
            autocast_backward,
            piled_hooks,
            gradient_reduction,
        ),
    ):
        module.turn()
    accumulation_windows.WINDOWS.forget()
    skipped_steps.ROUNDS.forget()
    step_protocol.PROTOCOL.forget()
    microbatch_weighting.WEIGHING.forget()
    scaled_gradients.SCALINGS.forget()
    EXCHANGES.look(optimizers.trained)
    EXCHANGES.members = dist.get_world_size() if dist.is_initialized() else 1


def _listen() -> None:
    """In the order of their notes, where one moment makes several."""
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
    ]
    STEP_HOOKS.stepped += [
        step_protocol.PROTOCOL.stepped,
        non_finite_weights.stepped,
        low_precision_steps.stepped,
        gradient_reduction.stepped,
        gradient_samples.stepped,
    ]
