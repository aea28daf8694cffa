"""Recognises which parts of a training state a saved or loaded object holds."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from distdoctor.probes.fingerprints import exact

_MOST_NODES = 20_000
_DEEPEST = 6
_MOST_NUMBERS = 16
_MOST_NAMES = 50_000

_MOST_BYTES = 16 * 1024**2
"""Of tensors whose fingerprint is taken, some milliseconds' worth."""

_PLAIN = {torch.Tensor, torch.nn.Parameter}

_MOVING = {
    *("last_epoch", "_step_count", "_last_lr", "_get_lr_called_within_step"),
    *("_is_initial", "verbose", "best", "num_bad_epochs", "cooldown_counter"),
    *("T_cur", "T_i", "optimizer"),
}
"""What changes in a scheduler's state while it is at work.

Source: torch 2.8 to 2.13, optim/lr_scheduler.py.
"""


class Contents:
    """The parts of a training state in one object, and what is recorded of them.

    Attributes:
        parts, filled, position, schedule, scale, lr, numbers: As in a `Stored`.
        names: The names of the tensors of all models in it.

    Args:
        thing: The object that is saved, or was loaded.
        printed: Whether to take fingerprints of what it holds.
    """

    def __init__(self, thing: Any, printed: bool = False) -> None:
        self.parts: list[str] = []
        self.filled = 0
        self.position, self.schedule = -1, 0
        self.scale, self.lr = 0.0, -1.0
        self.numbers: list[int] = []
        self.names: set[str] = set()
        self._printed, self._left_bytes = printed, _MOST_BYTES
        self._values: list[str | int] = []
        self._weights: list[int] = []
        self._nodes = 0
        self._schedulers: list[Mapping[Any, Any]] = []
        self._look(thing, 0)
        if len(self._schedulers) == 1:
            self.position, self.schedule = place_of(self._schedulers[0])
        self.parts.sort()

    def fields(self) -> dict[str, Any]:
        """The fields of the `Stored` observation for this object."""
        return {
            "parts": tuple(self.parts),
            "filled": self.filled,
            "position": self.position,
            "schedule": self.schedule,
            "scale": self.scale,
            "lr": self.lr,
            "numbers": tuple(self.numbers[:_MOST_NUMBERS]),
        }

    def prints(self) -> dict[str, Any]:
        """Fingerprints of the parts that differ when each rank saves its own."""
        return {
            "values": exact.of_value(self._values) if self._values else 0,
            "weights": exact.of_value(self._weights) if self._weights else 0,
        }

    def _print(self, values: list[Any], thing: Any) -> None:
        if not self._printed or len(values) >= _MOST_NODES:
            return
        if not isinstance(thing, torch.Tensor):
            values.append(repr(thing))
        elif type(thing) in _PLAIN and thing.is_cpu and thing.layout is torch.strided:
            self._left_bytes -= thing.nbytes
            if self._left_bytes >= 0:
                values.append(exact.of_tensor(thing.detach()))

    def _look(self, thing: Any, depth: int) -> None:
        self._nodes += 1
        if self._nodes > _MOST_NODES or depth > _DEEPEST:
            return
        if isinstance(thing, Mapping):
            self._look_into(thing, depth)
        elif isinstance(thing, torch.nn.Module):
            self.parts.append("model")
            self._name(name for name, _ in thing.named_parameters())
        elif isinstance(thing, torch.Tensor):
            if _is_random_state(thing):
                self.parts.append("rng")
                self._print(self._values, thing)
        elif isinstance(thing, int) and not isinstance(thing, bool):
            self.numbers.append(thing)
            self._print(self._values, thing)
        elif isinstance(thing, float | str):
            self._print(self._values, thing)
        elif isinstance(thing, (list, tuple)):
            for one in thing[:64]:
                self._look(one, depth + 1)

    def _look_into(self, thing: Mapping[Any, Any], depth: int) -> None:
        if is_optimizer(thing):
            self.parts.append("optimizer")
            self.filled += bool(thing["state"])
            groups = thing["param_groups"]
            if self.lr < 0 and groups:
                self.lr = number_of(groups[0].get("lr", -1.0))
        elif _is_scheduler(thing):
            self.parts.append("scheduler")
            self._schedulers.append(thing)
        elif {"scale", "growth_factor", "_growth_tracker"} <= thing.keys():
            self.parts.append("scaler")
            self.scale = number_of(thing["scale"])
        elif _is_model(thing):
            self.parts.append("model")
            self._name(thing)
            for tensor in thing.values():
                self._print(self._weights, tensor)
        else:
            for one in thing.values():
                self._look(one, depth + 1)

    def _name(self, names: Any) -> None:
        for name in names:
            if len(self.names) < _MOST_NAMES:
                self.names.add(name)


def is_optimizer(thing: Mapping[Any, Any]) -> bool:
    """Whether a mapping is the state dict of an optimizer."""
    groups = thing.get("param_groups")
    return (
        isinstance(thing.get("state"), Mapping)
        and isinstance(groups, list)
        and all(isinstance(group, Mapping) for group in groups)
    )


def _is_scheduler(thing: Mapping[Any, Any]) -> bool:
    marks = {"_last_lr", "base_lrs", "_step_count", "num_bad_epochs"}
    if isinstance(thing.get("_schedulers"), list):
        return all(map(_is_scheduler, filter(_is_mapping, thing["_schedulers"])))
    return isinstance(thing.get("last_epoch"), int) and bool(marks & thing.keys())


def _is_mapping(thing: object) -> bool:
    return isinstance(thing, Mapping)


def _is_model(thing: Mapping[Any, Any]) -> bool:
    tensors = 0
    for name, value in thing.items():
        if not isinstance(name, str):
            return False
        if isinstance(value, torch.Tensor) and not _is_random_state(value):
            tensors += 1
        elif not name.endswith("_extra_state"):
            return False
    return tensors > 0


def _is_random_state(tensor: torch.Tensor) -> bool:
    """Whether a tensor has the form of a CPU generator's state."""
    if tensor.dtype != torch.uint8 or tensor.dim() != 1 or tensor.device.type != "cpu":
        return False
    return tensor.numel() == torch.get_rng_state().numel()


def place_of(state: Mapping[Any, Any]) -> tuple[int, int]:
    """A scheduler's position, and a fingerprint of its settings, from its state."""
    position = state.get("last_epoch")
    if position is None:  # several that are stepped together
        parts = state.get("_schedulers", ())
        position = max((one.get("last_epoch", -1) for one in parts), default=-1)
    fixed = sorted(_fixed(state))
    return position if isinstance(position, int) else -1, exact.of_value(fixed)


def _fixed(state: Mapping[Any, Any], prefix: str = "") -> Iterator[str]:
    for name, value in state.items():
        if name in _MOVING:
            continue
        full_name = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _fixed(value, f"{full_name}.")
        elif isinstance(value, (list, tuple)):
            for number, one in enumerate(value):
                if isinstance(one, Mapping):
                    yield from _fixed(one, f"{full_name}.{number}.")
                elif isinstance(one, (int, float, str)):
                    yield f"{full_name}.{number}={one!r}"
        elif value is None or isinstance(value, (int, float, str)):
            yield f"{full_name}={value!r}"


def number_of(value: Any) -> float:
    """The value of a number or one-element tensor; -1 if none, or not finite."""
    if isinstance(value, torch.Tensor):
        value = value.item() if value.numel() == 1 else -1.0
    if not isinstance(value, (int, float)) or not abs(value) < float("inf"):
        return -1.0
    return float(value)


def file_of(target: Any) -> str:
    """The path behind an argument of torch.save or torch.load; "" if no file."""
    if not isinstance(target, (str, bytes, os.PathLike)):
        target = getattr(target, "name", None)
    if isinstance(target, int):  # of `os.fdopen`, as behind `tempfile.mkstemp`
        target = os.path.realpath(f"/proc/self/fd/{target}")
        if not os.path.isfile(target):  # noqa: PTH113 - a pipe, or it has no name
            return ""
    if not isinstance(target, (str, bytes, os.PathLike)):
        return ""
    file = os.path.realpath(os.fsdecode(target))
    return "" if file.startswith(("/dev/", "/proc/")) else file


def disk_of(file: str) -> int:
    """A fingerprint that identifies the machine and file system of a file."""
    folder = os.path.dirname(file)  # noqa: PTH120
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):  # noqa: PTH112, PTH120
        folder = os.path.dirname(folder)  # noqa: PTH120
    return exact.of_value((_machine(), os.stat(folder).st_dev))  # noqa: PTH116


@functools.cache
def _machine() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return os.uname().nodename
