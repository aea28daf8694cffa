"""Where ranks stand that cannot go on by themselves, and since when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from distdoctor.model.events import BLOCKED, Call
from distdoctor.model.run import Run

_NEVER_NS = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Standing:
    """Ranks that stand at the same call since the same tenth of a second.

    Attributes:
        ranks: Which, ascending.
        call: The call, as the first of them made it.
        since_s: When the first of them began to stand there, in seconds after the
            first call of the run.
    """

    ranks: tuple[int, ...]
    call: Call
    since_s: float


def standing(run: Run, ranks: Iterable[int]) -> list[Standing]:
    """Who of these ranks stands where, in the order in which they came to stand.

    A rank with several threads stands at the call that one of them has been in for
    the longest. Ranks whose calls bear no times are left out.

    Args:
        run: The run that is judged.
        ranks: Global ranks.

    Returns:
        One for each rank that stands; empty if the run has no times.
    """
    calls = run.calls
    firsts = [mine.start for rank in run.seen if (mine := run.rows_of(rank))]
    begun = int(calls["enter_ns"][firsts].min(initial=_NEVER_NS))
    if not begun:
        return []
    rows = run.with_state(*BLOCKED)
    rows = rows[np.isin(calls["rank"][rows], np.fromiter(ranks, dtype=np.int64))]
    since = np.maximum(calls["wait_ns"][rows], calls["enter_ns"][rows])
    since_s = (since - begun) / 1e9
    order = np.lexsort((since_s, calls["rank"][rows]))
    order = order[np.unique(calls["rank"][rows[order]], return_index=True)[1]]
    alike: dict[tuple[object, ...], list[int]] = {}
    for at in order.tolist():
        call = calls[["group", "signature", "site"]][rows[at]].tolist()
        alike.setdefault((call, int(since_s[at] * 10)), []).append(at)
    found = [
        Standing(
            ranks=tuple(calls["rank"][rows[same]].tolist()),
            call=run.call(int(rows[same[0]])),
            since_s=round(float(since_s[same].min()), 3),
        )
        for same in alike.values()
    ]
    return sorted(found, key=lambda one: (one.since_s, one.ranks))
