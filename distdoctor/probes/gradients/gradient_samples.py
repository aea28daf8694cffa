"""Records samples of gradients and parameters at some optimizer steps.

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
from torch import Tensor

from distdoctor.model.observations.gradients import (
    NOT_FINITE,
    Backward,
    Gradients,
    Unstepped,
    Weighed,
)
from distdoctor.probes.accumulation import loss_terms
from distdoctor.probes.amp import non_finite_weights
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.data import model_inputs
from distdoctor.probes.fingerprints import exact, sampled
from distdoctor.probes.gradients.exchanges import EXCHANGES
from distdoctor.probes.harmless import harmless, tell_each
from distdoctor.probes.optimizer_step import optimizers, unheld_parameters
from distdoctor.probes.optimizer_step.optimizers import Optimizer
from distdoctor.probes.optimizer_step.step_hooks import STEP_HOOKS
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replicas import wrapper_bypass

_EACH = 4  # up to this step each is looked at, then those that are powers of two

_LAST_PROBED = 8  # step

_EXTRA = 6  # steps that are looked at because much was exchanged before

_FRESH = 3  # steps that are looked at when an optimizer trains something new

_MOST_LINES = 8

_UNSTEPPED = (4, 8, 16, 32, 64)  # backward passes after which a step is asked for


def is_due(step: int) -> bool:
    """Whether a step, from 1, is sampled."""
    return step <= _EACH or step & (step - 1) == 0


class _Window:
    """Counts since the process began, and state between two optimizer steps.

    Attributes:
        passes: Backward passes.
        local: Whether the last pass was not to be averaged (`no_sync`).
        factor: Factor of the last loss; see `loss_terms`.
        mean: Its factor if it is of one main term, and how many elements that is of.
        sum: If it is a sum, what that was multiplied by, and how many it may be of.
    """

    def __init__(self) -> None:
        self.passes = self.steps = 0
        self.local = False
        self.factor = 0.0
        self.mean = 0.0, 0.0
        self.sum: tuple[float, tuple[float, ...]] = (0.0, ())
        self.lines: set[str] = set()
        self.probes: dict[int, _Probes] = {}


class _Probes:
    """Tensor hooks that read the local gradients of a few parameters in backward."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        fit = [n for n, p in enumerate(parameters) if _can_hook(p)]
        self.at = tuple(sorted({fit[0], fit[len(fit) // 2], fit[-1]})) if fit else ()
        self.own = [0.0] * len(self.at)
        self._handles = [self._hook(n, parameters[at]) for n, at in enumerate(self.at)]

    def _hook(self, n: int, parameter: Tensor) -> Any:
        @harmless
        def read(gradient: Tensor | None) -> None:
            # None: what made the parameter's use has no gradient for it this time.
            if gradient is not None and not sampled.is_capturing():
                self.own[n] += sampled.projected(gradient)

        handle = parameter.register_hook(read)
        hooks = parameter._backward_hooks
        if hooks is not None and handle.id in hooks:  # before the user's own
            hooks.move_to_end(handle.id, last=False)  # type: ignore[attr-defined]
        return handle

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


_window = _Window()


def reset() -> None:
    """Forget all state: the process starts to play in another run."""
    global _window
    _window = _Window()


# --- backward ---


def begun(loss: Tensor, given: Any) -> None:
    """Called before a backward pass."""
    if EXCHANGES.looking and not sampled.is_capturing():
        unit = given is None or float(given) == 1.0
        members = EXCHANGES.members
        _window.factor = loss_terms.factor_of(loss, members=members) if unit else 0.0
        terms = loss_terms.terms_of(loss) if unit else [loss_terms.Term()]
        main = loss_terms.main_of(terms)
        _window.mean = main.factor, float(main.count)
        _window.sum = loss_terms.sum_of(terms)


def bypassed(reduced: bool, local: bool) -> None:
    """Called after a backward pass: see whether it bypassed the model's wrapper."""
    wrappers = optimizers.wrappers()
    if wrappers and not _is_compiling():
        wrapper_bypass.passed(wrappers, reduced or local)


def passed(_reduced: bool, local: bool) -> None:
    """Called after a backward pass: count it, and record its line once."""
    window = _window
    window.passes += 1
    window.local = local
    if len(window.lines) < _MOST_LINES:
        site = call_site(4)
        if site not in window.lines:
            window.lines.add(site)
            RECORDER.observe(Backward(), site)
    if not window.steps and window.passes in _UNSTEPPED:
        _no_step(window.passes)


def _no_step(passes: int) -> None:
    known = optimizers.every()
    held = [p for one in known for p in one.held() if p.grad is not None]
    if not held:
        return
    for one in known:
        one.look()
    seen = exact.of_value([sampled.print_of(parameter) for parameter in held])
    observation = Unstepped(passes=passes, optimizers=len(known), weights=seen)
    RECORDER.observe(observation, call_site(4))


# --- steps ---


def stepping(
    _optimizer: torch.optim.Optimizer, known: Optimizer, closure: bool
) -> None:
    """Called before an optimizer step: sample it if it is due."""
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
            tell_each(STEP_HOOKS.looking, known)
    else:
        known.most = max(known.most, grown["moved"])
        non_finite_weights.watch(known)
    unheld_parameters.look(_window.steps, first=known.steps == 1)
    _window.sum = 0.0, ()
    _window.mean = 0.0, 0.0  # the next step may not be looked at while backward runs


@harmless
def _look(known: Optimizer, grown: dict[str, int], probes: _Probes | None) -> None:
    known.look()
    parameters = known.parameters
    gradients = [parameter.grad for parameter in parameters]
    norms = tuple(map(sampled.norm_of, gradients))
    at = probes.at if probes is not None else ()
    # A step without backward, or without a gradient, has nothing to compare.
    used = [sampled.projected(g) for n in at if (g := gradients[n]) is not None]
    finite = probes is not None and all(map(math.isfinite, [*probes.own, *used]))
    probed = at if finite and len(used) == len(at) else ()
    optimizer = known.optimizer
    assert optimizer is not None
    RECORDER.observe(
        Gradients(
            optimizer=known.number,
            step=known.steps,
            prints=tuple(map(sampled.print_of, gradients)),
            norms=norms,
            weights=tuple(map(sampled.print_of, parameters)),
            rate=max(float(group.get("lr", 1.0)) for group in optimizer.param_groups),
            probed=probed,
            own=tuple(probes.own) if probes is not None and probed else (),
            used=tuple(used) if probed else (),
            factor=_window.factor,
            scale=_window.sum[0],
            counts=_window.sum[1],
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
    factor, count = _window.mean
    if grown["passes"] == 1 and factor and count:
        single = Weighed(
            optimizer=known.number,
            window=known.steps,
            batches=1,
            factors=(factor,),
            counts=(count,),
        )
        RECORDER.observe(single, call_site(4))
    known.most = 0
    if NOT_FINITE in norms:
        non_finite_weights.examine(known)
    else:
        known.finite = known.steps


def stepped(_optimizer: torch.optim.Optimizer, known: Optimizer) -> None:
    """Called after an optimizer step: prepare the next one if it is due."""
    following = known.steps + 1
    if is_due(following) or is_due(known.steps):
        EXCHANGES.look(optimizers.trained)
    else:
        EXCHANGES.looking = False
    if is_due(following) and following <= _LAST_PROBED and not _is_compiling():
        _window.probes[known.number] = _Probes(known.parameters)
        model_inputs.watch(_window.steps + 1)


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


PROBE = Probe(reset=reset)
