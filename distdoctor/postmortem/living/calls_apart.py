"""Ranks that wait in different collectives: of one group, as far as stacks tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from distdoctor.model.operations import CODE_OF, OPERATIONS
from distdoctor.model.run import named
from distdoctor.postmortem.living.rank_conditions import RankCondition, RankState
from distdoctor.postmortem.living.seen_job import SeenJob


def operations(conditions: Mapping[int, RankCondition]) -> dict[str, list[int]]:
    """The collectives that ranks wait in, and who in which; none if any does not.

    Args:
        conditions: By rank, how it is.
    """
    found: dict[str, list[int]] = {}
    for rank, one in sorted(conditions.items()):
        call = one.call
        if one.condition is not RankState.WAITING or call is None:
            return {}
        known = OPERATIONS[CODE_OF[call.op]] if call.op in CODE_OF else None
        if known is None or known.is_point_to_point or known.sets_up:
            return {}
        found.setdefault(call.op, []).append(rank)
    return found


def are_apart(job: SeenJob) -> bool:
    """Whether all ranks wait in the default group, and not all in one operation.

    No other thread of theirs may be in a call: that could be the one that all need. And
    the environment must tell how many ranks there are: one elsewhere may be late.

    Args:
        job: What was seen.
    """
    everyone, conditions = set(range(job.world_size)), job.conditions
    if set(conditions) != everyone or set(job.identities) != everyone:
        return False
    if len(operations(conditions)) < 2:
        return False
    for rank, one in conditions.items():
        view = job.views[rank]
        if one.call is None or not one.call.is_of_default or not view.is_last_known:
            return False
        if view.asked_server or view.has_other_calls:
            return False
    return True


def apart_in_words(job: SeenJob) -> Iterator[str]:
    """That ranks wait in different collectives, where nothing tells of which group.

    Args:
        job: What was seen.

    Yields:
        At most one sentence.
    """
    conditions = job.conditions
    each = operations(conditions)
    if len(each) < 2 or are_apart(job):
        return
    places = {
        (op, str(conditions[rank].place or "")): None
        for op, ranks in each.items()
        for rank in ranks
    }
    told = "; ".join(
        f"{named(ranks)} in {op}{' at ' if at else ''}{at}"
        for op, at in places
        if (ranks := [n for n in each[op] if str(conditions[n].place or "") == at])
    )
    yield (
        f"ranks wait in different collectives: {told}; if these are of one group, they "
        "will never meet (DD101, DD108); stacks do not tell the groups: the flight "
        "recorder does (TORCH_FR_BUFFER_SIZE, and a worker server or its dump)"
    )
