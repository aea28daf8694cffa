"""Shortens passes over DataLoaders, alike on all ranks, so that a job ends in time.

From the moment on that a loader is shortened it is, in all respects, a loader of
fewer batches: each pass over it gives so many, and `len` says so. Until then nothing
is changed. What is left out lies in the middle of a pass: its sampler draws all
indices, so that its random state and the last batch, which may be a smaller one, are
the true ones, and only the samples of the batches left out are never loaded.

The ranks agree on each step (`agreement`), and none waits for another. A pass is known
by its line, by how many collectives the world has done before it, and by its number
since. Left alone are passes that not all ranks make, those of other threads, and those
that the user's code steps through by `next`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from distdoctor.journal.environment import BUDGET_VARIABLE
from distdoctor.model.events import Shortened
from distdoctor.model.launcher_variables import RANK_VARIABLES
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.data.agreement import Agreement, Begun
from distdoctor.probes.data.early_ends import may_end_early
from distdoctor.probes.data.rounds_left import rounds_left
from distdoctor.probes.data.shortening_pace import (
    SHORTEST,
    SURE_SHARE,
    PassProgress,
    TimeBudget,
    left_out,
    next_gate,
)
from distdoctor.probes.learning_rate.rising_rates import RATES
from distdoctor.probes.recorder import RECORDER

MOST_DRAWN = 4_000_000
"""Batches whose indices are drawn for nothing; beyond, a pass ends without its last.

Source: measured, a batch of 32 indices of a shuffled sampler takes 1 µs to draw.
"""

LEFT_OUT = "distdoctor_leaves_out"
"""Attribute of an iterator whose sampler draws what is not to be read."""

_NEVER = sys.maxsize

_UNASKED = "not asked yet"


class _Shortened:
    """What is left out of each pass over one DataLoader, by agreement of all ranks."""

    __slots__ = ("ends", "length", "period", "skip")

    def __init__(self) -> None:
        self.length: int | None = None  # of the loader when it was shortened
        self.skip = 0  # batches, of a loader that has a length
        self.ends = 0  # after so many batches, of one that has none; 0: never
        self.period = 0  # batches to an optimizer's step

    def kept(self, length: int) -> int:
        """How many batches a loader of that length gives."""
        if self.ends:
            return min(length, self.ends)
        return length - self.skip if length == self.length else length


class _Pass:
    """One pass over a DataLoader, and how far it has come."""

    __slots__ = (
        "around",
        "cycle_s",
        "end",
        "first_ns",
        "gates",
        "iterator",
        "key",
        "length",
        "loader",
        "rounds",
        "site",
        "skipped",
        "stepped",
    )

    def __init__(
        self,
        key: str,
        site: str,
        cycle_s: float,
        iterator: Any,
        loader: _Shortened,
    ) -> None:
        self.key, self.site, self.loader = key, site, loader
        self.cycle_s = cycle_s  # since the last pass of this line; 0: not known
        self.rounds: int | str | None = _UNASKED
        self.iterator = weakref.ref(iterator)
        self.around: _Pass | None = None  # the pass inside of which this one is
        self.length = _length(iterator)
        self.gates = False  # whether to look at the gates
        self.end = _NEVER  # where to end it by force
        self.skipped = 0
        self.stepped = 0  # batches given at the optimizer's last step
        self.first_ns = 0  # when the first batch had been dealt with


class _Known(NamedTuple):
    """The last pass that a line began."""

    met: int  # collectives of the world before it
    number: int  # of the passes since the last of them
    key: str
    begun_ns: int


class EpochShortening:
    """Decides with the other ranks which passes to shorten, and ends them early.

    Args:
        launched_ns: When the job was started, by the monotonic clock.
        deadline_ns: When the budget ends.
        world: The number of ranks.
        met: How many collectives the world has done, as this rank counts.
        trains: Whether gradients are recorded.
        now_ns: The monotonic clock.
    """

    def __init__(
        self,
        launched_ns: int,
        deadline_ns: int,
        world: Callable[[], int],
        met: Callable[[], int],
        trains: Callable[[], bool],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._launched_ns, self._deadline_ns = launched_ns, deadline_ns
        self._now_ns = now_ns
        self._world, self._met, self._trains = world, met, trains
        self._joined = 0
        self._window: TimeBudget | None = None
        self._agreement: Agreement | None = None
        self._loaders: weakref.WeakKeyDictionary[Any, _Shortened] = (
            weakref.WeakKeyDictionary()
        )
        self._last: dict[str, _Known] = {}  # by line
        self._current: _Pass | None = None  # that a batch was asked of last

    def joined(self) -> None:
        """Called when the process joins a job: collectives are counted anew."""
        self._joined += 1
        self._last.clear()

    # --- loaders ---

    def of_loader(self, loader: Any, iterator: Any) -> None:
        """Called when an iterator was made for a DataLoader."""
        iterator.distdoctor_loader = weakref.ref(loader)
        iterator.distdoctor_look = 0  # an iterator with workers may be used again

    def length(self, loader: Any, length: int) -> int:
        """The length that a DataLoader of `length` batches is to report."""
        shortened = self._loaders.get(loader)
        return length if shortened is None else shortened.kept(length)

    def stepped(self) -> None:
        """Called after an optimizer step: note how many batches it used."""
        this = self._current
        iterator = None if this is None else this.iterator()
        if this is None or iterator is None:
            return
        if iterator._num_yielded > this.stepped:
            # The step for a remainder at the end of a pass comes sooner.
            period = iterator._num_yielded - this.stepped
            this.loader.period = max(this.loader.period, period)
            this.stepped = iterator._num_yielded

    def ended(self, iterator: Any) -> None:
        """Called when a pass over a DataLoader ended."""
        this: _Pass | None = iterator.__dict__.get("distdoctor_pass")
        iterator.distdoctor_look = 0
        if this is not None:
            self._current = this.around

    # --- a pass ---

    def ends_before(self, iterator: Any) -> bool:
        """Whether a pass is to end now.

        To be asked when an iterator's `_num_yielded` is its `distdoctor_look`, or 0 if
        it has none: this is the only part that all batches would pay for.

        Args:
            iterator: A DataLoader's.

        Raises:
            OSError: The ranks' file cannot be read or written.
        """
        given: int = iterator._num_yielded
        if not given:
            self._begin(iterator)
        this: _Pass | None = iterator.distdoctor_pass
        if this is None:
            iterator.distdoctor_look = _NEVER
            return False
        self._current = this
        if given == 1:
            this.first_ns = self._now_ns()
            if this.loader.length == this.length:
                self._leave_out(iterator, this, this.loader.skip)
        elif given and this.gates and given < this.end:
            self._at_gate(iterator, this, given)
        gate = next_gate(given) if this.gates else _NEVER
        iterator.distdoctor_look = min(gate, this.end) if given else 1
        return given >= this.end

    def _begin(self, iterator: Any) -> None:
        iterator.distdoctor_pass = None
        writer = RECORDER.writer
        if writer is None or threading.current_thread() is not threading.main_thread():
            return
        if not may_end_early(sys._getframe(1)):
            return
        loader = self._shortened_of(iterator)
        this = _Pass(*self._known_by(), iterator, loader)
        length = this.length
        if loader.ends and length is None:
            this.end = loader.ends
        if length is None or loader.kept(length) >= SHORTEST:
            this.gates = True
            if self._window is None:
                times = self._launched_ns, self._now_ns(), self._deadline_ns
                self._window = TimeBudget(*times)
            begun = Begun(length, _prefetch(iterator))
            self._shared().begin(this.key, writer.rank, begun)
        before = self._current
        if before is not None and before.iterator() not in {None, iterator}:
            this.around = before
        iterator.distdoctor_pass = this

    def _known_by(self) -> tuple[str, str, float]:
        """What all ranks know a pass by, the line that makes it, and since when."""
        site, met, now = call_site(4), self._met(), self._now_ns()
        last = self._last.get(site)
        number, cycle_s = 0, 0.0
        if last is not None:
            number = last.number + 1 if last.met == met else 0
            cycle_s = (now - last.begun_ns) / 1e9
            self._shared().forget(last.key)
        text = f"{self._joined}\n{met}\n{number}\n{site}"
        key = blake2b(text.encode(), digest_size=8).hexdigest()
        self._last[site] = _Known(met, number, key, now)
        return key, site, cycle_s

    def _shared(self) -> Agreement:
        if self._agreement is None:
            assert RECORDER.writer is not None
            name = f"loaders.{RECORDER.writer.incarnation}.log"
            self._agreement = Agreement(RECORDER.folder / name)
        return self._agreement

    def _shortened_of(self, iterator: Any) -> _Shortened:
        owner = iterator.__dict__.get("distdoctor_loader")
        loader = None if owner is None else owner()
        if loader is None:  # made for this pass alone
            return _Shortened()
        shortened = self._loaders.get(loader)
        if shortened is None:
            shortened = self._loaders[loader] = _Shortened()
        return shortened

    def _at_gate(self, iterator: Any, this: _Pass, given: int) -> None:
        now = self._now_ns()
        assert self._window is not None
        window, loader = self._window, this.loader

        def propose(begun: Mapping[int, Begun]) -> int:
            course = PassProgress(
                given=given,
                skipped=this.skipped,
                ends=loader.ends,
                batch_s=(now - this.first_ns) / 1e9 / (given - 1),
                period=loader.period,
                trains=self._trains(),
                rounds=_rounds(this, window.spent(now)),
                cycle_s=this.cycle_s,
            )
            spent, left_s = window.spent(now), window.left_s(now)
            return left_out(course, begun, self._world(), spent, left_s)

        decided = self._shared().settle(this.key, given, propose)
        if decided and this.length is None:
            this.end = loader.ends = max(given, decided)
            self._note(this, loader.ends)
        elif decided:
            self._leave_out(iterator, this, decided)
            assert this.length is not None
            # A rank with far fewer batches than the others ends here.
            loader.length = this.length
            loader.skip = min(this.skipped, this.length - given)
            self._note(this, this.length - loader.skip)

    def _leave_out(self, iterator: Any, this: _Pass, batches: int) -> None:
        """Leave out so many of the batches to come; there are fewer: end now."""
        if not batches or this.length is None:
            return
        given = iterator._num_yielded
        sent = getattr(iterator, "_send_idx", given)
        to_draw = this.length - this.skipped - sent
        this.skipped += batches
        if batches < to_draw and batches <= MOST_DRAWN:
            _draw(iterator, batches)
        else:
            this.end = max(given, this.length - this.skipped)

    def _note(self, this: _Pass, kept: int) -> None:
        RECORDER.tell(Shortened(kept=kept, length=this.length), this.site)
        RATES.shortened()


def _rounds(this: _Pass, spent: float) -> int | None:
    """How many passes of the line are to come; not asked before it matters."""
    if spent < SURE_SHARE:
        return None
    if isinstance(this.rounds, str):
        this.rounds = rounds_left(sys._getframe(1))
    return this.rounds


def _draw(iterator: Any, batches: int) -> None:
    """Let the sampler draw indices that no data is loaded for."""
    setattr(iterator, LEFT_OUT, True)
    try:
        for _ in range(batches):
            iterator._next_index()
    except StopIteration:  # its length says more than it gives
        pass
    finally:
        delattr(iterator, LEFT_OUT)


def _length(iterator: Any) -> int | None:
    """How many batches a loader has; None: an IterableDataset, or nobody knows."""
    if iterator._dataset_kind:
        return None
    try:
        return len(iterator._index_sampler)
    except (TypeError, NotImplementedError):
        return None


def _prefetch(iterator: Any) -> int:
    ahead = getattr(iterator, "_prefetch_factor", None) or 0
    return int(ahead * iterator._num_workers)


def all_ranks_are_here(environment: Mapping[str, str]) -> bool:
    """Whether the launcher started all ranks on this machine, as far as it says.

    Args:
        environment: Environment.
    """
    return environment.get("SLURM_NNODES", "1") == "1" and all(
        environment[here] == environment[everywhere]
        for _, _, everywhere, _, here in RANK_VARIABLES
        if here in environment and everywhere in environment
    )


def of_environment(
    world: Callable[[], int], met: Callable[[], int], trains: Callable[[], bool]
) -> EpochShortening | None:
    """The shortening that the supervisor asked for; None if none, or not possible.

    Args:
        world: See `EpochShortening`.
        met: See `EpochShortening`.
        trains: See `EpochShortening`.
    """
    begin, _, end = os.environ.get(BUDGET_VARIABLE, "").partition("-")
    if not (begin.isdigit() and end.isdigit() and all_ranks_are_here(os.environ)):
        return None
    return EpochShortening(int(begin), int(end), world, met, trains)
