"""Who would have set a key of the store: the rank that set those before it.

Keys that are told one after the other differ in a number: `round/1`, `round/2`. Where
one rank set all of them so far, and nobody the next one, that rank left it out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from distdoctor.analysis.causes import pointers
from distdoctor.analysis.deadlock.wait_for_graph import gone
from distdoctor.analysis.divergence.parting_branches import program_of, undecided
from distdoctor.analysis.source.program import called, calls_in
from distdoctor.analysis.source.rank_variation import Nature, nature
from distdoctor.model.events import Call
from distdoctor.model.findings import Location
from distdoctor.model.operations import CODE_OF
from distdoctor.model.run import Run

_NUMBER = re.compile(r"\d+")

_WAIT, _SET = CODE_OF["store_wait"], CODE_OF["store_set"]

_FEW_KEYS = 2  # how much lies between two is not known of fewer

_FEW_RANKS = 2  # whoever is not the one is the other

_MOST_LINES = 2


def setter_of(run: Run, rows: Sequence[int]) -> tuple[int | None, list[Call]]:
    """The rank that set the keys which waiting ranks had got before.

    Args:
        run: The run.
        rows: Of the calls that wait in vain.

    Returns:
        The rank, and the calls by which it set them; None where the keys before do
        not tell. A waiting rank is none that should have set what it waits for.
    """
    kinds = {kind for row in rows for kind in map(_kind, run.call(row).names)}
    found = list(_setting(run, kinds))
    sets = [run.call(row) for row in found]
    setters = {call.rank for call in sets}
    waiting = {int(run.calls["rank"][row]) for row in rows}
    if len(setters) != 1 or setters & waiting or run.unseen:
        return None, []
    few = run.world_size == _FEW_RANKS
    common = not few and not any(_is_by_rank(run, one) for one in sets)
    if not all(
        _follows(run, row, sets, 1 if few or common else 2, counting=not few and common)
        for row in rows
    ):
        return None, []
    (setter,) = setters
    later = all(_has_set_later(run, row, sets) for row in rows)
    passed = later or _is_passed(run, setter, found)
    return (setter, sets) if passed else (None, [])


def lines_of_setting(run: Run, sets: Sequence[Call]) -> tuple[Location, ...]:
    """The lines that set keys, and the innermost conditions on the way to them.

    Args:
        run: The run that is judged.
        sets: Calls that set keys.

    Returns:
        A few locations.
    """
    found: tuple[Location, ...] = ()
    for call in list({call.place: call for call in sets if call.place}.values())[
        :_MOST_LINES
    ]:
        assert call.place is not None
        who = (call.rank,)
        found += pointers([call.place], who, "set the keys before")
        for condition in undecided(run, call)[-1:]:
            found += pointers([condition.place], who, str(condition))
    return found


def _is_by_rank(run: Run, call: Call) -> bool:
    """Whether the key that a line sets may be another on each rank, or is not known."""
    program = program_of(run)
    place = call.place
    function = None if place is None else program.at(place.file, place.line)
    if place is None or function is None:
        return True
    keys = [
        each.args[0]
        for each in calls_in(function)
        if each.lineno <= place.line <= (each.end_lineno or 0)
        and called(each) in _SETTERS
        and each.args
    ]
    return not keys or any(
        nature(program, key, function) is Nature.LOCAL for key in keys
    )


_SETTERS = frozenset({"set", "add", "compare_set", "append", "multi_set"})


def _follows(
    run: Run, row: int, sets: Sequence[Call], least: int, *, counting: bool
) -> bool:
    """Whether a key is the next of a row that its rank got from there so far.

    The number that is new in it must have been another one in each key before it: the
    ranks' own keys, `ready/0` and `ready/1`, are set by one rank each, and one that was
    set tells nothing of the others.

    Args:
        run: Holds the calls.
        row: Of the call that waits for the key.
        sets: Those that set the keys before it.
        least: Other values that the number must have had.
        counting: The last of them must be less by one.
    """
    calls = run.calls
    site, rank = calls["site"][row], int(calls["rank"][row])
    got = {
        name
        for other in run.rows_of(rank)
        if other < row and calls["op"][other] == _WAIT and calls["site"][other] == site
        for name in run.call(other).names
    }
    known = {name for call in sets for name in call.names}
    for name in run.call(row).names:
        before = [_numbers(one) for one in got & known if _kind(one) == _kind(name)]
        new = [
            {numbers[n] for numbers in before}
            for n, number in enumerate(_numbers(name))
            if all(numbers[n] != number for numbers in before)
        ]
        if not before or not new or any(len(values) < least for values in new):
            return False
        if counting and not any(
            int(number) - 1 in map(int, values)
            for number in _numbers(name)
            for values in new
        ):
            return False
    return True


def _has_set_later(run: Run, row: int, sets: Sequence[Call]) -> bool:
    """Whether a key was set that comes behind the one for which a rank waits."""
    known = {name for call in sets for name in call.names}
    for name in run.call(row).names:
        mine = [int(number) for number in _numbers(name)]
        theirs = [
            [int(number) for number in _numbers(other)]
            for other in known
            if _kind(other) == _kind(name)
        ]
        differ = [
            [(a, b) for a, b in zip(mine, other, strict=True) if a != b]
            for other in theirs
        ]
        if not any(len(pairs) == 1 and pairs[0][0] < pairs[0][1] for pairs in differ):
            return False
    return True


def _is_passed(run: Run, rank: int, rows: Sequence[int]) -> bool:
    """Whether a rank has come by where it would have set the next key.

    It has where it made more collectives since than from one key to the next before.
    Otherwise it may wait there for one whom it would tell the key: of one key alone,
    a branch around the line tells that it can leave one out.
    """
    if rank in gone(run):
        return True
    first: dict[tuple[str, ...], int] = {}
    for row in rows:
        first.setdefault(run.call(row).names, row)
    if len(first) < _FEW_KEYS:
        return any(undecided(run, run.call(row)) for row in rows)
    mine = run.rows_of(rank)
    meets = mine.start + np.flatnonzero(run.calls["ordinal"][mine.start : mine.stop])
    made = np.searchsorted(meets, [*first.values(), mine.stop])
    *between, since = np.diff(made).tolist()
    return bool(since > max(between))


def _setting(run: Run, kinds: set[str]) -> Iterator[int]:
    """The calls that set keys of some kinds."""
    wanted = {
        n
        for n, spec in enumerate(run.specs)
        if any(_kind(name) in kinds for name in spec.names)
    }
    for row in run.with_op(_SET).tolist():
        if int(run.calls["spec"][row]) in wanted:
            yield int(row)


def _kind(key: str) -> str:
    """A key without its numbers."""
    return _NUMBER.sub("#", key)


def _numbers(key: str) -> list[str]:
    return _NUMBER.findall(key)
