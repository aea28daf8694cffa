"""Looks at gradients and weights at some steps of optimizers.

Those are steps 1, 2, 3, 4, 8, 16 and so on. All ranks look at the same steps, so that
what they saw can be compared. Between these steps a GPU is never waited for, and on the
CPU two numbers are read.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from distdoctor.model.observed.gradients import (
    NOT_FINITE,
    Backward,
    Gradients,
    Unstepped,
)
from distdoctor.probes.communication.exchanges import EXCHANGES
from distdoctor.probes.data import inputs
from distdoctor.probes.data.metrics import METRICS
from distdoctor.probes.fingerprints import prints, readings
from distdoctor.probes.harmless import harmless
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replication import additions
from distdoctor.probes.sites import call_site
from distdoctor.probes.steps import (
    acts,
    backwards,
    bypasses,
    forgotten,
    halves,
    infinities,
    losses,
    lowering,
    optimizers,
    protocol,
    rounds,
    scaling,
    sending,
    weighing,
    windows,
)
from distdoctor.probes.steps.optimizers import Optimizer

_EACH = 4  # up to this step each is looked at, then those that are powers of two

_PROBED = 3  # gradients of an optimizer that are followed through a step

_LAST_PROBED = 8  # step

_EXTRA = 6  # steps that are looked at because much was exchanged before

_FRESH = 3  # steps that are looked at when an optimizer trains something new

_MOST_LINES = 8

_UNSTEPPED = (4, 8, 16, 32, 64)  # backward passes after which a step is asked for


def is_due(step: int) -> bool:
    """Whether a step, from 1, is looked at."""
    return step <= _EACH or step & (step - 1) == 0


class _Window:
    """What happened since the process began, and between two steps.

    Attributes:
        passes: Backward passes.
        reduced: `Exchanges.reduced` when the last one began.
        local: The last pass was not to be averaged.
        factor: Of the last loss; see `losses`.
    """

    def __init__(self) -> None:
        self.passes = self.steps = self.reduced = 0
        self.local = False
        self.factor = 0.0
        self.lines: set[str] = set()
        self.probes: dict[int, _Probes] = {}


class _Probes:
    """Hooks that read what backward gives for a few parameters."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        fit = [n for n, p in enumerate(parameters) if _can_hook(p)]
        self.at = tuple(sorted({fit[0], fit[len(fit) // 2], fit[-1]})) if fit else ()
        self.own = [0.0] * len(self.at)
        self._handles = [self._hook(n, parameters[at]) for n, at in enumerate(self.at)]

    def _hook(self, n: int, parameter: Tensor) -> Any:
        @harmless
        def read(gradient: Tensor) -> None:
            if not readings.is_capturing():
                self.own[n] += readings.projected(gradient)

        handle = parameter.register_hook(read)
        hooks = parameter._backward_hooks
        if hooks is not None and handle.id in hooks:  # before the user's own
            hooks.move_to_end(handle.id, last=False)  # type: ignore[attr-defined]
        return handle

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


_window = _Window()


def install() -> None:
    """At the first `init_process_group`."""
    register_optimizer_step_pre_hook(_before)
    register_optimizer_step_post_hook(_after)
    acts.watch()
    windows.install()
    weighing.install()
    rounds.install()
    protocol.install()
    scaling.install()
    backwards.watch(begin=_beginning, end=_ended)
    lowering.install()
    sending.install()
    EXCHANGES.look(optimizers.trained)
    EXCHANGES.members = dist.get_world_size()


def turn() -> None:
    """Forget all: the process begins to play in another run."""
    global _window
    for known in (
        *(optimizers, additions, bypasses, forgotten, infinities, inputs),
        *(halves, lowering, sending),
    ):
        known.turn()
    windows.WINDOWS.forget()
    rounds.ROUNDS.forget()
    protocol.PROTOCOL.forget()
    weighing.WEIGHING.forget()
    scaling.SCALINGS.forget()
    _window = _Window()
    EXCHANGES.look(optimizers.trained)
    EXCHANGES.members = dist.get_world_size() if dist.is_initialized() else 1


# --- backward ---


def _beginning(args: tuple[Any, ...]) -> None:
    METRICS.train()
    _window.reduced = EXCHANGES.reduced
    _began(args)


@harmless
def _began(args: tuple[Any, ...]) -> None:
    if RECORDER.writer is None or not args or len(args[0]) != 1:
        return
    loss = args[0][0]
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        return
    if EXCHANGES.looking and not readings.is_capturing():
        given = args[1][0] if len(args) > 1 and args[1] else None
        unit = given is None or float(given) == 1.0
        members = EXCHANGES.members
        _window.factor = losses.factor_of(loss, members=members) if unit else 0.0
    if infinities.backward(loss):
        rounds.ROUNDS.infinite(call_site(3))
    sending.beginning()
    windows.WINDOWS.begin(loss)
    weighing.WEIGHING.begin(loss, args[1][0] if len(args) > 1 and args[1] else None)


@harmless
def _ended() -> None:
    if RECORDER.writer is None:
        return
    window = _window
    reduced = EXCHANGES.reduced > window.reduced
    window.passes += 1
    windows.WINDOWS.passed()
    weighing.WEIGHING.passed()
    sending.passed(reduced)
    wrappers = optimizers.wrappers()
    window.local = any(map(_is_local, wrappers))
    rounds.ROUNDS.passed(local=window.local)
    if wrappers and not reduced and not window.local and not _is_compiling():
        bypasses.watch(wrappers)
    if len(window.lines) < _MOST_LINES:
        site = call_site(3)
        if site not in window.lines:
            window.lines.add(site)
            RECORDER.observe(Backward(rank=-1), site)
    if not window.steps and window.passes in _UNSTEPPED:
        _no_step(window.passes)


def _is_local(ddp: Any) -> bool:
    """Whether a wrapper is inside `no_sync`, or was so in its last forward pass.

    Source: forward notes the latter for its next call (torch 2.8 to 2.13,
    torch/nn/parallel/distributed.py), and does so without gradients, too.
    """
    sync = ddp.require_backward_grad_sync
    return not (sync and getattr(ddp, "require_forward_param_sync", True))


def _no_step(passes: int) -> None:
    known = optimizers.every()
    held = [p for one in known for p in one.held() if p.grad is not None]
    if not held:
        return
    for one in known:
        one.look()
    seen = prints.of_value([readings.print_of(parameter) for parameter in held])
    told = Unstepped(rank=-1, passes=passes, optimizers=len(known), weights=seen)
    RECORDER.observe(told, call_site(4))


# --- steps ---


def _before(optimizer: Any, args: Any, kwargs: Any) -> None:
    rounds.ROUNDS.stepped += 1
    _stepping(optimizer, len(args) > 1 or bool(kwargs))  # the first is itself


def _after(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    _stepped(optimizer)


@harmless
def _stepping(optimizer: torch.optim.Optimizer, closure: bool) -> None:
    known = optimizers.of(optimizer)
    if RECORDER.writer is None or known is None or readings.is_capturing():
        return
    windows.WINDOWS.stepping(optimizer)
    weighing.WEIGHING.stepping(optimizer, closure)
    rounds.ROUNDS.stepping(optimizer, known)
    known.steps += 1
    protocol.PROTOCOL.stepping(optimizer, known.steps)
    _window.steps += 1
    grown = known.since(
        passes=_window.passes,
        reduced=EXCHANGES.reduced,
        mixed=EXCHANGES.mixed,
        unclear=EXCHANGES.unclear,
        moved=EXCHANGES.moved,
    )
    grown["moved"] -= grown["reduced"]
    probes = _window.probes.pop(known.number, None)
    if probes is not None:
        probes.remove()
    if known.is_new():
        known.fresh = _FRESH
    unusual = grown["moved"] - known.usual
    much = 2 * unusual > known.elements > 0 and known.extra < _EXTRA
    if is_due(known.steps) or much or known.fresh:
        known.extra += much and not is_due(known.steps)
        known.fresh = max(0, known.fresh - 1)
        known.usual = max(known.usual, grown["moved"])
        _look(known, grown, None if closure else probes)
        if not closure:
            halves.look(known)
            sending.stepping(known)
    else:
        known.most = max(known.most, grown["moved"])
        infinities.watch(known)


def _look(known: Optimizer, grown: dict[str, int], probes: _Probes | None) -> None:
    known.look()
    parameters = known.parameters
    gradients = [parameter.grad for parameter in parameters]
    norms = tuple(map(readings.norm_of, gradients))
    at = probes.at if probes is not None else ()
    # A step without backward, or without a gradient, has nothing to compare.
    used = [readings.projected(g) for n in at if (g := gradients[n]) is not None]
    finite = probes is not None and all(map(math.isfinite, [*probes.own, *used]))
    probed = at if finite and len(used) == len(at) else ()
    optimizer = known.optimizer
    assert optimizer is not None
    RECORDER.observe(
        Gradients(
            rank=-1,
            optimizer=known.number,
            step=known.steps,
            prints=tuple(map(readings.print_of, gradients)),
            norms=norms,
            weights=tuple(map(readings.print_of, parameters)),
            rate=max(float(group.get("lr", 1.0)) for group in optimizer.param_groups),
            probed=probed,
            own=tuple(probes.own) if probes is not None and probed else (),
            used=tuple(used) if probed else (),
            factor=_window.factor,
            local=_window.local,
            passes=grown["passes"],
            reduced=grown["reduced"],
            mixed=grown["mixed"],
            unclear=grown["unclear"],
            moved=grown["moved"],
            most=known.most,
        ),
        call_site(4),
    )
    known.most = 0
    if NOT_FINITE in norms:
        infinities.examine(known)
    else:
        known.finite = known.steps
    forgotten.look(_window.steps)


@harmless
def _stepped(optimizer: torch.optim.Optimizer) -> None:
    known = optimizers.of(optimizer)
    if RECORDER.writer is None or known is None or readings.is_capturing():
        return
    protocol.PROTOCOL.stepped(optimizer)
    infinities.stepped(known)
    halves.stepped(known)
    sending.stepped(known)
    following = known.steps + 1
    if is_due(following) or is_due(known.steps):
        EXCHANGES.look(optimizers.trained)
    else:
        EXCHANGES.looking = False
    if is_due(following) and following <= _LAST_PROBED and not _is_compiling():
        _window.probes[known.number] = _Probes(known.parameters)
        inputs.watch(_window.steps + 1)


def _can_hook(tensor: Tensor) -> bool:
    return (
        tensor.requires_grad
        and tensor.is_floating_point()
        and not optimizers.is_sharded(tensor)
    )


def _is_compiling() -> bool:
    """Whether torch.compile was used: it would compile again for a new hook."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    frames = None if dynamo is None else dynamo.counters.get("frames")
    return bool(frames and frames["total"])
