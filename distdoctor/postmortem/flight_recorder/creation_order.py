"""Whether ranks made their groups in one order, as names and numbers of groups tell.

torch names groups by counting all that the job makes, on every rank, member or not. The
backend counts as well, but only groups of which the rank is a member. So a rank that is
in more groups of smaller names, as others list them, than the number of its own group
says, made some of these later, or never: it took another group for one of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping

from distdoctor.postmortem.flight_recorder.decoding import Dump
from distdoctor.postmortem.flight_recorder.recorder_files import DEFAULT_GROUP

_MOST_DIGITS = 10


def passed_over(
    dumps: Mapping[int, Dump], reported: Mapping[str, Mapping[tuple[int, ...], object]]
) -> dict[str, list[int]]:
    """Groups that a rank had not made when it should have, as their members list them.

    Args:
        dumps: By rank.
        reported: By name of a group, the lists of members that dumps have.

    Returns:
        By name of such a group, the ranks that made another in its place; empty as
        well if so many did that names or numbers are rather not as torch gives them.
    """
    counted = sorted(int(name) for name in reported if _is_count(name))
    if len(counted) < 3:  # the default group and one more: there is no order
        return {}
    names: dict[int, list[int]] = {}
    for number in counted:
        for rank in {rank for ranks in reported[str(number)] for rank in ranks}:
            names.setdefault(rank, []).append(number)
    found: dict[str, list[int]] = {}
    looked_at = 0
    for rank, dump in dumps.items():
        own = {
            int(name): int(n)
            for name, n in dump.numbers.items()
            if _is_count(name) and _is_count(n)
        }
        if len(own.keys() - {int(DEFAULT_GROUP)}) == 0:
            continue
        looked_at += 1
        for name in _missing(dump, own, names.get(rank, [])):
            found.setdefault(name, []).append(rank)
    few = {rank for ranks in found.values() for rank in ranks}
    return found if 2 * len(few) < looked_at else {}


def _missing(dump: Dump, own: Mapping[int, int], names: list[int]) -> Iterator[str]:
    """Groups before one of the rank's, by their names, that it has not made before."""
    for name in sorted(own):
        before = names[: bisect_left(names, name)]
        if len(before) > own[name]:
            yield from (str(one) for one in before if str(one) not in dump.members)
            return


def _is_count(text: str) -> bool:
    """Whether a name is a number as torch writes one: "07" is a name of the user's."""
    is_number = len(text) < _MOST_DIGITS and text.isascii() and text.isdigit()
    return is_number and str(int(text)) == text
