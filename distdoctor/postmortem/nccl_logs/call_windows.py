"""Finds where ranks' calls on a communicator part, and cuts out what is around it."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distdoctor.postmortem.nccl_logs.communicator_ranks import Membership
from distdoctor.postmortem.nccl_logs.line_grammar import PAIRWISE

BEFORE = 2
AFTER = 30
"""Calls that are kept around the first that differs."""


@dataclass(frozen=True, slots=True)
class CallWindow:
    """Part of a rank's calls on a communicator.

    Attributes:
        count: All of its calls there.
        start: Ordinal of the first of `calls`, from 1.
        calls: In words.
    """

    count: int
    start: int
    calls: tuple[str, ...]


def windows(
    members: Sequence[Membership], words: Mapping[str, int]
) -> dict[int, CallWindow]:
    """What ranks called around the first call that not all made alike.

    Args:
        members: Of one communicator.
        words: By the words of a call, its number.

    Returns:
        By position in `members`, its window; none at all if all made the same calls.
        Who has no line of a call on any communicator is left out: it was not asked to
        print them.
    """
    texts = {number: text for text, number in words.items()}
    pairs = [n for n, text in texts.items() if text.partition("(")[0] in PAIRWISE]
    streams = {
        n: _without(one.calls, pairs)
        for n, one in enumerate(members)
        if one.process.count
    }
    if len(streams) < 2:
        return {}
    at = _first_difference(list(streams.values()))
    if at is None:
        return {}
    start = max(0, at - BEFORE)
    return {
        n: CallWindow(
            len(calls),
            start + 1,
            tuple(texts[number] for number in calls[start : at + AFTER].tolist()),
        )
        for n, calls in streams.items()
    }


def _without(calls: array[int], pairs: list[int]) -> NDArray[np.uint32]:
    found = np.frombuffer(calls, np.uint32) if len(calls) else np.empty(0, np.uint32)
    return found[~np.isin(found, pairs)] if pairs else found


def _first_difference(streams: list[NDArray[np.uint32]]) -> int | None:
    """The first position where two differ, a torn call being like any; or one ends."""
    longest = max(streams, key=len)
    agreed = longest.copy()
    parted = len(longest)
    for stream in streams:
        both = len(stream)
        mine, theirs = stream, agreed[:both]
        differ = (mine != theirs) & (mine != 0) & (theirs != 0)
        if differ.any():
            parted = min(parted, int(differ.argmax()))
        np.copyto(theirs, mine, where=theirs == 0)
        parted = min(parted, both)
    return parted if parted < len(longest) else None
