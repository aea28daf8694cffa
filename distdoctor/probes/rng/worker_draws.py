"""Records, inside a DataLoader worker, what is drawn from its random streams.

Torch seeds the streams of a worker, each differently, before the user's
`worker_init_fn` has its turn (Python's and torch's by the base seed plus the number of
the worker, numpy's by a hash of both). States are read after that, and after the first
few batches. A worker has no journal: it adds a line to a file of the record folder.

Source: torch 2.13, utils/data/_utils/worker.py, `_worker_loop`.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from torch.utils.data import _DatasetKind
from torch.utils.data._utils import worker as torchs

from distdoctor.journal.layout import STREAMS_FILE
from distdoctor.probes.harmless import harmless
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.rng import seeds
from distdoctor.probes.rng.held_generators import generators_of
from distdoctor.probes.rng.stream_states import States, moved, states

LOADER_VARIABLE = "DISTDOCTOR_LOADER"
"""Tells workers, while they are started, which pass they are for: loader and number."""

_TOLD_AFTER = (1, 2, 4)  # batches of a worker

_MOST_PASSES = 200  # of a worker that lives on


def install() -> None:
    """Install the probe right after `import torch`, also in spawned workers."""
    made = torchs._worker_loop

    @functools.wraps(made)
    def _worker_loop(*args: Any, **kwargs: Any) -> Any:
        return made(*(_begin(*args) or args), **kwargs)

    torchs._worker_loop = _worker_loop


_DATASET, _COLLATE, _INITIALISE, _NUMBER = 1, 6, 9, 10
"""Positions of the arguments of `_worker_loop`; torch gives them by position."""


@harmless
def _begin(*args: Any) -> tuple[Any, ...]:
    """Before anything of the worker: come in where it makes what fetches batches.

    Returns:
        The arguments for the worker.
    """
    loader, _, epoch = os.environ.get(LOADER_VARIABLE, "").partition("-")
    if not loader.isdigit() or RECORDER.writer is not None:
        return args  # of a loader nobody watches, or a thread of the rank's own process
    seeds.in_worker = True
    dataset, collate = args[_DATASET], args[_COLLATE]
    iterable = args[0] == _DatasetKind.Iterable
    look = _Look(int(loader), int(epoch), args[_NUMBER], iterable)
    kinds: Any = _DatasetKind
    made = kinds.create_fetcher

    def create_fetcher(*given: Any, **kwargs: Any) -> Any:
        fetcher = made(*given, **kwargs)
        look.begin(fetcher, dataset, collate)
        return fetcher

    kinds.create_fetcher = staticmethod(create_fetcher)
    initialise = args[_INITIALISE]
    if initialise is None:
        return args

    def by_user(worker: int) -> None:
        seeds.by_user = True
        try:
            initialise(worker)
        finally:
            seeds.by_user = False

    return (*args[:_INITIALISE], by_user, *args[_INITIALISE + 1 :])


class _Look:
    """The draws of one DataLoader worker in a pass."""

    def __init__(self, loader: int, epoch: int, worker: int, iterable: bool) -> None:
        self.loader, self.epoch, self.worker = loader, epoch, worker
        self.iterable = iterable
        self.counts = seeds.counts()
        self.seeded: tuple[str, ...] = ()
        self.passes = 0
        self.batches = 0
        self.generators: dict[str, Any] = {}
        self.begins: States = {}
        self.last: States = {}
        self.loading: set[str] = set()

    @harmless
    def begin(self, fetcher: Any, dataset: Any, collate: Any) -> None:
        """Called when a pass begins, after the user's `worker_init_fn`."""
        self.passes += 1
        if self.passes > _MOST_PASSES:
            return
        seeded = self._seeded_since()
        self.epoch += self.passes > 1
        self.seeded = tuple(sorted(seeded)) if self.passes == 1 else ()
        self.generators = generators_of(dataset, collate)
        self.begins = self.last = states(self.generators)
        self.loading, self.batches = set(), 0
        fetch = fetcher.fetch

        def look_on(*args: Any) -> Any:
            batch = fetch(*args)
            if self.batches < _TOLD_AFTER[-1]:
                self.fetched()
            return batch

        fetcher.fetch = look_on

    @harmless
    def fetched(self) -> None:
        """Called when the worker has fetched a batch."""
        self.batches += 1
        now = states(self.generators)
        # What an IterableDataset draws before its first sample may be an order that
        # all workers are to share; what is seeded for each sample tells nothing.
        if self.batches > 1 or not self.iterable:
            self.loading |= moved(self.last, now)
        self.loading -= self._seeded_since()
        self.last = now
        if self.batches in _TOLD_AFTER:
            self._tell()

    def _seeded_since(self) -> set[str]:
        before, self.counts = self.counts, seeds.counts()
        return {name for name, n in self.counts.items() if n > before.get(name, 0)}

    def _tell(self) -> None:
        sites = [seeds.site_of(name) for name in self.seeded]
        sites += [seeds.created.get(id(one), "") for one in self.generators.values()]
        drawn = {
            "loader": self.loader,
            "epoch": self.epoch,
            "worker": self.worker,
            "iterable": self.iterable,
            "streams": tuple(self.begins),
            "begins": tuple(self.begins.values()),
            "loading": tuple(sorted(self.loading)),
            "seeded": self.seeded,
        }
        line = {"by": os.getppid(), "pid": os.getpid(), "drawn": drawn}
        RECORDER.append(STREAMS_FILE, {**line, "site": next(filter(None, sites), "")})


PROBE = Probe(install=install)
