"""Who waits for whom as a small tree, from those that hold the others up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from distdoctor.watching.snapshot import RankDoing, Snapshot, WatchedRank, WatchedWait
from distdoctor.watching.snapshot_words import (
    at,
    called,
    doing_words,
    proof_words,
    seconds,
    some,
)

_DEEPEST = 6

_IN_WORDS = {
    RankDoing.OWN_CODE: "in its own code",
    RankDoing.LEFT: "has left its process group",
    RankDoing.UNHEARD: "nothing has been heard of it",
}


def wait_lines(snapshot: Snapshot, most: int = 12) -> list[str]:
    """The waits of a look, in lines.

    Args:
        snapshot: The look.
        most: Lines, at the most.

    Returns:
        First what is proved; then each set of ranks that others wait for, with those
        below it. Where all wait, in a circle, it begins with the longest wait.
    """
    lines = [] if snapshot.proof is None else [proof_words(snapshot.proof)]
    lines += _tree(snapshot)
    if len(lines) <= most:
        return lines
    left = len(lines) - most + 1
    return [*lines[: most - 1], f"… and {left} lines more"]


def _tree(snapshot: Snapshot) -> Iterator[str]:
    waits = snapshot.waits
    ranks = {one.rank: one for one in snapshot.ranks}
    waiting = {rank for wait in waits for rank in wait.ranks if wait.on}
    told: set[int] = set()
    roots: dict[tuple[int, ...], None] = {}
    for wait in waits:
        free = tuple(rank for rank in wait.on if rank not in waiting)
        if free:
            roots[free] = None
    for root in roots:
        yield from _root(root, ranks)
        yield from _below(set(root), waits, told, "", 1)
    for number, wait in enumerate(waits):
        if number in told:
            continue
        told.add(number)
        if not wait.on:
            why = _unlike(wait) or "; for whom is not known"
            yield f"{_waiters(wait)}{why}"
            continue
        of = "one of " if wait.any_of else ""
        yield f"{_waiters(wait)}, for {of}{some(wait.on)}"
        yield from _below(set(wait.ranks), waits, told, "", 1)


def _root(ranks: Sequence[int], known: Mapping[int, WatchedRank]) -> Iterator[str]:
    """Ranks that others wait for, and that wait for nobody themselves."""
    alike: dict[str, list[int]] = {}
    for rank in ranks:
        alike.setdefault(_does(known.get(rank)), []).append(rank)
    for words, some_ranks in alike.items():
        yield f"{some(some_ranks)}: {words}"


def _does(one: WatchedRank | None) -> str:
    if one is None:
        return "nothing is known"
    words = _IN_WORDS.get(one.doing, doing_words(one))
    if one.since_s is not None:
        words += f" for {seconds(one.since_s)}"
    if one.call is not None:
        where = f", {at(one.call)}" if at(one.call) else ""
        words += f"; its last call: {called(one.call)}{where}"
    return words


def _below(
    held: set[int],
    waits: Sequence[WatchedWait],
    told: set[int],
    margin: str,
    depth: int,
) -> Iterator[str]:
    """The waits for some ranks, each once, and those behind them."""
    mine = [
        number
        for number, wait in enumerate(waits)
        if number not in told and not held.isdisjoint(wait.on)
    ]
    told.update(mine)
    for n, number in enumerate(mine):
        wait = waits[number]
        last = n == len(mine) - 1
        others = "" if held >= set(wait.on) else f" (for {some(wait.on)})"
        one_of = " (one of these is enough)" if wait.any_of else ""
        yield f"{margin}{'└─' if last else '├─'} {_waiters(wait)}{others}{one_of}"
        if depth < _DEEPEST:
            inner = margin + ("   " if last else "│  ")
            yield from _below(set(wait.ranks), waits, told, inner, depth + 1)


def _unlike(wait: WatchedWait) -> str:
    """Who stands in another call of that number, which this one cannot meet."""
    if not wait.unlike:
        return ""
    made = "has made" if len(wait.unlike) == 1 else "have made"
    return f"; {some(wait.unlike)} {made} another call {wait.call.ordinal} there"


def _waiters(wait: WatchedWait) -> str:
    verb = "waits" if len(wait.ranks) == 1 else "wait"
    where = f", {at(wait.call)}" if at(wait.call) else ""
    since = f", {seconds(wait.since_s)} now" if wait.since_s is not None else ""
    return f"{some(wait.ranks)} {verb} in {called(wait.call)}{where}{since}"
