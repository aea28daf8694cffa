"""One pass over a DataLoader: its dataset and sampler, and the samples read so far."""

from __future__ import annotations

import operator
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

from torch.utils.data import (
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.dataset import IterableDataset

from distdoctor.model.observations.data import (
    DATASET,
    ITERATED,
    LOADER,
    SAMPLER,
    SUBSET,
    Held,
    Read,
)
from distdoctor.probes.call_sites import is_users, text_of
from distdoctor.probes.data import creation_sites
from distdoctor.probes.data.sample_fingerprints import held_by, of_samples, of_whole

MOST_CONTENTS = 16_384
"""Samples of a pass whose contents are told."""

MOST_CONTENTS_IN_ALL = 65_536
"""The same, of all passes of a process: fingerprints cost so much, and no more.

Source: measured, 1 µs a sample of 64 bytes, 4 µs of 64 KiB.
"""

MOST_INDICES = 4_000_000
"""Samples whose indices are told, of all passes. Source: 7 bytes each in the notes."""

TELL_S = 5.0
"""After so long, what a pass has read is told, for the job may be ended."""

_FIRST_PART, _GROWTH = 8, 8  # batches to the first telling; to each later one


class Numbers:
    """Numbers objects from 1, each for as long as it lives."""

    def __init__(self) -> None:
        self._next = count(1)
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}

    def of(self, thing: object) -> int:
        """The object's number; a new one each time if it takes no weak reference."""
        known = self._known.get(id(thing))
        if known is not None and known[0]() is thing:
            return known[1]
        number = next(self._next)
        with suppress(TypeError):  # a list, for instance
            self._known[id(thing)] = weakref.ref(thing), number
        return number


class LoaderSource:
    """The dataset, sampler and settings of a DataLoader, examined once per loader.

    It keeps none of the user's objects alive but the indices of Subsets.

    Args:
        loader: A DataLoader.
        number: Its number.
        datasets: Numbers of the datasets seen so far.
    """

    def __init__(self, loader: Any, number: int, datasets: Numbers) -> None:
        bottom = loader.dataset
        views = [bottom]
        self._chain: list[Any] = []  # indices of each Subset, outermost first
        while type(bottom) is Subset:
            self._chain.append(_plain(bottom.indices))
            bottom = bottom.dataset
            views.append(bottom)
        iterable = isinstance(loader.dataset, IterableDataset)
        samplers = [] if iterable else list(_samplers(loader))
        self.samplers = [weakref.ref(one) for one in samplers]
        split = [vars(one).get("num_replicas") for one in samplers]
        self.part = Read(
            loader=number,
            view=datasets.of(views[0]),
            dataset=datasets.of(bottom),
            length=-1 if iterable else _length(bottom),
            replicas=next((n for n in split if isinstance(n, int)), 0),
            iterable=iterable,
            shuffled=any(map(_shuffles, samplers)),
            drawn=any(map(_draws, samplers)),
            generated=getattr(loader, "generator", None) is not None,
        )
        roles = [(LOADER, loader), *((SAMPLER, one) for one in samplers)]
        roles += [*((SUBSET, one) for one in views[:-1]), (DATASET, bottom)]
        self.births = [
            (creation_sites.site_of(one), role, type(one).__name__)
            for role, one in roles
        ]
        if iterable:
            self.births.append((_iterating(bottom), ITERATED, type(bottom).__name__))
        self._bottom = None if iterable else bottom  # until what it holds is told

    def held(self, known: set[int]) -> Held | None:
        """Fingerprints of the innermost dataset's samples, unless already known."""
        bottom, self._bottom = self._bottom, None
        number = self.part.dataset
        if bottom is None or number in known or self.part.length < 0:
            return None
        known.add(number)
        return held_by(bottom, self.part.length, number)

    def at_bottom(self, indices: list[int]) -> list[int]:
        """Map indices of the DataLoader's dataset to the innermost dataset."""
        for subset in self._chain:
            indices = [operator.index(subset[index]) for index in indices]
        return indices


def _iterating(dataset: Any) -> str:
    """Where the function begins by which an iterable dataset of the user's reads."""
    code = getattr(type(dataset).__iter__, "__code__", None)
    if code is None or not is_users(code.co_filename):
        return ""
    return text_of(code.co_filename, code.co_firstlineno, code.co_qualname)


def _plain(indices: Any) -> Any:
    """A Subset's indices as something that is quick to index."""
    return indices.tolist() if hasattr(indices, "tolist") else indices


def _length(dataset: Any) -> int:
    try:
        return len(dataset)
    except (TypeError, ValueError, AttributeError, RuntimeError):
        return -1  # it has none, or none yet


def _samplers(loader: Any) -> Iterator[Any]:
    """The loader's sampler, and those inside of it."""
    sampler = loader.batch_sampler
    if sampler is None:
        sampler = loader.sampler
    for _ in range(4):
        if not hasattr(sampler, "__dict__"):
            return
        yield sampler
        held = vars(sampler)  # whether a sampler is true may take its length to tell
        sampler = held.get("sampler", held.get("batch_sampler"))


def _shuffles(sampler: Any) -> bool:
    """Whether a sampler is one that is to give another order each time."""
    shuffle = vars(sampler).get("shuffle")
    if isinstance(shuffle, bool):
        return shuffle
    if isinstance(sampler, RandomSampler):
        return not sampler.replacement
    return isinstance(sampler, SubsetRandomSampler) or hasattr(
        type(sampler), "set_epoch"
    )


def _draws(sampler: Any) -> bool:
    """Whether a sampler draws some of the samples, or some of them several times."""
    if isinstance(sampler, RandomSampler):
        part = vars(sampler).get("_num_samples") is not None
        return bool(sampler.replacement) or part
    return isinstance(sampler, WeightedRandomSampler)


class Allowance:
    """How many more sample indices and contents this process may record."""

    def __init__(self) -> None:
        self.contents, self.indices = MOST_CONTENTS_IN_ALL, MOST_INDICES


class PassReading:
    """What one unfinished pass over a DataLoader has read so far.

    Args:
        iterator: The DataLoader's.
        allowance: The process's allowance.
    """

    def __init__(self, iterator: Any, allowance: Allowance) -> None:
        self._allowance = allowance
        self.iterator = weakref.ref(iterator)
        self.source: LoaderSource | None = None  # not yet known while it is being made
        self.begun = False
        self.over = False
        self.fresh = False  # gave a batch after the last step
        self.silent = False  # there were too many before it
        self.workers = iterator._num_workers
        self.site = ""
        self.steps = 0
        self.backwards = 0  # of the process, when it began
        self.aside = False  # the models were evaluating when it gave its last batch
        self._indexed = not iterator._dataset_kind
        self._single = not iterator._auto_collation
        self._in_order = bool(getattr(iterator, "_in_order", True))
        self._drawn: deque[tuple[list[int] | None, bool]] = deque()
        self._samples: list[int] = []
        self._contents: list[int] | None = []
        self._reported = [0, 0, 0]  # of the samples, contents and steps
        self._last, self._rising = -1, True
        self._batch, self._given = 1, 0
        self._capped = False
        self._next, self._reported_s = _FIRST_PART, time.monotonic()
        self.part = Read()

    @property
    def given(self) -> int:
        """How many batches the pass has returned."""
        return self._given

    def draw(self, index: Any, left_out: bool) -> None:
        """Called when the sampler drew the indices of a batch, used or left out."""
        if not self._indexed:
            return
        try:
            keys = [index] if self._single else index
            indices = [operator.index(key) for key in keys]
        except TypeError:  # its keys are no numbers
            self._indexed = False
            self._samples.clear()
            self._drawn.clear()
        else:
            self._drawn.append((indices, left_out))

    def give(self, batch: Any) -> bool:
        """Called when a batch is returned; whether it is time to record."""
        self._given += 1
        self.pass_over()
        indices = None
        if self._indexed and self._drawn:
            indices, _ = self._drawn.popleft()
        self._add(indices, batch)
        return (
            self._given >= self._next or time.monotonic() - self._reported_s > TELL_S
        ) and not self.silent

    def pass_over(self) -> None:
        """Skip the batches that distdoctor left out at this point."""
        while self._drawn and self._drawn[0][1]:
            indices, _ = self._drawn.popleft()
            self._add_indices(indices)
            if self._contents is not None:
                self._contents += [0] * len(indices or ())

    def _add(self, indices: list[int] | None, batch: Any) -> None:
        size = None if indices is None else len(indices)
        if indices is not None:
            self._add_indices(indices)
        if self._contents is None:
            return
        if len(self._contents) >= MOST_CONTENTS or self._allowance.contents <= 0:
            self._capped |= not self._indexed
            return
        if self._single:
            whole = of_whole(batch)
            prints: tuple[int, ...] | None = None if whole is None else (whole,)
        else:
            prints = of_samples(batch, size)
        if prints is None or not (self._in_order or not self._indexed):
            self._contents = None
        else:
            self._allowance.contents -= len(prints)
            self._contents += prints
            self._batch = max(self._batch, len(prints))

    def _add_indices(self, indices: list[int] | None) -> None:
        if not indices or self._capped:
            return
        self._batch = max(self._batch, len(indices))
        if self._rising:
            steps = zip([self._last, *indices], indices, strict=False)
            self._rising = all(before < after for before, after in steps)
            self._last = indices[-1]
        if self._allowance.indices < len(indices):
            self._capped = True
            return
        self._allowance.indices -= len(indices)
        assert self.source is not None
        try:
            self._samples += self.source.at_bottom(indices)
        except (TypeError, LookupError):  # a subset by something else than numbers
            self._indexed = False
            self._samples.clear()

    def tell(self, unfinished: bool, cut: bool = False) -> Read:
        """What was read since the last record of this pass."""
        contents = self._contents
        samples, printed, steps = self._reported
        whole = () if contents is None else tuple(contents[printed:MOST_CONTENTS])
        part = replace(
            self.part,
            samples=tuple(self._samples[samples:]),
            contents=whole,
            batch=self._batch,
            steps=self.steps - steps,
            rising=self._rising and self._indexed,
            unfinished=unfinished,
            shortened=cut,
            capped=self._capped,
        )
        self._reported = [len(self._samples), printed + len(whole), self.steps]
        self._next = max(self._next, self._given * _GROWTH)
        self._reported_s = time.monotonic()
        return part
