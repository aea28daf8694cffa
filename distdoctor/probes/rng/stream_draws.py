"""Records draws from random streams while batches are loaded and used.

States are read around the first few batches of each pass over a DataLoader, in the
rank's own process; `worker_draws` does so in those of the loader. What is drawn while
another DataLoader works (a seed for its workers, an order, samples), or samples are
split, was not drawn for the batch that is in use.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils import data
from torch.utils.data import IterableDataset, dataloader, dataset

from distdoctor.model.observations.rng import Drawn
from distdoctor.probes.call_sites import call_site, users_frames
from distdoctor.probes.harmless import harmless
from distdoctor.probes.patching import unseen_by_warnings
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.rng.held_generators import generators_of, loop_generators
from distdoctor.probes.rng.stream_states import States, moved, states
from distdoctor.probes.rng.worker_draws import LOADER_VARIABLE

_LOOKS = 4
"""Batches of a pass that are looked at; a stream that is used is used for most."""

_MOST_PASSES = 2_000
"""Passes of a process that are written down."""

_MOST_AROUND = 100
"""Passes at whose begin the functions are looked at that make them: it costs a
millisecond or two where they hold much."""

_MOST_FRAMES = 3
"""Functions, from that on that goes through a loader, whose variables are looked at."""

_MARK = "distdoctor_drawn"


class _Pass:
    """The draws seen during one pass over a DataLoader."""

    def __init__(self, loader: Any, number: int, epoch: int, around: bool) -> None:
        self.number, self.epoch = number, epoch
        self.iterable = isinstance(loader.dataset, IterableDataset)
        self.alone = loader.num_workers == 0  # samples are made in this process
        self.generators: dict[str, Any] = {}
        if self.alone:
            self.generators = generators_of(loader.dataset, loader.collate_fn)
        self.of_loop: dict[str, Any] = {}
        if around:
            self._look_around(loader)
        self.looks = 0
        self.trained = False
        self.begins: States = {}
        self.after: States = {}  # when the last batch was given
        self.drawn: States = {}  # when its indices were
        self.loading: set[str] = set()
        self.between: set[str] = set()
        self.site = ""

    @harmless
    def _look_around(self, loader: Any) -> None:
        """Find what the functions hold that go through the loader."""
        samplers = (getattr(loader, "sampler", None), loader)
        orders = [getattr(one, "generator", None) for one in samplers]
        others = [*self.generators.values(), *orders]
        self.of_loop = loop_generators(users_frames(_MOST_FRAMES), others)
        self.generators |= self.of_loop

    @harmless
    def asked(self) -> None:
        """Called before a batch is fetched: earlier draws were the user's."""
        os.environ.pop(LOADER_VARIABLE, None)
        if self.looks:
            self.between |= moved(self.after, states(self.generators))

    def is_in_use(self) -> bool:
        """Whether draws are followed while its batch is used."""
        return 0 < self.looks < _LOOKS

    @harmless
    def interrupted(self) -> None:
        """Called before others draw for data: earlier draws were the user's."""
        self.between |= moved(self.after, states(self.generators))

    @harmless
    def resumed(self) -> None:
        """Called when it has drawn."""
        self.after = states(self.generators)

    @harmless
    def indices_drawn(self) -> None:
        """Called when the sampler drew the indices of a batch."""
        if self.alone and 0 < self.looks < _LOOKS:
            self.drawn = states(self.generators)

    @harmless
    def given(self) -> None:
        """Called when a batch was fetched."""
        now = states(self.generators)
        if not self.looks:
            self.begins, self.site = now, call_site(3)
        elif self.drawn:
            self.loading |= moved(self.drawn, now)
        self.after, self.drawn = now, {}
        self.looks += 1


class Passes:
    """Follows random draws in all passes over DataLoaders of this process.

    Attributes:
        begun: Number of passes in which an optimizer made a step.
    """

    def __init__(self) -> None:
        self._open: list[_Pass] = []
        self._interrupted: list[_Pass] = []  # while something else draws
        self.reset()

    def reset(self) -> None:
        """Forget all state: the process starts to play in another run."""
        self.begun = self._reported = self._known = 0
        self._loaders: weakref.WeakKeyDictionary[Any, list[int]] = (
            weakref.WeakKeyDictionary()
        )
        self._open.clear()
        self._interrupted.clear()

    @harmless
    def begin(self, iterator: Any, loader: Any) -> None:
        """Called when an iterator is made or reused, before its workers start."""
        if RECORDER.writer is None or self._reported >= _MOST_PASSES:
            return
        if loader not in self._loaders:
            self._loaders[loader] = [self._known, 0]
            self._known += 1
        number, epoch = self._loaders[loader]
        self._loaders[loader][1] += 1
        for one in [one for one in self._open if one.number == number]:
            self.tell(one)
        one = _Pass(loader, number, epoch, self._reported < _MOST_AROUND)
        iterator.__dict__[_MARK] = one
        self._open.append(one)
        os.environ[LOADER_VARIABLE] = f"{number}-{epoch}"

    @harmless
    def interrupt(self, iterator: Any = None) -> list[_Pass]:
        """Called before something draws that belongs to no batch in use.

        Args:
            iterator: Of the DataLoader that is to work, if one is; its own pass looks
                for itself.

        Returns:
            What `resume` is to get once that is done.
        """
        own = None if iterator is None else iterator.__dict__.get(_MARK)
        using = [one for one in self._open if one is not own and one.is_in_use()]
        using = [one for one in using if one not in self._interrupted]
        for one in using:
            one.interrupted()
        self._interrupted += using
        return using

    @harmless
    def resume(self, interrupted: list[_Pass] | None) -> None:
        """Called when it has drawn."""
        for one in interrupted or ():
            self._interrupted.remove(one)
            one.resumed()

    def stepped(self) -> None:
        """Called after an optimizer step."""
        for one in [*self._open]:
            if not one.trained:
                one.trained = True
                self.begun += 1
            if one.looks >= _LOOKS:
                self.tell(one)  # now, as the job may be ended within the pass

    @harmless
    def tell(self, one: _Pass) -> None:
        """Record one pass, once."""
        if one not in self._open:
            return
        self._open.remove(one)
        self._reported += 1
        if one.looks:
            drawn = Drawn(
                loader=one.number,
                epoch=one.epoch,
                iterable=one.iterable,
                trained=one.trained,
                streams=tuple(one.begins),
                begins=tuple(one.begins.values()),
                loading=tuple(sorted(one.loading)),
                between=tuple(sorted(one.between)),
                explicit=tuple(sorted(one.between & one.of_loop.keys())),
            )
            RECORDER.observe(drawn, one.site)

    @harmless
    def tell_all(self) -> None:
        """Record all passes that are not yet; called at the end."""
        for one in [*self._open]:
            self.tell(one)


PASSES = Passes()


def install() -> None:
    """Wrap what splits samples right after `import torch`: it is imported by name."""
    wrapped = functools.wraps(made := data.random_split)(
        lambda *args, **kwargs: _apart(None, made, *args, **kwargs)
    )
    data.random_split = dataset.random_split = wrapped


def _apart(iterator: Any, draw: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call what draws for other things than the batch in use."""
    interrupted = PASSES.interrupt(iterator)
    try:
        return draw(*args, **kwargs)
    finally:
        PASSES.resume(interrupted)


unseen_by_warnings(_apart)


def _watch_passes() -> None:
    """When the rank joins: see passes over DataLoaders."""
    iterator: Any = dataloader._BaseDataLoaderIter
    begun, again = iterator.__init__, iterator._reset
    made, drawn = iterator.__next__, iterator._next_index

    @functools.wraps(begun)
    def begin(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        PASSES.begin(self, loader)
        _apart(self, begun, self, loader, *args, **kwargs)

    @functools.wraps(again)
    def reset(self: Any, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:
            PASSES.begin(self, loader)
        _apart(self, again, self, loader, first_iter)

    @functools.wraps(made)
    def advance(self: Any) -> Any:
        one: _Pass | None = self.__dict__.get(_MARK)
        if one is None:
            return _apart(self, made, self)
        look = one.looks < _LOOKS
        if look:
            one.asked()
        try:
            batch = _apart(self, made, self)
        except StopIteration:
            PASSES.tell(one)
            raise
        if look:
            one.given()
        return batch

    @functools.wraps(drawn)
    def next_index(self: Any) -> Any:
        indices = _apart(self, drawn, self)
        if (one := self.__dict__.get(_MARK)) is not None:
            one.indices_drawn()
        return indices

    unseen_by_warnings(begin)
    iterator.__init__, iterator._reset = begin, reset
    iterator.__next__, iterator._next_index = advance, next_index


PROBE = Probe(
    install=install,
    joined=_watch_passes,
    stepped=lambda _: PASSES.stepped(),
    flush=PASSES.tell_all,
    reset=PASSES.reset,
)
