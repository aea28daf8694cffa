"""Tells whether the values of tensors can be read at this moment.

Inside of a transform of `torch.func` a tensor stands for many, or for its own
derivative; fake tensors and those on "meta" have no values; while a graph is traced
there are none yet. What a probe would read there is not what the job trains with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_FAKE = torch._C._TorchDispatchModeKey.FAKE
_peek = getattr(torch._C._functorch, "peek_interpreter_stack", lambda: None)
_wrapped = getattr(torch._C._functorch, "is_functorch_wrapped_tensor", None)
_mode = getattr(torch._C, "_get_dispatch_mode", lambda _key: None)

_true = vars(torch._C.TensorBase)
lies_on_cpu: Callable[[torch.Tensor], bool] = _true["is_cpu"].__get__
"""Whether a tensor lies in the memory of the CPU. So says `is_cpu`, too, but where GPUs
are emulated it first has to find out who asks."""


def is_transforming() -> bool:
    """Whether code now runs under a `torch.func` transform or is traced."""
    return _peek() is not None or _mode(_FAKE) is not None


def has_values(tensor: object) -> bool:
    """Whether a tensor has concrete values that may be read here."""
    if not isinstance(tensor, torch.Tensor):
        return True
    if tensor.is_meta or (_wrapped is not None and _wrapped(tensor)):
        return False
    return not is_transforming() and type(tensor).__name__ != "FakeTensor"


def all_have_values(found: Any) -> bool:
    """Whether a tensor, or each tensor of a list or tuple, has values."""
    parts = found if isinstance(found, list | tuple) else (found,)
    return all(map(has_values, parts))


def steps_have_values(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer's parameters have values, so that its steps compute."""
    for group in optimizer.param_groups:
        for first in group["params"]:
            return has_values(first)
    return True
