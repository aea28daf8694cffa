"""What may follow what, of all that happens to the gradients of an optimizer.

`TABLE` is the one place that says so. It is walked through for each optimizer of each
rank, from cycle to cycle; see `model.observations.optimizer_step` for the words.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum, auto

from distdoctor.model.observations.optimizer_step import (
    BACKWARD,
    CHANGED,
    CLEAR,
    CLIP,
    DIVIDED,
    DROP,
    ENDS,
    EXCHANGE,
    SCALED,
    SCALED_STEP,
    SCHEDULE,
    SKIP,
    SPARE,
    STEP,
    TAKEN,
    UNSCALE,
    UPDATE,
)


class GradientState(StrEnum):
    """What gradients an optimizer has."""

    EMPTY = auto()  # none, or zero
    PLAIN = auto()  # of a loss
    SCALED = auto()  # of a loss that a scaler has multiplied
    UNSCALED = auto()  # likewise; its scaler has divided them
    DIVIDED = auto()  # likewise; the user has divided them
    CLIPPED = auto()  # scaled, and clipped so
    GIVEN = auto()  # the user has put some there; nobody knows whether they are scaled
    SPENT = auto()  # a step was made with them, and they are still there
    KEPT = auto()  # likewise, and something made others of them since
    TRIED = auto()  # likewise, by a scaler whose update is still to come
    TRIED_EMPTY = auto()  # they were cleared before it


class ProtocolFault(StrEnum):
    """What must not follow what."""

    DROPPED = auto()  # cleared, and no step was made with them
    CARRIED = auto()  # backward adds to those that a step was made with
    MIXED = auto()  # backward adds unscaled ones to scaled ones, or the reverse
    ADDED_UNSCALED = auto()  # backward adds scaled ones to those unscaled already
    CLIPPED_SCALED = auto()  # clipped while they are still scaled
    NEVER_SCALED = auto()  # a scaler divides what it has not multiplied
    UNSCALED_TWICE = auto()  # divided by the scale twice
    BY_PASSED = auto()  # a step of the optimizer itself with scaled gradients
    UNCHECKED = auto()  # likewise, with unscaled ones: Inf is not looked for
    NO_UPDATE = auto()  # backward again, and the scaler's update never came


Target = GradientState | tuple[ProtocolFault, GradientState]

_S, _F = GradientState, ProtocolFault

TABLE: dict[GradientState, dict[str, Target]] = {
    _S.EMPTY: {
        BACKWARD: _S.PLAIN,
        SCALED: _S.SCALED,
        CHANGED: _S.GIVEN,
        STEP: _S.EMPTY,
        SCALED_STEP: _S.TRIED_EMPTY,
    },
    _S.PLAIN: {
        BACKWARD: _S.PLAIN,
        SCALED: (_F.MIXED, _S.SCALED),
        DROP: (_F.DROPPED, _S.EMPTY),
        TAKEN: _S.SPENT,
        UNSCALE: (_F.NEVER_SCALED, _S.UNSCALED),
        STEP: _S.SPENT,
        SCALED_STEP: (_F.NEVER_SCALED, _S.TRIED),
    },
    _S.SCALED: {
        BACKWARD: (_F.MIXED, _S.SCALED),
        DROP: (_F.DROPPED, _S.EMPTY),
        TAKEN: _S.SPENT,
        DIVIDED: _S.DIVIDED,
        UNSCALE: _S.UNSCALED,
        CLIP: (_F.CLIPPED_SCALED, _S.CLIPPED),
        STEP: (_F.BY_PASSED, _S.SPENT),
        SCALED_STEP: _S.TRIED,
    },
    _S.CLIPPED: {
        BACKWARD: (_F.MIXED, _S.SCALED),
        SCALED: _S.SCALED,
        DROP: (_F.DROPPED, _S.EMPTY),
        DIVIDED: _S.DIVIDED,
        UNSCALE: _S.UNSCALED,
        STEP: (_F.BY_PASSED, _S.SPENT),
        SCALED_STEP: _S.TRIED,
    },
    _S.UNSCALED: {
        SCALED: (_F.ADDED_UNSCALED, _S.SCALED),
        DROP: _S.EMPTY,  # by one who has looked whether they are finite
        TAKEN: _S.SPENT,
        DIVIDED: (_F.UNSCALED_TWICE, _S.DIVIDED),
        UNSCALE: (_F.UNSCALED_TWICE, _S.UNSCALED),
        UPDATE: _S.DIVIDED,  # by which the scaler forgets that it has done so
        STEP: (_F.UNCHECKED, _S.SPENT),
        SCALED_STEP: _S.TRIED,
    },
    _S.DIVIDED: {
        BACKWARD: _S.PLAIN,
        SCALED: (_F.ADDED_UNSCALED, _S.SCALED),
        DROP: _S.EMPTY,
        TAKEN: _S.SPENT,
        UNSCALE: (_F.UNSCALED_TWICE, _S.UNSCALED),
        UPDATE: _S.PLAIN,
        STEP: _S.SPENT,
        SCALED_STEP: (_F.UNSCALED_TWICE, _S.TRIED),
    },
    _S.GIVEN: {
        DROP: (_F.DROPPED, _S.EMPTY),
        TAKEN: _S.SPENT,
        UNSCALE: _S.UNSCALED,
        STEP: _S.SPENT,
        SCALED_STEP: _S.TRIED,
    },
    _S.SPENT: {
        BACKWARD: (_F.CARRIED, _S.PLAIN),
        SCALED: (_F.CARRIED, _S.SCALED),
        CLEAR: _S.EMPTY,
        DROP: _S.EMPTY,
        CHANGED: _S.KEPT,
        DIVIDED: _S.KEPT,
        EXCHANGE: _S.KEPT,
        SCALED_STEP: _S.TRIED,
    },
    _S.KEPT: {
        BACKWARD: _S.PLAIN,
        SCALED: _S.SCALED,
        CLEAR: _S.EMPTY,
        DROP: _S.EMPTY,
        STEP: _S.SPENT,
        SCALED_STEP: _S.TRIED,
    },
    _S.TRIED: {
        BACKWARD: (_F.CARRIED, _S.PLAIN),
        SCALED: (_F.NO_UPDATE, _S.SCALED),
        CLEAR: _S.TRIED_EMPTY,
        DROP: _S.TRIED_EMPTY,
        UPDATE: _S.SPENT,
        UNSCALE: (_F.NO_UPDATE, _S.UNSCALED),
        STEP: _S.SPENT,
        SCALED_STEP: (_F.NO_UPDATE, _S.TRIED),
    },
    _S.TRIED_EMPTY: {
        BACKWARD: _S.PLAIN,
        SCALED: (_F.NO_UPDATE, _S.SCALED),
        UPDATE: _S.EMPTY,
        STEP: _S.EMPTY,
        SCALED_STEP: _S.TRIED_EMPTY,
    },
}
"""Where a word leads from a state; what is not there leads nowhere else."""

_NEVER = frozenset({SPARE, SCHEDULE})
"""Words that change nothing in any state."""

_LIKE = {SKIP: SCALED_STEP}
"""Words that lead where another one does: a step left out is one that was tried."""


def follow(
    state: GradientState, word: str
) -> tuple[GradientState, ProtocolFault | None]:
    """Where a word leads, and whether it must not come there.

    Args:
        state: What gradients the optimizer has.
        word: What happens to them.

    Returns:
        The state after it, and the fault; None if there is none.
    """
    word = word.partition("/")[0]
    if word in _NEVER:
        return state, None
    target = TABLE[state].get(_LIKE.get(word, word), state)
    if isinstance(target, GradientState):
        return target, None
    return target[1], target[0]


_OF_SUMS = frozenset(
    {ProtocolFault.CARRIED, ProtocolFault.MIXED, ProtocolFault.ADDED_UNSCALED}
)
"""What is wrong with a sum of gradients, and with nothing else."""

_EMPTYING = frozenset({CLEAR, DROP})


def walk(
    state: GradientState, words: Sequence[str]
) -> tuple[GradientState, list[ProtocolFault]]:
    """Where words lead, and the faults that come on the way.

    A sum that is cleared before anything is made of it does no harm: backward may have
    run for the sake of an input's gradient, or of a measure.

    Args:
        state: What gradients the optimizer has.
        words: What happens to them, in order.

    Returns:
        The state at the end, and the faults in order.
    """
    faults: list[ProtocolFault] = []
    used = 0  # of the faults, those that a step was made with
    for word in words:
        if word in _EMPTYING:
            faults[used:] = [one for one in faults[used:] if one not in _OF_SUMS]
        state, fault = follow(state, word)
        if fault is not None:
            faults.append(fault)
        if word in ENDS:
            used = len(faults)
    return state, faults
