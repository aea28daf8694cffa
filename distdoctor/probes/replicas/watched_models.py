"""Takes fingerprints of one trained model before and after optimizer steps."""

from __future__ import annotations

import math
import sys
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from distdoctor.model.observations.replicas import Changed, Trail, Trained, Weights
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.fingerprints import exact
from distdoctor.probes.readability import lies_on_cpu
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replicas.changing_lines import Lines

MOST_TENSORS = 4096
"""Of a model, that are told one by one."""

_TRAILED = 16  # tensors looked at in each step
_HEAD = 256  # bytes of each
_MOST_TRAIL = 256  # steps in one note
_NOTE_S = 1.0  # between two notes of steps
_MOST_STEPS = 200_000  # after which steps are no longer told one by one
_MOST_LOOKS = 64  # whiles, from step to step, in which lines are looked after
_MOST_LOADS = 100
_MOST_NAMES = 8
_PLAIN = (Tensor, nn.Parameter)
_STRIDED = torch.strided


def is_due(step: int) -> bool:
    """Whether all is taken before this step: 1, 2, 3, 4, 6, 8, 12 and so on.

    It depends on the step alone, so that all ranks look at the same.
    """
    odd = step // (step & -step) if step else 0
    return odd in {0, 1, 3}


def is_whole(tensor: Tensor) -> bool:
    """Whether a tensor is a plain one, of which this rank has all."""
    return type(tensor) in _PLAIN and tensor.layout is torch.strided


class _Due:
    """The fingerprints of one step, which are not written yet."""

    gradients: exact.PendingFingerprint
    zero: list[bool]
    site: str

    def __init__(
        self,
        step: int,
        owned: set[int],
        weights: exact.PendingFingerprint,
        states: tuple[int, ...],
        settings: int,
        samples: tuple[float, ...],
    ) -> None:
        self.step, self.owned, self.prints = step, owned, weights
        self.states, self.settings, self.samples = states, settings, samples

    def ready(self) -> bool:
        """Whether no device is still computing them."""
        return self.prints.ready() and self.gradients.ready()


class Watched:
    """A trained model, and the fingerprints that are taken of it.

    Args:
        number: The model's.
        parameters: By name; those that are to be alike on all ranks that share it.
        site: The line that made it.
        ranks: See `Trained`.
        wrapped: Whether it is wrapped in DistributedDataParallel.
    """

    def __init__(
        self,
        number: int,
        parameters: Sequence[tuple[str, Tensor]],
        site: str,
        ranks: tuple[int, ...] = (),
        wrapped: bool = False,
    ) -> None:
        self.number, self.step = number, 0
        self._names = [name for name, _ in parameters][:MOST_TENSORS]
        kept = [tensor for _, tensor in parameters][:MOST_TENSORS]
        self._parameters = [weakref.ref(tensor) for tensor in kept]
        trained = [n for n, one in enumerate(kept) if one.requires_grad and one.is_cpu]
        followed = _spread(trained, _TRAILED)
        self._trailed = [self._parameters[n] for n in followed]
        self._trailed_names = [self._names[n] for n in followed]
        self._heads, self._slopes = exact.Heads(_HEAD), exact.Heads(_HEAD)
        self._before: list[int] = []
        self._gradients: list[int] = []
        self._after: list[int] = []
        self._noted_s = time.monotonic()
        self._last = 0  # of the trail; 0: there is none yet
        self._due: _Due | None = None
        self._late: list[_Due] = []
        self._lines: Lines | None = None
        self._loads = 0
        self._looks = 0  # to come; negative: none any more
        observation = Trained(
            model=number,
            names=tuple(self._names),
            numels=tuple(one.numel() for one in kept),
            frozen=tuple(
                name
                for name, one in zip(self._names, kept, strict=True)
                if not one.requires_grad
            ),
            ranks=ranks,
            wrapped=wrapped,
        )
        RECORDER.observe(observation, site)

    def wrapped(self, site: str) -> None:
        """Called when the model was wrapped: record what all ranks start from."""
        here = self._here()
        self._last = self._heads.print_of(self._of_trail())
        observation = Weights(
            model=self.number,
            prints=exact.of_tensors(here),
            samples=samples_of(here),
        )
        RECORDER.observe(observation, site)

    def before(self, optimizer: Optimizer) -> None:
        """Called before an optimizer step of the model."""
        if self._lines is not None:
            self._lines.stop()
            self._lines = None
        if len(self._before) > len(self._after):  # the last one raised
            self._before.pop()
            self.step -= 1
        self.step += 1
        if self.step <= _MOST_STEPS and self._trailed:
            seen = self._heads.print_of(self._of_trail())
            self._before.append(seen)
            if self._last not in {0, seen} and not self._looks:
                self._looks = _MOST_LOOKS  # it may well happen again
        if is_due(self.step) and all(map(exact.has_memory, here := self._here())):
            groups = optimizer.param_groups
            owned = {id(one) for group in groups for one in group["params"]}
            self._due = _Due(
                self.step,
                owned,
                exact.pending(here),
                tuple(_state_of(optimizer, one, owned) for one in here),
                _settings_of(groups),
                samples_of(here),
            )

    def after(self) -> None:
        """Called after an optimizer step of the model."""
        if len(self._before) > len(self._after):
            here = self._of_trail()
            self._last = self._heads.print_of(here)
            self._after.append(self._last)
            self._gradients.append(self._slopes.print_of(list(map(_gradient, here))))
        if self._due is not None:
            self._take_weights()
        now = time.monotonic()
        if now - self._noted_s > _NOTE_S or len(self._before) >= _MOST_TRAIL:
            self._noted_s = now
            self.tell_trail()
        if self._late:
            self._tell_weights(wait=False)
        if self._looks > 0:
            self._look_after_lines()

    def is_as_stepped(self) -> bool:
        """Whether the parameters are as the last step left them, by a sample."""
        return self._last in {0, self._heads.print_of(self._of_trail())}

    def is_worth_telling(self) -> bool:
        """Count a state load; whether it is recorded: some jobs load in every step."""
        self._loads += 1
        return self._loads <= _MOST_LOADS

    def tell_all(self) -> None:
        """Write all fingerprints that are not yet written."""
        self.tell_trail()
        self._tell_weights(wait=True)

    def tell_trail(self) -> None:
        """Write the cheap fingerprints of steps that are not yet written."""
        count = len(self._after)
        if not count:
            return
        observation = Trail(
            model=self.number,
            first=self.step - len(self._before) + 1,
            before=tuple(self._before[:count]),
            gradients=tuple(self._gradients),
            after=tuple(self._after),
        )
        RECORDER.observe(observation)
        del self._before[:count]
        self._gradients, self._after = [], []

    def _take_weights(self) -> None:
        assert self._due is not None
        due, self._due = self._due, None
        slopes = [
            slope
            if id(one) in due.owned
            and (slope := one.grad) is not None
            and is_whole(slope)
            else _NOTHING
            for one in self._here()
        ]
        due.zero = [one.is_cpu and not one.any() for one in slopes]
        due.gradients = exact.pending(slopes)
        due.site = call_site(3)
        self._late.append(due)

    def _tell_weights(self, wait: bool) -> None:
        """Write down what the device is done with."""
        while self._late and (wait or self._late[0].ready()):
            due = self._late.pop(0)
            found = zip(due.zero, due.gradients.result(), strict=True)
            observation = Weights(
                model=self.number,
                step=due.step,
                prints=due.prints.result(),
                gradients=tuple(0 if zero else number for zero, number in found),
                states=due.states,
                settings=due.settings,
                samples=due.samples,
            )
            RECORDER.observe(observation, due.site)

    def _here(self) -> list[Tensor]:
        """The parameters; a stand-in for those that are gone."""
        return [_NOTHING if (one := ref()) is None else one for ref in self._parameters]

    def _of_trail(self) -> list[Tensor | None]:
        return [ref() for ref in self._trailed]

    # --- changes outside of steps ---

    def _look_after_lines(self) -> None:
        self._looks -= 1
        step = self.step + 1

        def changed(site: str) -> None:
            self._looks = -1
            now = self._of_trail()
            names = [
                name
                for name, old, new in zip(self._trailed_names, seen, now, strict=True)
                if heads.print_of([new]) != old
            ]
            observation = Changed(
                model=self.number,
                step=step,
                names=tuple(names[:_MOST_NAMES]),
            )
            RECORDER.observe(observation, site)

        heads = exact.Heads(_HEAD)
        seen = [heads.print_of([one]) for one in self._of_trail()]
        self._lines = Lines(lambda: self._heads.print_of(self._of_trail()), changed)
        if not self._lines.start(sys._getframe()):
            self._looks = -1


_NOTHING = torch.empty(0)


def _spread(places: Sequence[int], most: int) -> list[int]:
    """So many of some places at most, evenly from the first to the last."""
    if len(places) <= most:
        return list(places)
    return [places[n * (len(places) - 1) // (most - 1)] for n in range(most)]


def _gradient(tensor: Tensor | None) -> Tensor | None:
    """Its gradient, if that can be looked at where it lies."""
    slope = None if tensor is None else tensor.grad
    if slope is None or slope.layout is not _STRIDED or not lies_on_cpu(slope):
        return None
    return slope


def _state_of(optimizer: Optimizer, parameter: Tensor, owned: set[int]) -> int:
    """Fingerprint of what an optimizer remembers of a parameter; 0: nothing."""
    if id(parameter) not in owned:
        return 0
    state = optimizer.state.get(parameter)
    if not isinstance(state, dict) or not state:
        return 0
    return exact.joined([_print_of(state[key]) for key in sorted(state, key=str)])


def _print_of(value: object) -> int:
    if isinstance(value, Tensor):
        plain = is_whole(value) and value.is_cpu
        return exact.of_tensor(value) if plain else exact.EMPTY
    return exact.of_value(value) if isinstance(value, _SCALARS) else exact.EMPTY


_SCALARS = (bool, int, float, str, type(None))


def _settings_of(groups: Iterable[dict[str, Any]]) -> int:
    """Fingerprint of the hyperparameters of all groups."""
    settings = [
        sorted(
            (key, value if not isinstance(value, Tensor) else value.tolist())
            for key, value in group.items()
            if key != "params" and isinstance(value, (*_SCALARS, tuple, list, Tensor))
        )
        for group in groups
    ]
    return exact.of_value(
        [(key, repr(value)) for one in settings for key, value in one]
    )


def samples_of(tensors: Iterable[Tensor]) -> tuple[float, ...]:
    """First, middle and last element of each; none if any is not finite."""
    found: list[float] = []
    with torch.no_grad():
        for tensor in tensors:
            flat = tensor.detach().reshape(-1)
            if not flat.is_cpu or not flat.is_floating_point() or not len(flat):
                found += (0.0, 0.0, 0.0)
                continue
            found += (
                flat[0].item(),
                flat[len(flat) // 2].item(),
                flat[-1].item(),
            )
    return tuple(found) if all(map(math.isfinite, found)) else ()
