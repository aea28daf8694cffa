"""Wraps methods of GradScaler, `zero_grad` and `no_sync`, and calls registered probes.

There are hooks for the steps of optimizers alone, and none for what clears or scales
gradients; for what clips them see `clip_hooks`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from distdoctor.probes.harmless import harmless
from distdoctor.probes.patching import traced_as
from distdoctor.probes.probe import Probe

Tell = Callable[..., Any]


class CallHooks:
    """The registered functions, by the moment at which they are called.

    They get the object whose method it is, and its first argument or its result.
    """

    def __init__(self) -> None:
        self.clearing: list[Tell] = []  # optimizer or module
        self.cleared: list[Tell] = []
        self.scaled: list[Tell] = []  # scaler, what was given, what came of it
        self.unscaling: list[Tell] = []  # scaler, optimizer
        self.unscaled: list[Tell] = []
        self.trying: list[Tell] = []  # scaler, optimizer: before its step
        self.tried: list[Tell] = []
        self.updated: list[Tell] = []  # scaler
        self.unsynced: list[Tell] = []  # wrapper
        self.scheduled: list[Tell] = []  # optimizer
        self.refused: list[Tell] = []  # scaler, optimizer, method, message


CALL_HOOKS = CallHooks()


def install() -> None:
    """Wrap the methods; called at the first `init_process_group`."""
    scaler = torch.amp.GradScaler
    for name in ("unscale_", "step", "update"):
        _refusing(scaler, name)
    library: Any = torch
    cleared: Any = Optimizer
    _around(cleared, "zero_grad", CALL_HOOKS.clearing, CALL_HOOKS.cleared)
    cleared.zero_grad = library._disable_dynamo(cleared.zero_grad)  # as it was
    _around(nn.Module, "zero_grad", CALL_HOOKS.clearing, CALL_HOOKS.cleared)
    _around(scaler, "unscale_", CALL_HOOKS.unscaling, CALL_HOOKS.unscaled)
    _around(scaler, "step", CALL_HOOKS.trying, CALL_HOOKS.tried)
    _around(scaler, "update", [], CALL_HOOKS.updated)
    _around(DistributedDataParallel, "no_sync", CALL_HOOKS.unsynced, [])
    made = scaler.scale

    @functools.wraps(made)
    def scale(self: Any, outputs: Any) -> Any:
        result = made(self, outputs)
        for tell in CALL_HOOKS.scaled:
            tell(self, outputs, result)
        return result

    scaler.scale = scale  # type: ignore[method-assign]


def tell(listeners: list[Tell], function: Tell) -> None:
    """Register a function, whose errors are kept from the job."""
    listeners.append(harmless(function))


def _refusing(scaler: Any, name: str) -> None:
    """Tell of errors that a scaler raises itself: it was called out of turn."""
    made = getattr(scaler, name)

    @functools.wraps(made)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return made(self, *args, **kwargs)
        except (RuntimeError, AssertionError) as error:
            if _raised_in(error, made.__code__.co_filename):
                given = args[0] if args else kwargs.get("optimizer")
                for tell in CALL_HOOKS.refused:
                    tell(self, given, name, str(error))
            raise

    setattr(scaler, name, method)


def _raised_in(error: BaseException, file: str) -> bool:
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and traceback.tb_frame.f_code.co_filename == file


def _around(kind: Any, name: str, before: list[Tell], after: list[Tell]) -> None:
    made = getattr(kind, name)

    @functools.wraps(made)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return made(self, *args, **kwargs)
        given = args[0] if args else kwargs.get("optimizer")
        for tell in before:
            tell(self, given)
        result = made(self, *args, **kwargs)
        for tell in after:
            tell(self, given)
        return result

    traced_as(made, method)
    setattr(kind, name, method)


PROBE = Probe(install=install)
