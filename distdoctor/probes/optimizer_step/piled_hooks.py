"""Finds hooks of the user's that are registered repeatedly on the same object.

Asked at the steps at which gradients are looked at: how often one and the same function
hangs on a parameter, or on a module. Hooks that are removed are not there then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import CodeType
from typing import Any

from distdoctor.model.observations.optimizer_step import Piled
from distdoctor.probes.call_sites import is_users, text_of
from distdoctor.probes.optimizer_step.optimizers import Optimizer
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replicas import trained_models

_MOST_PARAMETERS = 64  # of an optimizer, that are asked

_MOST_MODULES = 512  # of all models

_MOST_HOOKS = 256  # of one object

_RISES = 3
"""Looks, each with more of the same hook than the one before."""

_ON_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")

_ON_MODULES = (
    *("_forward_hooks", "_forward_pre_hooks"),
    *("_backward_hooks", "_backward_pre_hooks"),
)

_Key = tuple[int, str, CodeType]
"""An object, the attribute that holds its hooks, and the code of one."""

_counts: dict[_Key, list[int]] = {}

_reported: set[CodeType] = set()


def reset() -> None:
    """Forget all state: the process starts to play in another run."""
    _counts.clear()
    _reported.clear()


def looking(known: Optimizer) -> None:
    """Called before an optimizer step that is sampled."""
    found: Counter[_Key] = Counter()
    names: dict[int, str] = {}
    for owner, name, kinds in _owners(known):
        for kind in kinds:
            hooks = getattr(owner, kind, None)
            if not hooks:
                continue
            names[id(owner)] = name
            for hook in list(hooks.values())[:_MOST_HOOKS]:
                code = _code_of(hook)
                if code is not None and is_users(code.co_filename):
                    found[id(owner), kind, code] += 1
    for key in [one for one in _counts if one not in found]:
        del _counts[key]
    for key, count in found.items():
        before = _counts.setdefault(key, [])
        if before and count < before[-1]:
            before.clear()
        if not before or count > before[-1]:
            before.append(count)
        owner_id, kind, code = key
        if len(before) >= _RISES and code not in _reported:
            _reported.add(code)
            observation = Piled(
                optimizer=known.number,
                step=known.steps,
                count=count,
                first=before[0],
                name=names[owner_id],
                forward="forward" in kind,
            )
            site = text_of(code.co_filename, code.co_firstlineno, code.co_qualname)
            RECORDER.observe(observation, site)


def _owners(known: Optimizer) -> Iterator[tuple[Any, str, tuple[str, ...]]]:
    some = known.parameters[:_MOST_PARAMETERS]
    if any(getattr(one, kind, None) for one in some for kind in _ON_PARAMETERS):
        for parameter, name in zip(some, known.names(range(len(some))), strict=True):
            yield parameter, name, _ON_PARAMETERS
    left = _MOST_MODULES
    for model in trained_models.models():
        module = model.module
        if module is None:
            continue
        for name, part in module.named_modules():
            if not left:
                return
            left -= 1
            yield part, name or type(part).__name__, _ON_MODULES


def _code_of(hook: Any) -> CodeType | None:
    """Of the function that is called in the end."""
    hook = getattr(hook, "func", hook)  # a partial
    code = getattr(hook, "__code__", None)
    if code is None and callable(hook):
        code = getattr(type(hook).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else None


PROBE = Probe(reset=reset)
