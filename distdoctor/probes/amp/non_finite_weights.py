"""Finds the step at which parameters become NaN or Inf, and if the loss was before.

On the CPU two numbers are read at each step. On a GPU, which would have to be waited
for, only the steps that are looked at anyway tell.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from distdoctor.model.observations.gradients import NotFinite
from distdoctor.probes.amp import spoiling_operation
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.fingerprints.first_elements import IS_NUMBER, cell_of
from distdoctor.probes.fingerprints.sampled import is_finite
from distdoctor.probes.harmless import harmless
from distdoctor.probes.optimizer_step.optimizers import Optimizer
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_MOST_NAMES = 20


class _Search:
    """State of the search for the first non-finite loss, gradient or parameter.

    Attributes:
        loss: The user's line whose loss was not finite, since the last step.
        operation: The operation that produced it.
        looked: Whether that operation was searched for.
        reported: Whether non-finite parameters were recorded.
        pending: Gradients that were not finite, before the step that uses them.
    """

    def __init__(self) -> None:
        self.loss: str | None = None
        self.operation = ""
        self.looked = False
        self.reported = False
        self.pending: tuple[Optimizer, list[str]] | None = None


_search = _Search()


def backward(loss: Tensor) -> bool:
    """Called before a backward pass: whether its scalar loss is seen as non-finite."""
    search = _search
    if not loss.is_cpu or math.isfinite(loss.item()):
        return False
    if search.loss is None:
        search.loss = call_site(4)
        _find_operation(loss)
    return True


@harmless
def _find_operation(loss: Tensor) -> None:
    """Look once; what a GradScaler leaves out may be no harm."""
    search = _search
    search.operation = ""
    if not search.looked and not search.reported:
        search.looked = True
        search.operation = spoiling_operation.operation_in(loss)


def watch(known: Optimizer) -> None:
    """Called before an optimizer step that is not sampled otherwise."""
    if not _search.reported and _is_bad(known.parameters):
        examine(known)


def examine(known: Optimizer) -> None:
    """Called when gradients are non-finite: check if parameters already are."""
    if _search.reported:
        return
    weights = [n for n, p in enumerate(known.parameters) if not is_finite(p)]
    if weights:
        _tell(known, known.names(weights), weights=True)
        return
    bad = [n for n, p in enumerate(known.parameters) if not is_finite(p.grad)]
    _search.pending = known, known.names(bad)


def stepped(_optimizer: torch.optim.Optimizer, known: Optimizer) -> None:
    """Called after an optimizer step: check if such gradients spoilt parameters."""
    search = _search
    if search.pending is not None and search.pending[0] is known:
        names = search.pending[1]
        search.pending = None
        if not all(map(is_finite, known.parameters)):
            _tell(known, names, weights=False)
    search.loss = None


def _is_bad(parameters: list[Tensor]) -> bool:
    """Whether a number of the first or last gradient says that there are NaN or Inf.

    They come into all gradients, or nearly all, within a step.
    """
    for parameter in (parameters[0], parameters[-1]) if parameters else ():
        gradient = parameter.grad
        if gradient is None:
            continue
        cell = cell_of(gradient) if gradient.dtype in IS_NUMBER else None
        if cell is not None:
            if not math.isfinite(cell.value):
                return True
        elif (
            gradient.is_cpu
            and gradient.layout is torch.strided
            and not hasattr(gradient, "to_local")
            and gradient.numel()
            and not math.isfinite(gradient.reshape(-1)[0].item())
        ):
            return True
    return False


def _tell(known: Optimizer, names: list[str], *, weights: bool) -> None:
    search = _search
    search.reported = True
    line = None if weights else search.loss
    RECORDER.observe(
        NotFinite(
            optimizer=known.number,
            step=known.steps - weights,
            finite=known.finite,
            names=tuple(names[:_MOST_NAMES]),
            count=len(names),
            of=len(known.parameters),
            loss=line is not None,
            gradients=not weights,
            operation=search.operation if line is not None else "",
        ),
        call_site(4) if line is None else line,
    )


def reset() -> None:
    """Forget all state: the process starts to play in another run."""
    global _search
    _search = _Search()


PROBE = Probe(reset=reset)
