"""Parts of one model that ranks leave out of an average by hand.

Other parts may be each rank's own, as heads of clients are. Those begin apart.
"""

from __future__ import annotations

from collections.abc import Iterable

from distdoctor.analysis.gradients.used_gradients import UnequalGradients, is_drawn
from distdoctor.model.run import Run


def left_out(run: Run, one: UnequalGradients) -> tuple[int, ...]:
    """Positions of what ranks began alike, beside what they drew apart, and let drift.

    Who draws some parameters apart has those for its own, and the rest to be the same.
    What lies nearer to such parameters than to those that are averaged is left aside,
    and so is what began with a constant: that is alike without anybody's doing. Where
    nothing was drawn apart, nothing tells what the ranks meant: there are none.

    Args:
        run: The run that is judged.
        one: Parameters whose gradients differ between ranks.

    Returns:
        Positions in the chapter's names, ascending.
    """
    names, first = one.chapter.names, one.chapter.looks[0]
    if one.linked or first.step != 1:
        return ()
    if len({hold.settings for hold in one.chapter.holds}) > 1:
        return ()
    sent = [set(seen.positions) for look in one.looks for seen in look.sent if seen]
    averaged = [n for n in one.shared if all(n in each for each in sent)]
    weights = first.weights()
    drawn = {
        n
        for n in one.others
        if all(is_drawn(run, rank, names[n]) for rank in one.chapter.ranks)
    }
    apart = [n for n in one.others if n not in one.drifted]
    own = [n for n in apart if len(set(weights[:, n].tolist())) == len(weights)]
    if not sent or not averaged or not drawn.intersection(own):
        return ()
    found = []
    for n in sorted(one.drifted.intersection(one.others)):
        to_averaged = _nearest(names[n], (names[m] for m in averaged))
        to_own = _nearest(names[n], (names[m] for m in apart))
        of_one_layer = to_averaged == names[n].count(".")
        if any(n in each for each in sent) or to_own > to_averaged:
            continue
        if n in drawn or (of_one_layer and to_averaged > to_own):
            found.append(n)
    return tuple(found)


def _nearest(name: str, others: Iterable[str]) -> int:
    """How many modules a parameter has in common with the nearest of others."""
    return max(_common(name, other) for other in others)


def _common(name: str, other: str) -> int:
    count = 0
    for a, b in zip(name.split(".")[:-1], other.split(".")[:-1], strict=False):
        if a != b:
            break
        count += 1
    return count
