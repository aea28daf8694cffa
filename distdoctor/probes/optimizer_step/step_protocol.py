"""Follows what happens to each optimizer's gradients, from step to step.

A few parameters of an optimizer are asked for where their gradient lies and how often
it was changed. Whatever clears, fills or changes gradients is seen so, even where
nothing was called that could be watched. Words are kept in memory; what is like the
cycle before is only counted, and lines are asked for where something else happens than
in that.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from distdoctor.model.observations import optimizer_step as words
from distdoctor.model.observations.optimizer_step import Act, Cycle, Unsynced, packed
from distdoctor.probes.accumulation import loss_terms
from distdoctor.probes.accumulation.backward_passes import BackwardPass as Labelled
from distdoctor.probes.accumulation.backward_passes import latest
from distdoctor.probes.accumulation.batch_identity import stack
from distdoctor.probes.amp.scaled_losses import ScaledLosses, is_on
from distdoctor.probes.call_sites import call_site
from distdoctor.probes.gradients import clip_hooks
from distdoctor.probes.gradients.clip_hooks import Clipping
from distdoctor.probes.gradients.exchanges import EXCHANGES
from distdoctor.probes.harmless import harmless
from distdoctor.probes.optimizer_step import backward_hooks, call_hooks, optimizers
from distdoctor.probes.optimizer_step.call_hooks import CALL_HOOKS
from distdoctor.probes.optimizer_step.followed_optimizer import (
    MOST_WORDS,
    Followed,
    FollowedPass,
)
from distdoctor.probes.probe import Probe
from distdoctor.probes.recorder import RECORDER

_MOST_OPTIMIZERS = 16  # some jobs have one for each parameter

_MOST_TOLD = 2_000  # cycles that differ from the one before

_MOST_POSITIONS = 64  # in a cycle, whose lines are told apart

_MOST_ACTS = 200


class Protocol:
    """Writes for each optimizer the sequence of words for what its gradients undergo.

    Attributes:
        losses: The losses that were scaled.
    """

    def __init__(self) -> None:
        self.losses = ScaledLosses()
        self.reset()

    def reset(self) -> None:
        """Forget all state: the process starts to play in another run."""
        self._followed: list[Followed] = []
        self._known = (-1, -1)  # optimizers and wrappers that were made
        self.losses.reset()
        self._is_scaled = False  # the loss that backward runs on
        self._reduced = 0
        self._scaler: Followed | None = None  # whose step a GradScaler decides on
        self._reported = self._acts = 0
        self._unsynced: set[object] = set()

    # --- backward ---

    def begin(self, args: tuple[Any, ...]) -> None:
        """Called before a backward pass."""
        if RECORDER.writer is None:
            return
        for one in self._all():
            self._finish(one)
            if one.inside:
                continue
            self._look(one, between=True)
            if one.spent and one.filled and one.is_zero():
                self._clear(one)
            one.begin()
        asking = [one for one in self._followed if one.asks_for_labels]
        if asking:
            this = _labelled(args)
            for one in asking:
                one.label(this)
        self._is_scaled = self.losses.begin(args)
        self._scaler = None
        self._reduced = EXCHANGES.reduced

    def end(self) -> None:
        """Called after a backward pass."""
        if RECORDER.writer is None:
            return
        this: FollowedPass | None = None
        reduced = EXCHANGES.reduced - self._reduced
        kind = words.SCALED if self._is_scaled else words.BACKWARD
        for one in self._followed:
            if one.inside or not one.is_filled():
                continue
            this = this or FollowedPass()
            how = one.averaging(reduced, bool(self._unsynced))
            one.scales |= self._is_scaled
            self._say(one, kind + how, called=True)
            one.add(this, latest())
            one.moved = EXCHANGES.moved - EXCHANGES.reduced

    # --- what users call ---

    def clearing(self, _owner: Any, _given: Any) -> None:
        """Called before `zero_grad`."""
        for one in self._followed:
            if not one.inside:
                self._look(one)

    def cleared(self, _owner: Any, _given: Any) -> None:
        """Called after `zero_grad`, of whatever optimizer or module."""
        for one in self._followed:
            if not one.inside and one.settle_change() and one.filled:
                self._clear(one, called=True)

    def unscaling(self, scaler: Any, optimizer: Any) -> None:
        """Called before `unscale_`, by the user or in a GradScaler's step."""
        one = self._of(optimizer)
        if one is not None and self._scaler is None and is_on(scaler):
            self._look(one)
            one.scales = True
            self._say(one, words.UNSCALE, called=True)

    def unscaled(self, _scaler: Any, optimizer: Any) -> None:
        """Called after `unscale_`."""
        one = self._of(optimizer)
        if one is not None:
            one.settle()

    def trying(self, scaler: Any, optimizer: Any) -> None:
        """Called before `GradScaler.step`."""
        one = self._of(optimizer)
        if one is not None and is_on(scaler):
            self._look(one)
            one.scales = True
            self._scaler, one.stepped = one, False

    def tried(self, _scaler: Any, optimizer: Any) -> None:
        """Called after `GradScaler.step`."""
        one, self._scaler = self._scaler, None
        if one is None or one is not self._of(optimizer) or one.stepped:
            return
        one.settle()
        self._close(one, words.SKIP, one.steps)

    def updated(self, scaler: Any, _given: Any) -> None:
        """Called after `GradScaler.update`."""
        if not is_on(scaler):
            return
        self.losses.updated()
        for one in self._followed:
            if one.scales:
                one.scales = False
                self._say(one, words.UPDATE, called=True)

    def exchanged(self, optimizer: Any) -> None:
        """Called after an optimizer has put averages in the place of its gradients."""
        one = self._of(optimizer)
        if one is not None and one.settle_change():
            self._say(one, words.EXCHANGE)

    def averaging(self, optimizer: Any) -> None:
        """Called before that."""
        one = self._of(optimizer)
        if one is not None:
            self._look(one)

    def clipping(self, _this: Clipping) -> None:
        """Called before gradients are clipped."""
        for one in self._followed:
            if not one.inside:
                self._look(one)

    def clipped(self, _this: Clipping) -> None:
        """Called after clipping; which gradients it was is seen from them."""
        for one in self._followed:
            if not one.inside and one.settle_change():
                self._say(one, words.CLIP, called=True)

    def scheduled(self, optimizer: Any) -> None:
        """Called when a scheduler set a learning rate, perhaps within another."""
        one = self._of(optimizer)
        if one is not None and one.words[-1:] != [words.SCHEDULE]:
            self._say(one, words.SCHEDULE, called=True)

    def unsynced(self, _wrapper: Any, _given: Any) -> None:
        """Called when `no_sync` of a DDP wrapper was called."""
        site = call_site(2)
        if site not in self._unsynced and len(self._unsynced) < _MOST_ACTS:
            self._unsynced.add(site)
            RECORDER.observe(Unsynced(), site)

    # --- steps ---

    def stepping(
        self, optimizer: Any, known: optimizers.Optimizer, _closure: bool
    ) -> None:
        """Called before an optimizer step."""
        self._all()
        one = self._of(optimizer)
        if one is None:
            return
        word = words.STEP
        if self._scaler is one:
            word = words.SCALED_STEP
        else:
            self._look(one)
        one.inside = one.stepped = True
        one.steps = known.steps
        self._close(one, word, known.steps)

    def stepped(self, optimizer: Any, _known: optimizers.Optimizer) -> None:
        """Called after an optimizer step."""
        one = self._of(optimizer)
        if one is None:
            return
        one.inside, was = False, one.seen
        one.settle()
        if one.is_gone(was):  # the step itself has cleared them
            self._clear(one)
        one.filled = any(state is not None for state in one.seen)

    def histories(self) -> list[tuple[Any, int, list[str]]]:
        """Each optimizer, its number and its words since its last step."""
        return [(one.optimizer(), one.number, one.words) for one in self._followed]

    def flush(self) -> None:
        """Called at the end: record the words that are kept back."""
        for one in self._followed:
            self._finish(one)
            self._tell(one)

    # --- what is seen ---

    def _all(self) -> list[Followed]:
        known = optimizers.made()
        if known != self._known:
            self._known = known
            every = optimizers.every()
            if len(every) > _MOST_OPTIMIZERS:
                every = []
            numbers = {one.number for one in every}
            for one in self._followed:
                if one.number not in numbers:  # it is gone
                    self._finish(one)
                    self._tell(one)
            old = {one.number: one for one in self._followed}
            self._followed = [
                old.get(one.number) or Followed(one, one.number) for one in every
            ]
            for one in self._followed:
                one.choose()
        return self._followed

    def _of(self, optimizer: Any) -> Followed | None:
        for one in self._followed:
            if one.optimizer() is optimizer:
                return one
        return None

    def _look(self, one: Followed, between: bool = False) -> None:
        """See what nobody told of.

        Args:
            one: Whose gradients.
            between: A forward pass may have been made, with collectives of its own.
        """
        exchanged = False
        if one.pending:
            moved = EXCHANGES.moved - EXCHANGES.reduced
            if not between and 2 * (moved - one.moved) >= one.elements > 0:
                self._say(one, words.EXCHANGE)
                exchanged = True
            one.moved = moved
        was = one.seen
        if not one.settle_change():
            return
        if one.is_gone(was) or (one.filled and one.is_zero(anew=True)):
            if one.filled:
                self._clear(one)
        elif one.is_divided(was, self.losses.scale if one.scales else 1.0, exchanged):
            self._say(one, words.DIVIDED)
        else:
            self._say(one, words.CHANGED)
            one.filled = any(state is not None for state in one.seen)

    def _clear(self, one: Followed, called: bool = False) -> None:
        """Gradients are gone."""
        if one.pending and one.is_taken():
            self._say(one, words.TAKEN)
            one.use()
        self._say(one, words.DROP if one.pending else words.CLEAR, called)
        one.clear()

    def _say(self, one: Followed, word: str, called: bool = False) -> None:
        """Add a word; ask for the line that was called, if it is a new one here."""
        at = len(one.words)
        if at >= MOST_WORDS:
            return
        one.words.append(word)
        if not called or one.held_words[at : at + 1] == [word]:
            return
        key = word, min(at, _MOST_POSITIONS)
        if key in one.known or self._acts >= _MOST_ACTS:
            return
        one.known.add(key)
        site = call_site(3)
        if site and (word, site) not in one.acts:
            one.acts.add((word, site))
            self._acts += 1
            RECORDER.observe(Act(optimizer=one.number, word=word), site)

    # --- cycles ---

    def _close(self, one: Followed, word: str, steps: int) -> None:
        """A cycle ends; whether its passes serve others is known a while later."""
        self._finish(one)
        one.words.append(word)
        site = one.held_site
        if one.words != one.held_words or not site:
            site = call_site(3)
        one.close(steps, site)

    def _finish(self, one: Followed) -> None:
        """Compare a cycle with the one before."""
        if one.closing is None:
            return
        (history, batches, loaders, steps, site), one.closing = one.closing, None
        one.mark_spare(history)
        if history == one.held_words and batches == one.held_batches:
            one.more += 1
            return
        self._tell(one)
        one.held_words, one.held_batches, one.more = history, batches, 0
        one.held_loaders = loaders
        one.held_step, one.held_site = steps, site

    def _tell(self, one: Followed) -> None:
        if not one.held_words or self._reported >= _MOST_TOLD:
            return
        self._reported += 1
        RECORDER.observe(
            Cycle(
                optimizer=one.number,
                step=one.held_step,
                words=packed(one.held_words),
                more=one.more,
                elements=one.elements,
                size_bytes=one.size_bytes,
                batches=one.held_batches,
                loaders=one.held_loaders,
                others=one.others,
                turns=one.turns,
                static=one.static,
            ),
            one.held_site,
        )
        one.held_words = []


def _labelled(args: tuple[Any, ...]) -> Labelled:
    """What backward is about to run on."""
    roots = [one for one in args[0] if isinstance(one, Tensor)] if args else []
    terms = loss_terms.terms_of(roots[0], waits=False) if len(roots) == 1 else ()
    return Labelled(latest(), loss_terms.main_of(terms), (), stack())


PROTOCOL = Protocol()


def install() -> None:
    """Install the probe; called at the first `init_process_group`."""
    backward_hooks.watch(begin=harmless(PROTOCOL.begin), end=harmless(PROTOCOL.end))
    for listeners, function in (
        (CALL_HOOKS.clearing, PROTOCOL.clearing),
        (CALL_HOOKS.cleared, PROTOCOL.cleared),
        (CALL_HOOKS.scaled, PROTOCOL.losses.scaled),
        (CALL_HOOKS.unscaling, PROTOCOL.unscaling),
        (CALL_HOOKS.unscaled, PROTOCOL.unscaled),
        (CALL_HOOKS.trying, PROTOCOL.trying),
        (CALL_HOOKS.tried, PROTOCOL.tried),
        (CALL_HOOKS.updated, PROTOCOL.updated),
        (CALL_HOOKS.unsynced, PROTOCOL.unsynced),
        (CALL_HOOKS.scheduled, PROTOCOL.scheduled),
    ):
        call_hooks.tell(listeners, function)
    clip_hooks.watch(PROTOCOL.clipping, PROTOCOL.clipped)


PROBE = Probe(install=install, flush=PROTOCOL.flush, reset=PROTOCOL.reset)
