"""Wraps DataLoader iterators, to record each batch and to end passes early."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, dataloader

from distdoctor.probes import registry
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.collectives import interception
from distdoctor.probes.data import samples
from distdoctor.probes.data.epoch_shortening import EpochShortening, of_environment
from distdoctor.probes.failures.uncaught import seen
from distdoctor.probes.groups import world
from distdoctor.probes.harmless import harmless
from distdoctor.probes.horovod.torch_operations import OPERATIONS_HERE
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_shortening: list[EpochShortening | None] = [None]


def shortening() -> EpochShortening | None:
    """The object that shortens passes; None if nothing does."""
    return _shortening[0]


def install() -> None:
    """Install the probe; called at the first `init_process_group`."""
    collectives = interception.installed()
    if not registry.is_simulated() and collectives is not None:

        def met() -> int:
            return collectives.met() + OPERATIONS_HERE.met

        _shortening[:] = [of_environment(world.size, met, torch.is_grad_enabled)]
    watch_loaders(_shortening[0])


def watch_loaders(shortening: EpochShortening | None) -> None:
    """Wrap iterators, to report each batch and the end of each pass.

    Args:
        shortening: Ends passes before their time; None: nothing does.
    """
    samples.watch()
    iterator = dataloader._BaseDataLoaderIter
    made = iterator.__next__
    unasked = -1 if shortening is None else 0
    ends_before: Callable[[Any], bool | None] = _never
    ended: Callable[[Any], None] = _nothing
    read, read_all = harmless(samples.SAMPLES.gave), harmless(samples.SAMPLES.ended)
    if shortening is not None:
        ends_before = harmless(shortening.ends_before)
        ended = harmless(shortening.ended)

    def advance(self: Any) -> Any:
        look = self.__dict__.get("distdoctor_look", unasked)
        cut = False
        try:
            if self._num_yielded == look and ends_before(self):
                cut = True
                raise StopIteration
            batch = made(self)
        except StopIteration:
            ended(self)
            read_all(self, cut)
            _batch(self, ended=True)
            raise
        except Exception as error:
            seen(error, error.__traceback__)
            raise
        _batch(self, ended=False)
        read(self, batch)
        return batch

    iterator.__next__ = advance  # type: ignore[method-assign]
    if shortening is not None:
        _watch_lengths(shortening)


def _never(_iterator: Any) -> bool:
    return False


def _nothing(_iterator: Any) -> None:
    pass


def _watch_lengths(shortening: EpochShortening) -> None:
    """Tell whose iterator is whose, and let `len` say what a loader will give."""
    made_iterator, made_length = DataLoader.__iter__, DataLoader.__len__
    of_loader = harmless(shortening.of_loader)
    length_of = harmless(shortening.length)

    @functools.wraps(made_iterator)
    def iterate(self: Any) -> Any:
        iterator = made_iterator(self)
        of_loader(self, iterator)
        return iterator

    @functools.wraps(made_length)
    def length(self: Any) -> int:
        whole = made_length(self)
        given = length_of(self, whole)
        return whole if given is None else given

    DataLoader.__iter__ = iterate  # type: ignore[method-assign]
    DataLoader.__len__ = length  # type: ignore[method-assign]


@harmless
def _batch(iterator: Any, ended: bool) -> None:
    if RECORDER.writer is not None:
        site = RECORDER.intern(call_site(4))
        count = iterator._num_yielded
        RECORDER.writer.batch(RECORDER.thread(), count, ended, site)


PROBE = Probe(install=install, flush=samples.SAMPLES.flush)
