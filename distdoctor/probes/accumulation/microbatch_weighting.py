"""Records the weight of each micro-batch's gradient in an accumulated optimizer step.

Which backward passes a step is made with is seen from a parameter of each optimizer:
those that changed its gradient. Losses are read at a few windows only.
"""

from __future__ import annotations

import sys
import weakref
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from distdoctor.model.observations.gradients import Weighed
from distdoctor.probes.accumulation import loss_terms
from distdoctor.probes.accumulation.backward_passes import (
    GONE,
    Account,
    BackwardPass,
    latest,
)
from distdoctor.probes.accumulation.batch_identity import batches_of, stack
from distdoctor.probes.accumulation.loss_terms import Term
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.fingerprints import sampled
from distdoctor.probes.optimizer_step import call_hooks, optimizers
from distdoctor.probes.optimizer_step.call_hooks import CALL_HOOKS
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_MOST_OPTIMIZERS = 4

_MOST_PASSES = 256  # of a window that is told

_MOST_CONSTANTS = 8

_TORCH_HOOKS = "torch.distributed.algorithms."

_BACKWARD = torch.autograd.backward.__code__


class Weighing:
    """Follows the accumulated backward passes and loss factors of each optimizer."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all state: the process starts to play in another run."""
        self._accounts: dict[int, Account] = {}
        self._pass: BackwardPass | None = None
        self._scaled: tuple[weakref.ref[Tensor], list[Term]] | None = None
        self._scaler: weakref.ref[Any] | None = None

    # --- what happens ---

    def begin(self, loss: Tensor, given: Any) -> None:
        """Called before a backward pass, with the gradient given for the loss."""
        self._pass = None
        due = False
        for account in self._every():
            now = account.before = account.state()
            if account.count and now != account.seen:
                self._changed(account, now)
            if account.due:
                due = True
                account.changed()
        if due and not sampled.is_capturing():
            self._pass = self._read(loss, given)

    def passed(self, _reduced: bool, _local: bool) -> None:
        """Called after a backward pass: note which optimizers it gave gradients."""
        this, self._pass = self._pass, None
        self._scaled = None  # it would keep labels alive
        for account in self._accounts.values():
            if account.unfit:
                continue
            if account.gradient() is None:
                account.choose()
            account.seen = account.state()
            if account.seen == account.before:
                account.strange += 1
                continue
            account.count += 1
            if not account.due:
                continue
            if this is not None and len(account.passes) < _MOST_PASSES:
                account.passes.append(replace(this, changed=account.changed()))
            gradient = account.gradient()
            if gradient is not None and not sampled.is_capturing():
                account.own = sampled.projected(gradient)

    def stepping(
        self, optimizer: Any, known: optimizers.Optimizer, closure: bool
    ) -> None:
        """Called before an optimizer step, which may run a closure."""
        account = self._accounts.get(known.number)
        if account is None or not account.count:
            return
        if closure:  # backward may run in it
            account.reset()
            return
        if account.count == 1:
            account.singles += 1
        elif account.due:
            weighed = None if account.unclear else self._weighed(account, optimizer)
            account.windows += 1
            if weighed is not None:
                RECORDER.observe(weighed, call_site(4))
        else:
            account.windows += 1
        account.mark = latest()
        account.reset()

    def scaled(self, scaler: Any, loss: Any, result: Any) -> None:
        """Called when a GradScaler has scaled a loss."""
        if not isinstance(loss, Tensor) or not isinstance(result, Tensor):
            return
        due = any(account.due for account in self._every())
        if result is not loss and due:
            self._scaled = weakref.ref(result), loss_terms.terms_of(loss, waits=False)
            self._scaler = weakref.ref(scaler)

    def cleared(self, owner: Any, _result: Any) -> None:
        """Called after `zero_grad` of an optimizer; other clearing is detected."""
        known = optimizers.of(owner) if isinstance(owner, Optimizer) else None
        account = None if known is None else self._accounts.get(known.number)
        if account is not None:
            account.reset()

    # --- a window ---

    def _every(self) -> list[Account]:
        alive = optimizers.every()
        if len(alive) > _MOST_OPTIMIZERS:
            self._accounts.clear()
            return []
        numbers = {known.number for known in alive}
        if numbers != self._accounts.keys():
            for number in self._accounts.keys() - numbers:
                del self._accounts[number]
            for known in alive:
                self._accounts.setdefault(known.number, Account(known))
        return [one for one in self._accounts.values() if not one.unfit]

    def _changed(self, account: Account, now: tuple[int, int]) -> None:
        """Between two passes a gradient is not what backward left."""
        gradient = account.gradient()
        gone = now == GONE or gradient is None
        if gone or (gradient is not None and gradient.is_cpu and not gradient.any()):
            account.reset()
        else:
            account.unclear = True

    def _read(self, loss: Tensor, given: Any) -> BackwardPass | None:
        if given is not None and not _is_one(given):
            return BackwardPass(latest(), Term(), (), 0)
        if self._scaled is not None and self._scaled[0]() is loss:
            terms = self._scaled[1]
        else:
            terms = loss_terms.terms_of(loss, waits=False)
            self._scaler = None
        main = loss_terms.main_of(terms)
        constants = {abs(one) for term in terms for one in term.constants}
        constants |= {abs(term.factor) for term in terms if term.factor}
        return BackwardPass(
            latest(),
            main,
            tuple(sorted(constants - {1.0}))[:_MOST_CONSTANTS],
            stack(),
        )

    def _weighed(self, account: Account, optimizer: Any) -> Weighed | None:
        passes = account.passes
        if len(passes) != account.count or account.is_hooked() or _are_hooked():
            return None
        batches, parts = batches_of(account)
        if batches < 2:
            return None
        gradient = account.gradient()
        if gradient is None:
            return None
        used = sampled.projected(gradient)
        scaler = None if self._scaler is None else self._scaler()
        if scaler is not None and getattr(optimizer, "grad_scale", None) is None:
            used *= float(scaler._scale)
        constants = {constant for one in passes for constant in one.constants}
        return Weighed(
            optimizer=account.known.number,
            window=account.windows + 1,
            batches=batches,
            factors=tuple(one.main.factor for one in passes),
            counts=tuple(float(one.main.count) for one in passes),
            constants=tuple(sorted(constants))[:_MOST_CONSTANTS],
            parts=parts,
            own=account.own,
            used=used,
        )


def _is_one(given: Any) -> bool:
    """Whether a loss's own gradient is 1, without waiting for a GPU."""
    if isinstance(given, Tensor) and given.is_cpu:
        return given.numel() == 1 and float(given) == 1.0
    frame = sys._getframe(1)
    for _ in range(12):
        if frame.f_code is _BACKWARD:  # nobody gave one
            asked = frame.f_locals.get("grad_tensors")
            all_of_them = asked if isinstance(asked, list | tuple) else [asked]
            return all(one is None for one in all_of_them)
        above = frame.f_back
        if above is None:
            break
        frame = above
    return False


def _are_hooked() -> bool:
    """Whether a wrapper averages gradients in a way of the user's own."""
    return any(
        not str(getattr(hook, "__module__", "")).startswith(_TORCH_HOOKS)
        for ddp in optimizers.wrappers()
        for hook, _ in getattr(ddp, "_comm_hooks", ())
    )


WEIGHING = Weighing()


def install() -> None:
    """Install the probe; called at the first `init_process_group`."""
    call_hooks.tell(CALL_HOOKS.cleared, WEIGHING.cleared)
    call_hooks.tell(CALL_HOOKS.scaled, WEIGHING.scaled)


PROBE = Probe(install=install, reset=WEIGHING.reset)
