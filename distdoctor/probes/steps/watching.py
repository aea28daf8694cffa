"""Puts the probes of training steps in place, and says who is told before whom."""

from __future__ import annotations

import torch.distributed as dist

from distdoctor.probes.communication.exchanges import EXCHANGES
from distdoctor.probes.data import inputs
from distdoctor.probes.data.figures import FIGURES
from distdoctor.probes.replication import additions, models
from distdoctor.probes.steps import (
    acts,
    bypasses,
    forgotten,
    gradients,
    halves,
    infinities,
    lowering,
    moments,
    optimizers,
    piling,
    protocol,
    rounds,
    scaling,
    sending,
    weighing,
    windows,
)
from distdoctor.probes.steps.moments import MOMENTS


def install() -> None:
    """At the first `init_process_group`."""
    acts.watch()
    windows.install()
    weighing.install()
    rounds.install()
    protocol.install()
    scaling.install()
    _listen()
    moments.watch()
    lowering.install()
    sending.install()
    EXCHANGES.look(optimizers.trained)
    EXCHANGES.members = dist.get_world_size()


def turn() -> None:
    """Forget all: the process begins to play in another run."""
    for module in (
        *(optimizers, additions, models, bypasses, forgotten, infinities, inputs),
        *(gradients, halves, lowering, piling, sending),
    ):
        module.turn()
    windows.WINDOWS.forget()
    rounds.ROUNDS.forget()
    protocol.PROTOCOL.forget()
    weighing.WEIGHING.forget()
    scaling.SCALINGS.forget()
    EXCHANGES.look(optimizers.trained)
    EXCHANGES.members = dist.get_world_size() if dist.is_initialized() else 1


def _listen() -> None:
    """In the order of their notes, where one moment makes several."""
    MOMENTS.begun += [
        FIGURES.begun,
        gradients.begun,
        rounds.ROUNDS.begun,
        sending.begun,
        windows.WINDOWS.begin,
        weighing.WEIGHING.begin,
    ]
    MOMENTS.passed += [
        windows.WINDOWS.passed,
        weighing.WEIGHING.passed,
        sending.passed,
        rounds.ROUNDS.passed,
        gradients.bypassed,
        gradients.passed,
    ]
    MOMENTS.stepping += [
        windows.WINDOWS.stepping,
        weighing.WEIGHING.stepping,
        rounds.ROUNDS.stepping,
        protocol.PROTOCOL.stepping,
        gradients.stepping,
    ]
    MOMENTS.looking += [halves.looking, piling.looking, sending.looking]
    MOMENTS.stepped += [
        protocol.PROTOCOL.stepped,
        infinities.stepped,
        halves.stepped,
        sending.stepped,
        gradients.stepped,
    ]
