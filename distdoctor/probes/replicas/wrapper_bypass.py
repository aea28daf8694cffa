"""Finds the line that calls the bare model, or a part of it, and not its DDP wrapper.

A hook for every forward pass costs; this one is there only after a backward pass in
which a wrapper sent nothing, and only until it has seen a line or a few passes. What
calls the bare model may be right in doing so, as a generator's step calls the critic:
the line is told if the next backward pass is one that averages nothing.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from distdoctor.model.observations.gradients import Bypassed
from distdoctor.probes.call_sites import call_site, frame_above, is_users, text_of
from distdoctor.probes.frame_variables import Names
from distdoctor.probes.harmless import harmless
from distdoctor.probes.patching import unseen_by_compilers
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_MOST_TRIES = 6  # windows in which it is looked for

_MOST_CALLS = 1000  # of modules, in each of them

_FORWARD = torch.nn.parallel.DistributedDataParallel.forward.__code__


class _Search:
    def __init__(self) -> None:
        self.tries = 0
        self.handle: Any = None
        self.calls = 0
        self.bare: set[int] = set()
        self.line = ""  # that called a bare model since the last backward pass


_search = _Search()


def passed(wrappers: list[Any], averaged: bool) -> None:
    """Called after a backward pass: watch the next forward passes if needed.

    Args:
        wrappers: The DDP wrappers that are alive.
        averaged: Whether gradients were averaged, or were not to be.
    """
    search = _search
    line, search.line = search.line, ""
    if line and not averaged:
        RECORDER.observe(Bypassed(), line)
        search.tries = _MOST_TRIES
    elif line or not averaged:
        _watch(wrappers)


def _watch(wrappers: list[Any]) -> None:
    search = _search
    if search.handle is None and search.tries < _MOST_TRIES:
        # A method of the model's own calls its parts, and never the model.
        search.bare = {id(one) for ddp in wrappers for one in ddp.module.modules()}
        search.tries += 1
        search.calls = 0
        search.handle = register_module_forward_pre_hook(
            unseen_by_compilers(_called, torch.nn.Module._call_impl)
        )


@harmless
def _called(module: torch.nn.Module, _args: Any) -> None:
    search = _search
    search.calls += 1
    found = id(module) in search.bare and _trains(module) and not _inside()
    if found:
        search.line = _line() or call_site(3)
    if (found or search.calls >= _MOST_CALLS) and search.handle is not None:
        search.handle.remove()
        search.handle = None


def _line() -> str:
    """The innermost line of the user's that is none of the model's; "": none."""
    frame = frame_above(2)
    while frame is not None:
        code = frame.f_code
        if is_users(code.co_filename) and not _is_of_model(frame):
            return text_of(code.co_filename, frame.f_lineno, code.co_qualname)
        frame = frame.f_back
    return ""


def _is_of_model(frame: FrameType) -> bool:
    """Whether a method of the model, or of one of its parts, runs in a frame."""
    code = frame.f_code
    if not code.co_argcount:
        return False
    with Names(frame) as value:
        return id(value(code.co_varnames[0])) in _search.bare


def _trains(module: torch.nn.Module) -> bool:
    """Whether backward may give gradients to some of its parameters."""
    return torch.is_grad_enabled() and any(
        parameter.requires_grad for parameter in module.parameters()
    )


def _inside() -> bool:
    """Whether the wrapper's own forward is what called."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _FORWARD:
            return True
        above = frame.f_back
        if above is None:
            return False
        frame = above
    return False


def reset() -> None:
    """Forget all state: the process starts to play in another run."""
    global _search
    if _search.handle is not None:
        _search.handle.remove()
    _search = _Search()


PROBE = Probe(reset=reset)
