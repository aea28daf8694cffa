"""Follows an optimizer's gradients by those of a few of its parameters."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from math import isclose
from typing import Any

from torch import Tensor

from distdoctor.model.observations import optimizer_step as words
from distdoctor.probes.accumulation.backward_passes import NO_BATCH, Batch
from distdoctor.probes.accumulation.backward_passes import BackwardPass as Labelled
from distdoctor.probes.accumulation.batch_identity import are_others, are_turns
from distdoctor.probes.fingerprints import sampled
from distdoctor.probes.fingerprints.exact import local
from distdoctor.probes.fingerprints.first_elements import cell_of
from distdoctor.probes.gradients.exchanges import EXCHANGES
from distdoctor.probes.optimizer_step import optimizers
from distdoctor.probes.optimizer_step.optimizers import Optimizer

MOST_WORDS = 8_192
"""Of a cycle; what follows is not told."""

_OFTEN = 4  # times that gradients are read to see whether they are zero

_CLOSE = 1e-3

_VERY_CLOSE = 1e-5

_TELLING = 256.0  # a scale that is more than what averaging does to a number

_MOST_LOOKS = 3  # cycles that lose gradients, whose labels are looked at

_MOST_LABELLED = 64  # passes of such a cycle

_WINDOWS = range(2, 65)  # batches or ranks, that are divided by at the same time

State = tuple[int, int, float] | None
"""Of a gradient: which object it is, how often it was changed, a number in it."""


class FollowedPass:
    """A backward pass, and whether an optimizer has used its gradients."""

    __slots__ = ("used",)

    def __init__(self) -> None:
        self.used = False


class Followed:
    """The gradient history of one optimizer since its last step.

    Attributes:
        seen: State of the watched gradients when last looked at.
        filled: Whether gradients exist and are not zero.
        spent: Whether a step was made with them.
        inside: Whether it is inside a step, during which nothing is recorded.
        pending: Backward passes whose gradients were not yet cleared or used.
        scales: Whether a GradScaler handles it, whose `update` is due.
    """

    def __init__(self, known: Optimizer, number: int) -> None:
        self.number = number
        self._optimizer = known
        self._witnesses: list[weakref.ref[Tensor]] = []
        self._wrappers: list[weakref.ref[Any]] = []
        self.seen: list[State] = []
        self._before: list[State] = []
        self.filled = self.spent = self.inside = self.stepped = self.scales = False
        self.pending: list[tuple[int, FollowedPass]] = []  # and where their words are
        self._dropped: list[tuple[int, list[tuple[int, FollowedPass]]]] = []
        self._late: list[tuple[int, list[tuple[int, FollowedPass]]]] = []
        self._batches: set[Batch] = set()
        self._weight_seen: State = None
        self._witness = _Witness()
        self._reads, self._zero = 0, True
        self.elements = self.size_bytes = self.steps = self.moved = 0
        self._trained_elements = 0
        self.static = False
        self.words: list[str] = []
        self.closing: tuple[list[str], int, int, int, str] | None = None
        self.held_words: list[str] = []
        self.held_batches = self.held_loaders = self.held_step = self.more = 0
        self.held_site = ""
        self.others = self.turns = False
        self._looks = 0
        self._labelled: list[Labelled] = []
        self.known: set[tuple[str, int]] = set()
        self.acts: set[tuple[str, str]] = set()

    def optimizer(self) -> Any:
        """The optimizer; None if it is gone."""
        return self._optimizer.optimizer

    def choose(self) -> None:
        """Choose the parameters whose gradients are watched."""
        held = self._optimizer.held()
        trained = [one for one in held if one.requires_grad] or held
        at = sorted({0, len(trained) - 1}) if trained else []
        self._witnesses = [weakref.ref(trained[n]) for n in at]
        wrappers = optimizers.averaging([trained[n] for n in at])
        self._wrappers = [weakref.ref(one) for one in wrappers]
        self.static = any(getattr(one, "static_graph", False) for one in wrappers)
        self.elements = sum(one.numel() for one in held)
        self._trained_elements = sum(one.numel() for one in trained)
        self.size_bytes = sum(one.numel() * one.element_size() for one in held)
        self.seen = self.states()

    # --- gradients ---

    def states(self) -> list[State]:
        """The present states of the watched gradients."""
        found: list[State] = []
        number, first = 0.0, self._witness.first
        for ref in self._witnesses:
            tensor = ref()
            gradient = None if tensor is None else tensor.grad
            if gradient is None:
                found.append(None)
                continue
            # FSDP adds to its part, of which the whole does not know; and autograd to
            # that of a DTensor, of which no version tells, but its numbers.
            part = local(gradient)
            if part is not gradient or not number:
                number = first(part)  # what is done to `.data` has no version, either
            found.append((id(part), part._version, number))
        return found

    def settle_change(self) -> bool:
        """Whether the gradients changed since the last look; updates that look."""
        now = self.states()
        if now == self.seen:
            return False
        self.seen = now
        return True

    def settle(self) -> None:
        """Take the present state of the gradients as known."""
        self.seen = self.states()

    def begin(self) -> None:
        """Called before a backward pass."""
        self._before = self.seen

    def is_filled(self) -> bool:
        """Whether the backward pass added to some of the gradients."""
        self.seen = now = self.states()
        if now == self._before:
            return False
        return any(
            state is not None and state != old
            for state, old in zip(now, self._before, strict=False)
        )

    def is_gone(self, was: Sequence[State]) -> bool:
        """Whether some gradients that existed no longer do."""
        return any(
            state is None and old is not None
            for state, old in zip(self.seen, was, strict=False)
        )

    def is_zero(self, anew: bool = False) -> bool:
        """Whether the gradients are zero.

        They are read some times only: what is so at each step need not be asked for
        again, and a GPU would have to be waited for.

        Args:
            anew: They were just changed: an earlier answer does not count. What cannot
                be read is not zero then.
        """
        if any(state is not None and state[2] for state in self.seen):
            self._zero = False
            return False
        gradients = [g for one in self._alive() if (g := one.grad) is not None]
        on_cpu = all(one.is_cpu for one in gradients)
        can_read = (on_cpu or EXCHANGES.looking) and not sampled.is_capturing()
        if can_read and (anew or self._reads < _OFTEN or EXCHANGES.looking):
            self._reads += 1
            self._zero = not any(sampled.norm_of(one) for one in gradients)
        elif anew:
            return False
        return self._zero

    def is_divided(
        self, was: Sequence[State], scale: float, exchanged: bool = False
    ) -> bool:
        """Whether a gradient was divided by a GradScaler's scale since `was`.

        Args:
            was: Its state before.
            scale: The scale; 1.0: not known, or nothing is divided.
            exchanged: Ranks have exchanged them in between.
        """
        if scale == 1.0:
            return False
        pairs = zip(was, self.seen, strict=False)
        numbers = {(old[2], new[2]) for old, new in pairs if old and new}
        ratios = [old / (new * scale) for old, new in numbers if old and new]
        if exchanged:  # what other ranks had is in them, too
            if scale <= _TELLING or not ratios:
                return False
            # One average may be next to nothing by chance; several are not at once.
            least = scale ** (-0.5 if len(ratios) > 1 else -0.25)
            return all(abs(ratio) > least for ratio in ratios)
        return any(
            isclose(ratio, 1.0, rel_tol=_CLOSE)
            or (
                round(ratio) in _WINDOWS
                and isclose(ratio, round(ratio), rel_tol=_VERY_CLOSE)
            )
            for ratio in ratios
        )

    def is_taken(self) -> bool:
        """Whether something changed the parameters since the backward pass."""
        return self._weight_seen != self._weight()

    def _alive(self) -> list[Tensor]:
        return [one for ref in self._witnesses if (one := ref()) is not None]

    def _weight(self) -> State:
        tensor = self._witnesses[0]() if self._witnesses else None
        if tensor is None:
            return None
        return id(tensor), tensor._version, _first(tensor)

    def averaging(self, reduced: int, asked: bool) -> str:
        """A suffix that tells if the DDP wrappers averaged in this backward pass.

        Args:
            reduced: Elements that were reduced in it, not all of which need be
                gradients: SyncBatchNorm reduces statistics.
            asked: `no_sync` was ever called. Else a forward pass without gradients may
                be what the wrapper says that it was told.
        """
        suffix = ""
        alone = len(self._wrappers) == 1 and optimizers.made()[1] == 1
        for ref in self._wrappers:
            ddp = ref()
            if ddp is None:
                continue
            sync = ddp.require_backward_grad_sync
            now = not asked or getattr(ddp, "require_forward_param_sync", True)
            if not reduced:
                suffix = words.BARE if sync and now else words.LOCAL
            elif alone and reduced >= self._trained_elements:
                suffix = ""  # whatever it was told, it has averaged
            elif not sync and not now:
                suffix = words.LOCAL
        return suffix

    # --- passes ---

    def add(self, this: FollowedPass, batch: Batch) -> None:
        """Note a backward pass that gave gradients; the last word stands for it."""
        self.pending.append((len(self.words) - 1, this))
        if batch != NO_BATCH:
            self._batches.add(batch)
        self.filled, self.spent = True, False
        self._weight_seen = self._weight()

    @property
    def asks_for_labels(self) -> bool:
        """Whether labels are to be noted, as gradients were lost before."""
        return (
            words.DROP in self.held_words
            and self._looks < _MOST_LOOKS
            and len(self._labelled) < _MOST_LABELLED
        )

    def label(self, this: Labelled) -> None:
        """Note the labels of the coming backward pass."""
        self._labelled.append(this)

    def clear(self) -> None:
        """Note that the gradients were cleared."""
        if self.pending:
            self._dropped.append((len(self.words) - 1, self.pending))
            self.pending = []
        self.filled = self.spent = False

    def use(self) -> None:
        """Note that the gradients were used by a step."""
        for _, one in self.pending:
            one.used = True
        self.pending = []
        self.spent = True

    # --- cycles ---

    def close(self, steps: int, site: str) -> None:
        """End the cycle of words at this optimizer step."""
        self.use()
        loaders = len({number for number, _ in self._batches})
        self.closing = self.words, len(self._batches), loaders, steps, site
        self._late, self._dropped = self._dropped, []
        self.words, self._batches = [], set()
        if self._labelled:
            self._looks += 1
            self.others = are_others(self._labelled)
            self.turns = are_turns(self._labelled)
            self._labelled = []  # it would keep labels alive

    def mark_spare(self, history: list[str]) -> None:
        """Mark dropped gradients that served another optimizer as not lost."""
        for at, passes in self._late:
            for where, one in passes:
                if one.used and where < len(history):
                    history[where] = words.SPARE
            if at < len(history) and all(one.used for _, one in passes):
                history[at] = words.CLEAR
        self._late = []


class _Witness:
    """A tensor whose first number is asked for several times in a row."""

    __slots__ = ("_address", "_cell", "_ref")

    def __init__(self) -> None:
        self._ref: weakref.ref[Tensor] | None = None
        self._address, self._cell = 0, None

    def first(self, tensor: Tensor) -> float:
        """Its first number; 0.0 if it cannot be read, or is NaN."""
        ref, cell = self._ref, self._cell
        # Memory that is given back leaves a tensor at its beginning without address.
        if ref is None or ref() is not tensor or tensor.data_ptr() != self._address:
            cell = cell_of(tensor)
            self._ref = None
            if cell is not None and not tensor.storage_offset():
                self._ref, self._cell = weakref.ref(tensor), cell
                self._address = tensor.data_ptr()
        return _number_in(cell)


def _first(tensor: Tensor) -> float:
    """The first number of a tensor on the CPU; 0.0 of one that cannot be read so."""
    return _number_in(cell_of(tensor))


def _number_in(cell: Any) -> float:
    found = 0.0 if cell is None else float(cell.value)
    return found if found == found else 0.0  # NaN is not equal to itself
