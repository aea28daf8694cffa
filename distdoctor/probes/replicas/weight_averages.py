"""Follows copies of a trained model, such as moving averages of its weights.

They are looked for after a few steps. One that changes from step to step is followed
for one step line by line, to know what changes it; and what it weighs is told when it
is put into evaluation mode, or computes something without gradients, as one does that
is always in that mode; frozen parameters get none either. Others are made for one
evaluation, and filled with an average that is kept elsewhere: they are met when they
are put into that mode. A hook for every forward pass costs: it is there only where
there are copies.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from distdoctor.model.observations.replicas import Changed, Copied
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.fingerprints import exact
from distdoctor.probes.harmless import harmless
from distdoctor.probes.patching import unseen_by_compilers
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replicas import live_modules
from distdoctor.probes.replicas.changing_lines import Lines
from distdoctor.probes.replicas.watched_models import Watched, is_whole

FIRST = 2000
"""Numbers from here on are for copies, where a model's number is asked for."""

_LOOKS = (1, 2, 4, 8, 16)  # steps after which copies are looked for
_MOST_LOOKS = 16  # at all modules, for all models together
_MOST_COPIES = 4
_MOST_ADOPTIONS = 64  # modules that are compared with the models
_MOST_TOLD = 50  # evaluations of one
_MOST_TRIES = 4  # steps in which the line of one is looked for
_TENSORS = 16  # of a copy, whose heads are looked at in each step
_HEAD = 256  # bytes of each


class _Copy:
    """A copy of a trained model."""

    def __init__(self, module: nn.Module, watched: Watched) -> None:
        self.ref = weakref.ref(module)
        self.watched = watched
        self.number = FIRST + next(_numbers)
        self.reported = self.tries = 0
        self.moved = self.evaluating = self.computing = False
        self.asked = 0  # step behind which it has computed something
        self.lines: Lines | None = None
        self.found = False
        self._heads = exact.Heads(_HEAD)
        self.seen = self.head()

    def head(self) -> int:
        """A cheap fingerprint of the copy's parameters."""
        module = self.ref()
        if module is None:
            return 0
        every = list(module.parameters())
        return self._heads.print_of(every[:: -(-len(every) // _TENSORS)])


_numbers = count()

_copies: dict[int, _Copy] = {}
"""By the identity of the module."""

_models: dict[int, tuple[weakref.ref[nn.Module], Watched]] = {}
"""Trained models, by their numbers, and their types below."""

_types: set[type] = set()

_adoptions = 0  # modules that were looked at when they were put into evaluation mode

_looks = 0

_hooks: list[Any] = []


def reset() -> None:
    """Forget all state: the process starts to play in another run."""
    global _adoptions, _looks, _numbers
    _numbers = count()
    _copies.clear()
    _models.clear()
    _types.clear()
    _adoptions = _looks = 0
    while _hooks:
        _hooks.pop().remove()


def stepping() -> None:
    """Called before an optimizer step."""
    for copy in _copies.values():
        if copy.lines is not None:
            copy.lines.stop()
            copy.lines = None
        if not copy.moved:
            copy.moved = copy.head() != copy.seen


@harmless
def stepped(watched: Watched, module: nn.Module | None) -> None:
    """Called after an optimizer step of a model."""
    if module is not None and watched.step in _LOOKS:
        _models[watched.number] = weakref.ref(module), watched
        _types.add(type(module))
        if len(_copies) < _MOST_COPIES:
            _find(watched, module)
    for copy in _copies.values():
        wanted = copy.moved and not copy.found and copy.tries < _MOST_TRIES
        if copy.watched is watched and wanted:
            _follow(copy)
            break  # one at a time


def _find(watched: Watched, module: nn.Module) -> None:
    global _looks
    own = {name: one.shape for name, one in module.named_parameters()}
    if _looks >= _MOST_LOOKS or not own or not _is_readable(module):
        return
    _looks += 1
    for thing in live_modules.modules(type(module)):
        if type(thing) is not type(module) or thing is module or id(thing) in _copies:
            continue
        theirs = {name: one.shape for name, one in thing.named_parameters()}
        if theirs == own and not _is_trained(thing) and len(_copies) < _MOST_COPIES:
            _copies[id(thing)] = _Copy(thing, watched)
    _hook()


def _is_readable(module: nn.Module) -> bool:
    return all(is_whole(one) and one.is_cpu for one in module.parameters())


def _hook() -> None:
    if _copies and not _hooks and not _is_compiling():
        _hooks.append(
            register_module_forward_pre_hook(
                unseen_by_compilers(_called, nn.Module._call_impl)
            )
        )


@harmless
def _adopt(module: nn.Module) -> None:
    """Take a module for a copy that was made for one evaluation, if it is like a model.

    One that `deepcopy` made of a trained model has gradients as well. A model itself is
    one where other weights were put into it, such as their average.
    """
    global _adoptions
    if _adoptions >= _MOST_ADOPTIONS:
        return
    models = [one for one in _models.values() if one[0]() is not None]
    for ref, watched in models:
        if ref() is module:
            if not watched.is_as_stepped() and _is_readable(module):
                _adoptions += 1
                _copies[id(module)] = copy = _Copy(module, watched)
                copy.found = True  # each step changes it
                _hook()
            return
    _adoptions += 1
    theirs = {name: one.shape for name, one in module.named_parameters()}
    for ref, watched in models:
        model = ref()
        if model is None or type(model) is not type(module):
            continue
        own = {name: one.shape for name, one in model.named_parameters()}
        if own and own == theirs:
            if _is_readable(module):
                _copies[id(module)] = _Copy(module, watched)
                _hook()
            return


def _is_compiling() -> bool:
    """Whether torch.compile was used: it would compile again for a new hook."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    frames = None if dynamo is None else dynamo.counters.get("frames")
    return bool(frames and frames["total"])


def _is_trained(module: nn.Module) -> bool:
    return any(one.grad is not None for one in module.parameters())


def _follow(copy: _Copy) -> None:
    copy.tries += 1
    step = copy.watched.step + 1

    def changed(site: str) -> None:
        copy.found = True
        RECORDER.observe(Changed(model=copy.number, step=step), site)

    copy.lines = Lines(copy.head, changed)
    if not copy.lines.start(sys._getframe()):
        copy.lines = None


def turned(module: Any, mode: bool) -> None:
    """Called when a module was put into training mode (True) or evaluation mode."""
    known = _copies.get(id(module))
    if known is not None and known.ref() is None:  # another was made in its place
        del _copies[id(module)]
        known = None
    if known is not None:
        _tell(known, module, mode)
    elif not mode and type(module) in _types:
        # It may be filled now; it is looked at when it computes.
        _adopt(module)


def _called(module: nn.Module, _args: Any) -> None:
    """A module is about to compute; hot where there are copies."""
    copy = _copies.get(id(module))
    if copy is None or copy.evaluating:
        return
    if not torch.is_grad_enabled() or _is_frozen(module):
        _compute(copy, module)


def _is_frozen(module: nn.Module) -> bool:
    return not any(one.requires_grad for one in module.parameters())


@harmless
def _compute(copy: _Copy, module: nn.Module) -> None:
    step, last = copy.watched.step, copy.asked
    copy.asked = step
    # A teacher computes in each step of training.
    often = step == last + 1 and step & (step - 1)
    if step == last or often or copy.ref() is not module or _is_done(copy):
        return
    copy.computing = True
    _say(copy, module, over=False)


def training() -> None:
    """Called before a backward pass: evaluations by copies are over."""
    for copy in _copies.values():
        if copy.computing:
            copy.computing = False
            _end(copy)


@harmless
def _end(copy: _Copy) -> None:
    module = copy.ref()
    if module is not None and not copy.evaluating and not _is_done(copy):
        _say(copy, module, over=True)


def _is_done(copy: _Copy) -> bool:
    return RECORDER.writer is None or copy.reported >= _MOST_TOLD


@harmless
def _tell(copy: _Copy, module: nn.Module, mode: bool) -> None:
    if copy.ref() is not module or _is_done(copy) or (mode and not copy.evaluating):
        return
    copy.evaluating = not mode
    _say(copy, module, over=mode)


def _say(copy: _Copy, module: nn.Module, *, over: bool) -> None:
    copy.reported += 1
    if not copy.moved:
        copy.moved = copy.head() != copy.seen
    here: Sequence[Tensor] = () if over else list(module.parameters())
    observation = Copied(
        model=copy.watched.number,
        copy=copy.number,
        steps=copy.watched.step,
        names=() if over else tuple(name for name, _ in module.named_parameters()),
        prints=exact.of_tensors(here),
        moved=copy.moved,
        over=over,
    )
    RECORDER.observe(observation, call_site(4))


PROBE = Probe(reset=reset)
