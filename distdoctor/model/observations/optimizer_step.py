"""In which order gradients are made, scaled, clipped, used and cleared.

Words tell what happened to the gradients of one optimizer. Those of backward may end in
`LOCAL` or `BARE`, and several words that come again and again are one, such as
`3:clear.backward`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from distdoctor.model.events import Observation
from distdoctor.model.values import value

BACKWARD = "backward"
"""Backward added to the gradients."""

SCALED = "scaled"
"""Likewise, of a loss that a GradScaler has multiplied."""

SPARE = "spare"
"""Likewise, for the sake of another optimizer, which made a step with it."""

LOCAL, BARE = "/local", "/bare"
"""Ends of these words: the parameters are wrapped in DDP, and it averaged nothing, for
it was told so (`no_sync`), or although it was not."""

CLEAR = "clear"
"""The gradients are gone or zero; nothing is lost, for a step was made with them."""

DROP = "drop"
"""Likewise, and no step was made with them."""

TAKEN = "taken"
"""Something else than a step changed the parameters behind backward."""

CHANGED = "changed"
"""Something else than what has a word changed the gradients."""

DIVIDED = "divided"
"""Likewise; they were divided by the GradScaler's scale."""

EXCHANGE = "exchange"
"""Ranks exchanged at least half as many elements as there are, outside of backward."""

UNSCALE, UPDATE = "unscale", "update"
"""The user called `GradScaler.unscale_`; or `GradScaler.update`."""

CLIP = "clip"
"""One of torch's functions clipped the gradients."""

SCHEDULE = "schedule"
"""A scheduler set the learning rate."""

STEP = "step"
"""A step that nothing scaled; with it ends a cycle."""

SCALED_STEP, SKIP = "scaled_step", "skip"
"""`GradScaler.step` made a step, or left it out; with it ends a cycle."""

ENDS = frozenset({STEP, SCALED_STEP, SKIP})

_DIGITS = 5  # of how often a pattern comes
_LONGEST = 6  # words that are looked for as a pattern


@value(frozen=True, slots=True, kw_only=True)
class Cycle(Observation):
    """What happened to the gradients of an optimizer up to one of its steps.

    It begins behind the step before. Those that are alike and follow each other are
    told once. The place is the line of the step.
    """

    optimizer: int = 0  # as in `Holds`
    step: int = 0  # number of the first step that ended so, from 1; skipped count, too
    words: tuple[str, ...] = ()
    more: int = 0  # cycles that follow and are like it
    elements: int = 0  # of the optimizer's parameters
    size_bytes: int = 0  # of them
    batches: int = 0  # that DataLoaders gave to it; 0: nobody knows
    loaders: int = 1  # passes over loaders that gave them
    others: bool = False  # each backward had labels of its own, in turns of one loop
    turns: bool = False  # all are turns of one loop, on labels that may be its own
    static: bool = False  # DDP was told that the graph is always the same


@value(frozen=True, slots=True, kw_only=True)
class Act(Observation):
    """A line that did what a word tells, to the gradients of an optimizer.

    It is told when it was seen for the first time.
    """

    optimizer: int = 0
    word: str = ""


@value(frozen=True, slots=True, kw_only=True)
class Unsynced(Observation):
    """A line that told DDP not to average: it called `no_sync`."""


@value(frozen=True, slots=True, kw_only=True)
class Piled(Observation):
    """One hook hangs on an object several times, and more often at each look.

    The place is where its function is written.
    """

    optimizer: int = 0  # as in `Holds`
    step: int = 0  # of the optimizer, about to be made
    count: int = 0  # times that it hangs there
    first: int = 0  # times that it did when it was seen first
    name: str = ""  # of the parameter or module
    forward: bool = False  # it runs in the forward pass, not in backward


KINDS = (Cycle, Act, Unsynced, Piled)


def packed(words: Sequence[str]) -> tuple[str, ...]:
    """Words with each pattern that comes several times in a row written once.

    >>> packed(["clear", "backward", "clear", "backward", "step"])
    ('2:clear.backward', 'step')

    Args:
        words: What happened to gradients, in order; none holds a digit before a colon.

    Returns:
        The words, with a pattern that repeats as `times:pattern`, its words joined by
        dots.
    """
    patterns: list[str] = []
    at = 0
    while at < len(words):
        length, times = 1, 1
        for size in range(1, min(_LONGEST, (len(words) - at) // 2) + 1):
            count = _times(words, at, size)
            if count > 1 and size * count > length * times:
                length, times = size, count
        if times == 1:
            patterns.append(words[at])
        else:
            patterns.append(f"{times}:{'.'.join(words[at : at + length])}")
        at += length * times
    return tuple(patterns)


def _times(words: Sequence[str], at: int, size: int) -> int:
    pattern, count = words[at : at + size], 1
    while words[at + count * size : at + (count + 1) * size] == pattern:
        count += 1
    return count


def unpacked(words: Iterable[str]) -> Iterator[str]:
    """The words that `packed` was given.

    Args:
        words: What `packed` returned.

    Yields:
        The words, each as often as it happened, in order.
    """
    for word in words:
        times, colon, pattern = word.partition(":")
        if colon and times.isascii() and times.isdigit():
            often = int(times) if len(times) <= _DIGITS else 0  # else it is damaged
            yield from pattern.split(".") * often
        else:
            yield word
