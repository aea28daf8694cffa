"""Communication hooks of torch's that send less than the gradients."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Any

from torch import nn

_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks."

_EXACT = {"default_hooks", "debugging_hooks", "mixed_precision_hooks"} | {
    "ddp_zero_hook",
    "optimizer_overlap_hooks",
}
"""Modules in it whose hooks average all values, if in fewer bits; or wrap others."""


def lossy_hooks(module: nn.Module) -> Iterator[str]:
    """Names of the hooks of a wrapper that give other gradients than their average.

    Args:
        module: It may be none that has hooks.
    """
    for hook, _ in getattr(module, "_comm_hooks", ()):
        for one in (hook, *_wrapped(hook)):
            of = str(getattr(one, "__module__", ""))
            if of.startswith(_HOOKS) and of.removeprefix(_HOOKS) not in _EXACT:
                yield str(getattr(one, "__name__", of))


def _wrapped(hook: Any) -> Iterator[Any]:
    """The functions that a hook was made of, such as by `fp16_compress_wrapper`."""
    for cell in getattr(hook, "__closure__", None) or ():
        if isinstance(cell.cell_contents, FunctionType):
            yield cell.cell_contents
