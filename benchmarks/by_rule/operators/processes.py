"""Faults of processes: they end, or stand still."""

from __future__ import annotations

from by_rule.bases import Base, appended
from by_rule.faulted import Making, fault, operator
from by_rule.operators.calls import only, some_rank
from by_rule.operators.course import training_loops


def _at_ends(
    name: str, base: Base, line: str, codes: str, *, around: bool = False
) -> Making:
    stands = set(base.statements())
    for loop in training_loops(base):
        last = loop.body[-1]
        if last in stands and base.runs(last):
            rank = some_rank(base, last)
            edited = appended(base, last, [only(base, rank), f"    {line}"])
            # A process that is killed tells of its last call, and not of its last line.
            lines = range(loop.lineno, edited.last) if around else ()
            yield fault(name, base, edited, codes, [{rank}], lines=lines)


@operator
def rank_sleeps(base: Base) -> Making:
    """Rank k stands still in its own code."""
    yield from _at_ends(
        "rank_sleeps", base, '__import__("time").sleep(100_000)', "DD204"
    )


@operator
def rank_exits(base: Base) -> Making:
    """Rank k ends its process without a word."""
    yield from _at_ends("rank_exits", base, '__import__("os")._exit(1)', "DD202")


@operator
def rank_is_killed(base: Base) -> Making:
    """Rank k is killed."""
    yield from _at_ends(
        "rank_is_killed",
        base,
        '__import__("os").kill(__import__("os").getpid(), 9)',
        "DD202",
        around=True,
    )
