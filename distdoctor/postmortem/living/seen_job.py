"""A job that runs, as it was seen on one machine or on several at about one time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from distdoctor.postmortem.living.job_finding import LivingJob
from distdoctor.postmortem.living.process_facts import exit_status_of
from distdoctor.postmortem.living.rank_conditions import RankCondition
from distdoctor.postmortem.living.rank_views import RankView, view_of
from distdoctor.postmortem.living.watched_process import WatchedProcess
from distdoctor.postmortem.rank_environment import RankIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPart:
    """What was seen of a job on one machine.

    Attributes:
        world_size: Ranks of the whole job, as far as is known.
        views: By rank, what was seen of it.
        identities: By rank, what its environment says.
        directory: Where the job runs.
        script: What it runs, for readers.
        seconds: For how long it was looked at.
        begun_s: When the first look was over, seconds since 1970 by its clock.
        helpers: How many processes ranks have started.
        dead: Statuses of processes that have ended and were not buried, in their order.
        has_launcher: A launcher lives that has started ranks.
        host: The machine; empty: this one.
    """

    world_size: int
    views: Mapping[int, RankView]
    identities: Mapping[int, RankIdentity] = field(default_factory=dict)
    directory: str = ""
    script: str = ""
    seconds: float = 0.0
    begun_s: float = 0.0
    helpers: int = 0
    dead: Sequence[tuple[int, int]] = ()  # number of the process, status
    has_launcher: bool = False
    host: str = ""

    @property
    def job(self) -> str:
        """What all its parts have in common; empty: nothing tells it."""
        return next((one.job for one in self.identities.values()), "")

    def are_here(self, ranks: Sequence[int]) -> Iterator[int]:
        """Those of some ranks that have, or had, their process on this machine."""
        sizes = {
            (rank - one.local_rank, one.local_size)
            for rank, one in self.identities.items()
            if one.local_rank >= 0 and one.local_size
        }
        for rank in ranks:
            if any(first <= rank < first + size for first, size in sizes):
                yield rank


@dataclass(frozen=True, slots=True)
class SeenJob:
    """A job in all its parts that were seen, of which each rank is in one.

    Attributes:
        parts: The parts.
        views: By rank, what was seen of it.
    """

    parts: Sequence[JobPart]
    views: dict[int, RankView] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for part in self.parts:
            self.views.update(part.views)

    @property
    def world_size(self) -> int:
        """Number of its ranks, as far as is known."""
        return max((part.world_size for part in self.parts), default=0)

    @property
    def identities(self) -> dict[int, RankIdentity]:
        """By rank, what its environment says."""
        return {
            rank: one for part in self.parts for rank, one in part.identities.items()
        }

    @property
    def conditions(self) -> dict[int, RankCondition]:
        """By rank, how it is."""
        return {rank: view.condition for rank, view in self.views.items()}

    @property
    def directory(self) -> str:
        """Where the job runs."""
        return self.parts[0].directory if self.parts else ""

    @property
    def seconds(self) -> float:
        """For how long all its parts were looked at together; below 0: never."""
        if len(self.parts) == 1:
            return self.parts[0].seconds
        ends = [part.begun_s + part.seconds for part in self.parts]
        return min(ends) - max(part.begun_s for part in self.parts)

    @property
    def looks(self) -> int:
        """How many looks there were at the most."""
        return max((view.looks for view in self.views.values()), default=0)

    @property
    def is_whole(self) -> bool:
        """Whether all its ranks were looked for where they are."""
        return self.views.keys() >= set(range(self.world_size))


def part_of(
    job: LivingJob,
    watched: Mapping[int, WatchedProcess],
    conditions: Mapping[int, RankCondition],
    recorded: Mapping[int, bytes],
    *,
    script: str = "",
    begun_s: float = 0.0,
) -> JobPart:
    """What was seen of a job on this machine.

    Args:
        job: Its ranks.
        watched: By rank, the looks at it.
        conditions: By rank, how it is.
        recorded: By rank, the dump of its flight recorder, if nothing was called
            meanwhile.
        script: What it runs.
        begun_s: When the first look was over, seconds since 1970.
    """
    views = {
        rank: view_of(
            one,
            conditions[rank],
            job.helpers.get(one.pid, ()),
            recorded.get(rank, b""),
        )
        for rank, one in watched.items()
    }
    statuses = [(one.pid, exit_status_of(one.pid)) for one in job.zombies]
    return JobPart(
        world_size=job.world_size,
        views=views,
        identities=dict(job.identities),
        directory=job.directory,
        script=script,
        seconds=max((one.seconds for one in watched.values()), default=0.0),
        begun_s=begun_s,
        helpers=sum(len(one) for one in job.helpers.values()),
        dead=[(pid, status) for pid, status in statuses if status is not None],
        has_launcher=any(parent.is_launcher for parent in job.parents),
    )
