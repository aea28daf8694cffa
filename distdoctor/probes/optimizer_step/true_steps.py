"""Registers hooks for steps that optimizers really make, each of which counts once.

Horovod's optimizer is of a class derived from the user's: its `step` averages gradients
and calls the inherited one. Torch calls hooks around both; the inner one is the step.
And `hvd.broadcast_optimizer_state` makes a step with zero gradients on ranks whose
optimizer has no state yet, which is no step of training.

Source: Horovod 0.28.1, torch/optimizer.py and torch/functions.py; torch 2.13,
optim/optimizer.py (`profile_hook_step`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

from distdoctor.probes import horovod
from distdoctor.probes.patching import traced_as

Hook = Callable[[Any, Any, Any], object]

_ADASUM = "_starting_models"
"""Its optimizer steps each parameter by itself in backward, and reduces what comes."""

_PARTLY = {"broadcast_optimizer_state", "_allreduce_grad_async"}
"""Functions of Horovod that make steps which are none of training."""

_WITHIN = (
    f"horovod{os.sep}torch{os.sep}functions.py",
    f"horovod{os.sep}torch{os.sep}optimizer.py",
)


def before_steps(hook: Hook) -> None:
    """Call a function before each true step of any optimizer.

    Args:
        hook: Gets the optimizer and the arguments of `step`.
    """
    torch_optimizer.register_optimizer_step_pre_hook(_true(hook))


def after_steps(hook: Hook) -> None:
    """Call a function after each true step of any optimizer.

    Args:
        hook: As in `before_steps`.
    """
    torch_optimizer.register_optimizer_step_post_hook(_true(hook))


def _true(hook: Hook) -> Callable[[Any, Any, Any], None]:
    is_compiling = torch.compiler.is_dynamo_compiling  # the quicker of the two

    def guarded(optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_compiling():
            return
        if horovod.OPTIMIZERS not in sys.modules or _is_true(optimizer):
            hook(optimizer, args, kwargs)

    traced_as(torch_optimizer.Optimizer.profile_hook_step, guarded)
    return guarded


def _is_true(optimizer: Any) -> bool:
    """Whether the step that torch is about to call hooks for is one of training."""
    frame = sys._getframe(2)  # of torch's function around `step`
    if type(optimizer).__module__ == horovod.OPTIMIZERS:
        step = frame.f_locals.get("func")
        if getattr(step, "__module__", "") == horovod.OPTIMIZERS:
            return hasattr(optimizer, _ADASUM)
    caller = frame.f_back
    for _ in range(2):
        if caller is None:
            return True
        code = caller.f_code
        if code.co_name in _PARTLY and code.co_filename.endswith(_WITHIN):
            return False
        caller = caller.f_back
    return True
