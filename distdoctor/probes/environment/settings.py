"""Records a rank's settings: its arguments and its optimizers' hyperparameters."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

from distdoctor.probes import horovod
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distdoctor.model.events import Observation

_MOST_ARGUMENTS = 300
_MOST_GROUPS = 64
_LONGEST = 80  # characters of a value

_SCALARS = (bool, int, float, str, type(None))

_early: list[tuple[Observation, str]] = []

_MOST_EARLY = 64

# --- arguments ---


def _argparse(module: Any) -> None:
    kind = module.ArgumentParser
    made = kind.parse_known_args

    @functools.wraps(made)
    def parse_known_args(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = made(self, *args, **kwargs)
        _read(result)
        return result

    kind.parse_known_args = parse_known_args


@harmless
def _read(result: Any) -> None:
    if not (site := call_site(2)):
        return  # a library reads its own
    from distdoctor.journal.secret_masking import masked_value
    from distdoctor.model.observations.environment import Arguments

    read = getattr(result[0], "__dict__", {})  # a namespace may be the user's own
    items = sorted(read.items())[:_MOST_ARGUMENTS]
    names = tuple(name for name, _ in items)
    values = tuple(masked_value(name, _text(value)) for name, value in items)
    values = tuple(value[:_LONGEST] for value in values)
    note(Arguments(names=names, values=values), site)


def _text(value: object) -> str:
    """A value as text; of what is no plain value, only its type."""
    if isinstance(value, _SCALARS):
        return repr(value)
    if isinstance(value, (list, tuple)) and all(isinstance(v, _SCALARS) for v in value):
        return repr(value)
    return f"<{type(value).__name__}>"


def note(observation: Observation, site: str) -> None:
    """Write an observation, or keep it until the process has a rank."""
    if RECORDER.writer is not None:
        RECORDER.observe(observation, site)
    elif len(_early) < _MOST_EARLY:
        _early.append((observation, site))


def tell_early() -> None:
    """Write the observations that came before the process had a rank."""
    early, _early[:] = list(_early), []
    for arguments in early:
        note(*arguments)


# --- optimizers ---

_SPARSER = 8
"""The next step that is told lies a part of this on; a setting that changes between two
is told late, and a pre-flight is short."""


class Optimizers:
    """Records the hyperparameters of this rank's optimizers at some of their steps.

    Recorded steps become rarer with time, and are the same on all ranks.
    """

    def __init__(self) -> None:
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()
        self.reset()

    def reset(self) -> None:
        """Forget all state: the process starts to play in another run."""
        self._seen: weakref.WeakKeyDictionary[Any, list[int]] = (
            weakref.WeakKeyDictionary()
        )
        self._count = 0
        self._models.clear()

    def wrapped(self, model: Any) -> None:
        """Called when a model was wrapped, so that ranks train it together."""
        self._models.add(model)

    def stepped(self, optimizer: Any) -> None:
        """Called after an optimizer step."""
        known = self._seen.get(optimizer)
        if known is None:
            known = self._seen[optimizer] = [self._count, 0, 1]
            self._count += 1
        known[1] += 1
        if known[1] == known[2]:
            known[2] += 1 + known[1] // _SPARSER
            self._tell(optimizer, known[0], known[1])

    @harmless
    def _tell(self, optimizer: Any, number: int, step: int) -> None:
        from distdoctor.model.observations.environment import Hyperparameters

        names, values = [], []
        for at, group in enumerate(optimizer.param_groups[:_MOST_GROUPS]):
            for name, value in sorted(_scalars(group).items()):
                names.append(f"{at}.{name}")
                values.append(value)
        observation = Hyperparameters(
            optimizer=number,
            kind=type(optimizer).__name__,
            step=step,
            names=tuple(names),
            values=tuple(values),
            shared=self._is_shared(optimizer),
        )
        RECORDER.observe(observation, call_site(3))

    def _is_shared(self, optimizer: Any) -> bool:
        if type(optimizer).__module__ == horovod.OPTIMIZERS:
            return True
        shared = {id(p) for model in self._models for p in model.parameters()}
        return any(
            id(parameter) in shared
            for group in optimizer.param_groups
            for parameter in group["params"]
        )


def _scalars(group: Mapping[str, Any]) -> dict[str, str]:
    """Settings of a group that are told; tensors on a GPU are not waited for."""
    scalars = {}
    for name, value in group.items():
        if name == "params" or not isinstance(name, str):
            continue
        if hasattr(value, "is_cuda"):
            if value.device.type != "cpu" or value.numel() != 1:
                continue
            value = value.item()
        if isinstance(value, (*_SCALARS, list, tuple)):
            scalars[name] = _text(value)[:_LONGEST]
    return scalars


OPTIMIZERS = Optimizers()


PROBE = Probe(
    imports={"argparse": _argparse},
    stepped=OPTIMIZERS.stepped,
    reset=OPTIMIZERS.reset,
)
