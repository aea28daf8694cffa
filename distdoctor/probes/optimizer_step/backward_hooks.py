"""Wraps autograd's engine, so that probes can register hooks for backward passes.

A hook on a tensor or a layer would be copied and pickled with it, and there is none for
all backward passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from distdoctor.probes.readability import all_have_values

Begin = Callable[[tuple[Any, ...]], Any]
"""Gets what the engine was called with: the tensors that backward begins at first."""

_parts: list[Begin] = []
_begins: list[Begin] = []
_ends: list[Callable[[], Any]] = []


def watch(
    begin: Begin | None = None,
    end: Callable[[], Any] | None = None,
    part: Begin | None = None,
) -> None:
    """Register functions to call around backward passes; they must not raise.

    Args:
        begin: Before each pass.
        end: After each pass that did not raise.
        part: Before each pass, and before those inside of one, which checkpoints make.
    """
    if not (_parts or _begins or _ends):
        _install()
    _begins.extend(filter(None, [begin]))
    _ends.extend(filter(None, [end]))
    _parts.extend(filter(None, [part]))


def _install() -> None:
    autograd: Any = torch.autograd
    made = autograd._engine_run_backward

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        if args and not all_have_values(args[0]):  # a derivative that nobody steps by
            return made(*args, **kwargs)
        for look in _parts:
            look(args)
        if torch._C._current_graph_task_id() != -1:
            return made(*args, **kwargs)
        for begin in _begins:
            begin(args)
        result = made(*args, **kwargs)
        for end in _ends:
            end()
        return result

    autograd._engine_run_backward = run_backward
