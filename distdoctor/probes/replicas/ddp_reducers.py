"""Finds parameters whose gradients DDP's reducer waits for in vain.

A parameter that played no part in the loss gets none; then its bucket is never sent,
and backward ends without an error. The reducer knows, and says so when asked.
"""

from __future__ import annotations

import re
from typing import Any
from weakref import ref

import torch

from distdoctor.model.events import Reduced, Unreduced
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_MOST_NAMES = 100

_INDICES = re.compile(r"did not receive grad for rank \d+:((?: \d+)+)")

_MOST_NOTES = 1000  # a job that calls backward twice for one forward needs many


class _Model:
    """A DDP model, its parameters' names, and whether gradients are missing now."""

    __slots__ = ("names", "number", "open")

    def __init__(self, number: int, names: tuple[str, ...]) -> None:
        self.number = number
        self.names = names  # by index in the reducer
        self.open = False


_models: dict[ref[torch.nn.Module], _Model] = {}
"""Those that are alive. A WeakKeyDictionary takes longer to list."""

_notes = 0


@harmless
def watch(ddp: Any) -> None:
    """Check this model's reducer after each backward pass from now on."""
    if not hasattr(ddp.reducer, "_check_reducer_finalized"):
        return
    ignored = getattr(ddp, "parameters_to_ignore", ())
    names = tuple(
        name
        for name, parameter in ddp.module.named_parameters()
        if parameter.requires_grad and name not in ignored
    )
    _models[ref(ddp, _forget)] = _Model(len(_models), names)


def _forget(
    gone: ref[torch.nn.Module],
    known: dict[ref[torch.nn.Module], _Model] = _models,
) -> None:  # the module may be empty by then
    known.pop(gone, None)


def install() -> None:
    """Wrap autograd's engine, to check the reducers after each backward pass."""
    autograd: Any = torch.autograd
    made = autograd._engine_run_backward

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        result = made(*args, **kwargs)
        if _models:
            _look()
        return result

    autograd._engine_run_backward = run_backward


@harmless
def _look() -> None:
    if torch._C._current_graph_task_id() != -1:
        return  # a backward pass inside another one: recomputed activations
    for reference, model in list(_models.items()):
        ddp = reference()
        if ddp is None:
            continue
        missing = _missing(ddp)
        if missing is not None or model.open:
            _tell(model, missing)


def _missing(ddp: Any) -> str | None:
    """What the reducer says is missing; None if it has all it waits for.

    Source: `Reducer::check_finalized` takes its lock and reads a flag; it is there for
    this question (torch 2.8 to 2.13, torch/csrc/distributed/c10d/reducer.cpp).
    """
    try:
        ddp.reducer._check_reducer_finalized()
    except RuntimeError as error:
        return str(error)
    return None


def _tell(model: _Model, missing: str | None) -> None:
    global _notes
    if missing is None:
        model.open = False
        RECORDER.tell(Reduced(model=model.number))
        return
    _notes += 1
    if _notes > _MOST_NOTES:
        return
    model.open = True
    found = _INDICES.search(missing)
    numbers = [int(number) for number in found[1].split()] if found else []
    names = [model.names[n] for n in numbers if n < len(model.names)]
    event = Unreduced(parameters=tuple(names[:_MOST_NAMES]), model=model.number)
    RECORDER.tell(event, call_site(4))


PROBE = Probe(install=install)
