"""What was seen of the ranks of a living job, in words for the report."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from distdoctor.model.outside_view import ProcessView
from distdoctor.model.run import named
from distdoctor.postmortem.living.dump_taking import REFUSED, cure
from distdoctor.postmortem.living.job_finding import LivingJob
from distdoctor.postmortem.living.process_facts import peers_of
from distdoctor.postmortem.living.rank_conditions import RankCondition, RankState
from distdoctor.postmortem.living.watched_process import WatchedProcess

_MOST_HELPERS = 16
_LONGEST_COMMAND = 60


def process_view(
    rank: int, job: LivingJob, watched: WatchedProcess, condition: RankCondition
) -> ProcessView:
    """What was seen of the process of a rank.

    Args:
        rank: The rank.
        job: Its job.
        watched: The looks at it.
        condition: How it is.
    """
    facts = watched.facts
    helpers = job.helpers.get(watched.pid, [])
    words = [
        f"{one.pid} {' '.join(one.command)[:_LONGEST_COMMAND]}".strip()
        for one in helpers[:_MOST_HELPERS]
    ]
    if len(helpers) > _MOST_HELPERS:
        words.append(f"and {len(helpers) - _MOST_HELPERS} more")
    refusal = next(iter(watched.refusals), "")
    return ProcessView(
        rank=rank,
        pid=watched.pid,
        condition=str(condition.condition),
        doing=condition.doing,
        kernel=" in ".join(part for part in (facts.call, facts.wchan) if part),
        cpu=round(watched.cpu, 2),
        memory_bytes=facts.memory_bytes,
        peers=peers_of(watched.pid),
        helpers=tuple(words),
        remark=refusal if condition.condition is RankState.UNSEEN else "",
    )


def looks_at(watched: Mapping[int, WatchedProcess]) -> int:
    """How many looks there were.

    Args:
        watched: By rank, the looks at it.
    """
    return max((len(one.looks) for one in watched.values()), default=0)


def remarks(
    job: LivingJob,
    watched: Mapping[int, WatchedProcess],
    conditions: Mapping[int, RankCondition],
    seconds: float,
) -> Iterator[str]:
    """Sentences for the report on what was seen.

    Args:
        job: Its ranks.
        watched: By rank, the looks at it.
        conditions: By rank, how it is.
        seconds: For how long the job was looked at.
    """
    for record in {one.record for one in job.identities.values() if one.record}:
        yield f"its calls are being recorded: distdoctor autopsy {shlex.quote(record)}"
    by_words: dict[str, list[int]] = {}
    for rank, one in sorted(conditions.items()):
        by_words.setdefault(_sentence(one, watched[rank].cpu), []).append(rank)
    for words, ranks in sorted(by_words.items(), key=lambda item: -len(item[1])):
        yield f"{named(ranks)}: {words}"
    refused = [
        rank
        for rank, one in watched.items()
        if REFUSED in one.refusals and not one.asked_server
    ]
    if refused:
        yield f"the stacks of {named(refused)} may not be read; {cure()}"
    if asked := sorted(rank for rank, one in watched.items() if one.asked_server):
        yield (
            f"the worker server{'s' * (len(asked) > 1)} of {named(asked)} told the "
            "stacks: threads beside the main one, and variables, are not known"
        )
    helpers = sum(len(one) for one in job.helpers.values())
    if helpers:
        yield (
            f"ranks have started {helpers} more process{'es' * (helpers != 1)}, such "
            "as workers of DataLoaders; their stacks were not taken"
        )
    yield f"all ranks were looked at {looks_at(watched)} times in {seconds:.0f} s"


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
