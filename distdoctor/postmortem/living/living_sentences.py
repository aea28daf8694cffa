"""What was seen of the ranks of a living job, in words for the report."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from distdoctor.model.outside_view import ProcessView
from distdoctor.model.run import named
from distdoctor.postmortem.living.dump_taking import cure
from distdoctor.postmortem.living.rank_conditions import RankCondition, RankState
from distdoctor.postmortem.living.rank_views import RankView
from distdoctor.postmortem.living.seen_job import SeenJob


def process_view(rank: int, view: RankView, host: str) -> ProcessView:
    """What was seen of the process of a rank.

    Args:
        rank: The rank.
        view: What was seen of it.
        host: Its machine; empty: this one.
    """
    unseen = view.condition.condition is RankState.UNSEEN
    return ProcessView(
        rank=rank,
        pid=view.pid,
        condition=str(view.condition.condition),
        doing=view.condition.doing,
        kernel=view.kernel,
        cpu=round(view.cpu, 2),
        memory_bytes=view.memory_bytes,
        peers=view.peers,
        helpers=view.helpers,
        remark=view.refusal if unseen else "",
        host=host,
    )


def remarks(job: SeenJob) -> Iterator[str]:
    """Sentences for the report on what was seen.

    Args:
        job: What was seen.
    """
    for record in {one.record for one in job.identities.values() if one.record}:
        yield f"its calls are being recorded: distdoctor autopsy {shlex.quote(record)}"
    by_words: dict[str, list[int]] = {}
    for rank, view in sorted(job.views.items()):
        by_words.setdefault(_sentence(view.condition, view.cpu), []).append(rank)
    for words, ranks in sorted(by_words.items(), key=lambda item: -len(item[1])):
        yield f"{named(ranks)}: {words}"
    refused = [
        rank
        for rank, view in job.views.items()
        if view.is_refused and not view.asked_server
    ]
    if refused:
        yield f"the stacks of {named(refused)} may not be read; {cure()}"
    if asked := sorted(rank for rank, view in job.views.items() if view.asked_server):
        yield (
            f"the worker server{'s' * (len(asked) > 1)} of {named(asked)} told the "
            "stacks: threads beside the main one, and variables, are not known"
        )
    helpers = sum(part.helpers for part in job.parts)
    if helpers:
        yield (
            f"ranks have started {helpers} more process{'es' * (helpers != 1)}, such "
            "as workers of DataLoaders; their stacks were not taken"
        )
    together = ""
    if len(job.parts) > 1:
        together = f", {max(job.seconds, 0.0):.0f} s of them together"
    longest = max(part.seconds for part in job.parts)
    yield f"all ranks were looked at {job.looks} times in {longest:.0f} s{together}"


def _sentence(one: RankCondition, cpu: float) -> str:
    at = f" at {one.place}" if one.place is not None else ""
    match one.condition:
        case RankState.WAITING:
            return f"in the same call of {one.doing}{at} all the time"
        case RankState.CALLING:
            return f"in {one.doing} at the last look{at}; calls may come and go"
        case RankState.STUCK:
            function = one.place.function if one.place is not None else ""
            inside = f" in {function}" if function else ""
            work = f", using {cpu:.0%} of a core" if cpu >= _WORTH_TELLING else ""
            return f"in the same functions all the time{inside}{at}: {one.doing}{work}"
        case RankState.MOVING:
            return f"at work{at}"
        case RankState.UNSEEN:
            return f"no stack was read{f'; {one.doing}' if one.doing else ''}"
    return f"{one.doing}{at}"


_WORTH_TELLING = 0.05
