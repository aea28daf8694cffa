"""Records which samples each pass over a DataLoader reads.

Indices are those that the sampler drew, told when their batch is given: workers are
sent more than is read in the end. Of batches that were drawn and left out (see
`epoch_shortening`) the indices are known, too.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader, DistributedSampler, dataloader

from distdoctor.model.observations.data import SET_EPOCH, Made
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.data.epoch_shortening import LEFT_OUT
from distdoctor.probes.data.loader_passes import (
    Allowance,
    LoaderSource,
    Numbers,
    PassReading,
)
from distdoctor.probes.harmless import harmless
from distdoctor.probes.memory.memory_growth import MEMORY_GROWTH
from distdoctor.probes.metrics.evaluations import METRICS
from distdoctor.probes.metrics.half_precision_sums import TALLIES
from distdoctor.probes.optimizer_step.true_steps import after_steps
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replicas import trained_models

MOST_PASSES = 5_000
"""Passes that a process tells; a loop may make a loader for every step."""

_SECOND = 2  # batch of a pass, at which the first was made something of

_SOURCE, _READING = "distdoctor_source", "distdoctor_reading"


class Samples:
    """Follows all passes over DataLoaders in this process and records their samples."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all state: the process starts to play in another run."""
        self._datasets, self._optimizers = Numbers(), Numbers()
        self._sources: weakref.WeakKeyDictionary[Any, LoaderSource]
        self._sources = weakref.WeakKeyDictionary()
        self._epochs: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._made: dict[tuple[str, str, str], int] = {}
        self._held: set[int] = set()
        self._open: list[PassReading] = []
        self._fresh: list[PassReading] = []
        self._allowance = Allowance()
        self._passes = self._resumed = self._loaders = 0
        self.latest: PassReading | None = None  # that gave a batch to train on

    # --- what happens ---

    def iterated(self, loader: Any, iterator: Any) -> None:
        """Called when an iterator was made; it may have drawn indices already."""
        source = self._sources.get(loader)
        if source is None:
            self._loaders += 1
            source = LoaderSource(loader, self._loaders, self._datasets)
            self._sources[loader] = source
        setattr(iterator, _SOURCE, source)
        reading = iterator.__dict__.get(_READING)
        if reading is not None:
            reading.source = source

    def begin_anew(self, iterator: Any) -> None:
        """Called before an iterator with persistent workers starts again."""
        self._leave(iterator.__dict__.pop(_READING, None))

    def drew(self, iterator: Any, index: Any) -> None:
        """Called when the sampler drew the indices of a batch."""
        reading = self._reading(iterator)
        if not reading.silent:
            reading.draw(index, LEFT_OUT in iterator.__dict__)

    def gave(self, iterator: Any, batch: Any) -> None:
        """Called when an iterator returns a batch."""
        reading = self._reading(iterator)
        if not self._is_reported(reading):
            return
        is_due = reading.give(batch)
        if torch.is_grad_enabled():
            self.latest = reading
            reading.aside = _all_evaluate()
            if not reading.fresh:
                self._fresh = [one for one in self._fresh if not one.over]
                self._fresh.append(reading)
                reading.fresh = True
        if reading.backwards == METRICS.backwards:
            if reading.given == _SECOND:
                TALLIES.begin()
                MEMORY_GROWTH.evaluating(reading.part.number)
            elif reading.given > _SECOND:
                MEMORY_GROWTH.going_on(reading.part.number, reading.given)
            TALLIES.look()
        if is_due:
            RECORDER.observe(reading.tell(unfinished=True), reading.site)

    def ended(self, iterator: Any, cut: bool) -> None:
        """Called when a pass over a DataLoader ended.

        Args:
            iterator: The iterator of the pass.
            cut: Whether distdoctor ended it early.
        """
        reading = self._reading(iterator)
        iterator.__dict__.pop(_READING, None)
        if not self._is_reported(reading):
            return
        reading.pass_over()
        reading.over = True
        self._open.remove(reading)
        RECORDER.observe(reading.tell(unfinished=False, cut=cut), reading.site)
        if reading.backwards == METRICS.backwards:
            TALLIES.look(last=True)
            TALLIES.begin()
            METRICS.evaluated(reading.part.number)
            MEMORY_GROWTH.evaluated(reading.part.number, reading.given)

    def stepped(self, optimizer: Any) -> None:
        """Called after an optimizer step, made on the latest batches.

        Of several loaders, those whose batch a model was given in `eval()` are left
        out, and those of which one batch was fetched and no more: a look at other data
        between two steps, with gradients left on.
        """
        TALLIES.look()
        number = self._optimizers.of(optimizer)
        apart = [one for one in self._fresh if one.aside or self._is_glance(one)]
        used = [one for one in self._fresh if one not in apart] or self._fresh
        for reading in self._fresh:
            reading.fresh = False
        for reading in used:
            reading.steps += 1
            reading.part = replace(reading.part, optimizer=number)
            if reading.over:  # it is the step for the last of its batches
                RECORDER.observe(reading.tell(unfinished=False), reading.site)
        self._fresh.clear()

    def _is_glance(self, reading: PassReading) -> bool:
        """Whether a pass was left after one batch, before another loader gave one."""
        left = reading.given == 1 and not reading.over and reading.iterator() is None
        return left and reading is not self.latest

    def resumed(self, state: Any) -> None:
        """Called on `Optimizer.load_state_dict`; a non-empty state is a resume."""
        self._resumed += isinstance(state, dict) and bool(state.get("state"))

    def epoch_set(self, sampler: Any, _result: None) -> None:
        """Called after `set_epoch` of a sampler."""
        self._epochs[id(sampler)] = weakref.ref(sampler), call_site(1)

    def flush(self) -> None:
        """Called at the end: record what unfinished passes have read."""
        for reading in list(self._open):
            self._leave(reading)

    # --- a pass ---

    def _reading(self, iterator: Any) -> PassReading:
        reading: PassReading | None = iterator.__dict__.get(_READING)
        if reading is None:
            reading = PassReading(iterator, self._allowance)
            reading.source = iterator.__dict__.get(_SOURCE)
            setattr(iterator, _READING, reading)
        return reading

    def _is_reported(self, reading: PassReading) -> bool:
        """Whether a pass is one to tell; the first time, tell that it begins."""
        if reading.begun or reading.silent:
            return not reading.silent
        source = reading.source
        if RECORDER.writer is None or source is None or self._passes >= MOST_PASSES:
            reading.silent = True
            return False
        held = source.held(self._held)
        if held is not None:
            RECORDER.observe(held)
        reading.part = replace(
            source.part,
            number=self._passes,
            made=self._numbers(source),
            workers=reading.workers,
            resumed=self._resumed,
        )
        for other in list(self._open):
            if other.iterator() is None:  # it was left
                self._leave(other)
        reading.begun, reading.site = True, call_site(2)
        self._passes += 1
        self._open.append(reading)
        reading.backwards = METRICS.backwards
        RECORDER.observe(replace(reading.part, unfinished=True), reading.site)
        return True

    def _leave(self, reading: PassReading | None) -> None:
        if reading is not None and reading.begun and not reading.over:
            self._open.remove(reading)
            RECORDER.observe(reading.tell(unfinished=True), reading.site)
            reading.silent = True

    def _numbers(self, source: LoaderSource) -> tuple[int, ...]:
        """Of the lines that made what a pass reads by."""
        known = list(source.births)
        for sampler in (one() for one in source.samplers):
            entry = self._epochs.get(id(sampler))
            # Whether a sampler is true may take its length to tell.
            if sampler is not None and entry is not None and entry[0]() is sampler:
                known.append((entry[1], SET_EPOCH, type(sampler).__name__))
        numbers = []
        for birth in known:
            site, role, kind = birth
            if site and birth not in self._made:
                number = self._made[birth] = len(self._made) + 1
                made = Made(number=number, role=role, kind=kind)
                RECORDER.observe(made, site)
            if site:
                numbers.append(self._made[birth])
        return tuple(numbers)


def _all_evaluate() -> bool:
    """Whether all models that are known to be trained are set to evaluate."""
    modules = [model.module for model in trained_models.models()]
    return bool(modules) and not any(m is not None and m.training for m in modules)


SAMPLES = Samples()


def install() -> None:
    """Install the probe right after `import torch`, before passes begin."""
    epoch_set = SAMPLES.epoch_set
    _replace(DistributedSampler, "set_epoch", lambda made: _telling(made, epoch_set))
    _replace(Optimizer, "load_state_dict", _loading)


def watch() -> None:
    """Follow the passes from now on; called when the rank joins a job.

    That batches are given, and passes end, is told by who watches the iterators.
    """
    iterator = dataloader._BaseDataLoaderIter
    _replace(iterator, "_next_index", _next_index)
    _replace(iterator, "_reset", _reset)
    _replace(DataLoader, "__iter__", lambda made: _telling(made, SAMPLES.iterated))
    if not _watched:
        _watched.append(True)
        stepped = harmless(SAMPLES.stepped)
        after_steps(lambda optimizer, *_: stepped(optimizer))
        METRICS.watch()


_watched: list[bool] = []


def _replace(
    kind: type, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Put a function around a method, unless it is there already."""
    made = getattr(kind, name)
    if not hasattr(made, _MARK):
        method = functools.wraps(made)(around(made))
        setattr(method, _MARK, True)
        setattr(kind, name, method)


_MARK = "distdoctor_tells"


def _next_index(made: Callable[..., Any]) -> Callable[..., Any]:
    drew = harmless(SAMPLES.drew)

    def next_index(self: Any) -> Any:
        index = made(self)
        if not self._dataset_kind:
            drew(self, index)
        return index

    return next_index


def _reset(made: Callable[..., Any]) -> Callable[..., Any]:
    left = harmless(SAMPLES.begin_anew)

    def reset(self: Any, loader: Any, first_iter: bool = False) -> Any:
        if not first_iter:
            left(self)
        return made(self, loader, first_iter)

    return reset


def _telling(
    made: Callable[..., Any], tell: Callable[[Any, Any], None]
) -> Callable[..., Any]:
    """Tell of each call of a method, with its object and its result."""
    harmless_tell = harmless(tell)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = made(self, *args, **kwargs)
        harmless_tell(self, result)
        return result

    return method


def _loading(made: Callable[..., Any]) -> Callable[..., Any]:
    """Optimizers have a hook for it, but each of its own."""
    resumed = harmless(SAMPLES.resumed)

    def load_state_dict(self: Any, state_dict: Any) -> Any:
        result = made(self, state_dict)
        resumed(state_dict)
        return result

    return load_state_dict


PROBE = Probe(install=install, reset=SAMPLES.reset)
