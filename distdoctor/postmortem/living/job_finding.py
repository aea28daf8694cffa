"""Finds the ranks of jobs that run on this machine, whoever has started them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from distdoctor.errors import LeavingsMissing
from distdoctor.postmortem.living.listed_processes import LivingProcess
from distdoctor.postmortem.rank_environment import RankIdentity


@dataclass(slots=True)
class LivingJob:
    """The ranks of a job that are on this machine.

    Attributes:
        ranks: By rank, the process; by -1 - n the n-th whose rank is not known yet.
        world_size: Number of ranks, here and elsewhere; 0: not known.
        helpers: By process number of a rank, the processes that it has started.
        zombies: Processes of the job's launcher that have ended, and were not buried.
        identities: By rank, what its environment says.
        parents: Processes that have started ranks.
    """

    ranks: dict[int, LivingProcess] = field(default_factory=dict)
    world_size: int = 0
    helpers: dict[int, list[LivingProcess]] = field(default_factory=dict)
    zombies: list[LivingProcess] = field(default_factory=list)
    identities: dict[int, RankIdentity] = field(default_factory=dict)
    parents: list[LivingProcess] = field(default_factory=list)

    @property
    def directory(self) -> str:
        """Where most of its ranks work."""
        places = [one.directory for one in self.ranks.values() if one.directory]
        return max(sorted(set(places)), key=places.count, default="")


def jobs_with(
    processes: Mapping[int, LivingProcess],
    *,
    pids: Sequence[int] = (),
    name: str = "",
    everything: bool = False,
) -> list[LivingJob]:
    """The jobs that are meant.

    Args:
        processes: All processes, by number.
        pids: Of a launcher, of ranks, or of what ranks have started.
        name: Part of the command line of a rank, or of what has started it.
        everything: All jobs of this user.

    Returns:
        Jobs in the order of their lowest process number.

    Raises:
        LeavingsMissing: There is no such process, or none of its is a rank.
    """
    tree = _Tree(processes)
    by_job: dict[str, list[LivingProcess]] = {}
    for process in tree.ranks():
        assert process.identity is not None
        by_job.setdefault(process.identity.job, []).append(process)
    chosen: dict[str, None] = {}
    jobs = []
    for pid in pids:
        if pid not in processes:
            raise LeavingsMissing(
                f"there is no process {pid} on this machine; give one that runs, as "
                "`ps` lists them"
            )
        near = {pid, *tree.below(pid), *tree.above(pid)}
        # A shell that has started this very command is above all, and tells nothing.
        of = [job for job, ranks in by_job.items() if any(r.pid in near for r in ranks)]
        below = {pid, *tree.below(pid)}
        mine = [j for j in of if any(rank.pid in below for rank in by_job[j])] or of
        chosen.update(dict.fromkeys(mine))
        if not of:
            jobs.append(_without_environment(tree, processes[pid]))
    if name:
        named = [j for j, ranks in by_job.items() if tree.is_called(ranks, name)]
        chosen.update(dict.fromkeys(named))
        if not named:
            jobs += list(_called(tree, name))
            if not jobs:
                raise LeavingsMissing(
                    f"no process on this machine has {name!r} in its command line and "
                    "is a rank; look on the machine where it runs, or give a process "
                    "number"
                )
    if everything:
        user = os.geteuid()
        chosen.update(
            {job: None for job, ranks in by_job.items() if ranks[0].user == user}
        )
        if not chosen:
            raise LeavingsMissing(
                "no process of this user has a rank in its environment (RANK, "
                "OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID, HOROVOD_RANK): give the "
                "process number of the job"
            )
    jobs = [_job(tree, by_job[job]) for job in chosen] + jobs
    return sorted(jobs, key=lambda job: min(r.pid for r in job.ranks.values()))


def _job(tree: _Tree, ranks: Iterable[LivingProcess]) -> LivingJob:
    job = LivingJob()
    for process in sorted(ranks, key=lambda one: one.pid):
        identity = process.identity
        assert identity is not None
        job.world_size = max(job.world_size, identity.world_size)
        job.ranks[identity.rank] = process  # of two, the later: it was restarted
        job.identities[identity.rank] = identity
    tree.complete(job)
    return job


def _called(tree: _Tree, name: str) -> Iterator[LivingJob]:
    """Jobs without a rank in the environment, by a part of their command line."""
    ours = {os.getpid(), *tree.above(os.getpid())}
    found = [
        process
        for process in tree.processes.values()
        if name in " ".join(process.command) and process.is_python
    ]
    pids = {process.pid for process in found}
    for process in found:
        if process.pid not in ours and not pids & set(tree.above(process.pid)):
            yield _without_environment(tree, process)


def _without_environment(tree: _Tree, root: LivingProcess) -> LivingJob:
    """The processes of Python below one that says of no rank, such as spawned ones."""
    job = LivingJob()
    # The shell that was given may have started this very command, too.
    ours = {os.getpid(), *tree.below(os.getpid())}
    below = [tree.processes[pid] for pid in tree.below(root.pid) if pid not in ours]
    found = [one for one in below if one.is_python and not one.is_zombie]
    found = [one for one in found if not _HELPER.search(" ".join(one.command))]
    spawned = [one for one in found if "spawn_main" in " ".join(one.command)]
    first = spawned or found
    depth = min((len(tree.above(one.pid)) for one in first), default=0)
    first = [one for one in first if len(tree.above(one.pid)) == depth] or [root]
    if not first[0].is_python and not first[0].command:
        raise LeavingsMissing(
            f"process {root.pid} may not be read: run this as its user, or as root"
        )
    if not any(one.is_python for one in first):
        raise LeavingsMissing(
            f"process {root.pid} runs no Python, and started none; give one of "
            "the job's"
        )
    for number, process in enumerate(sorted(first, key=lambda one: one.pid)):
        job.ranks[-1 - number] = process
    tree.complete(job)
    return job


_HELPER = re.compile(r"resource_tracker|forkserver|semaphore_tracker|compile_worker")


class _Tree:
    """Who started whom."""

    def __init__(self, processes: Mapping[int, LivingProcess]) -> None:
        self.processes = processes
        self._children: dict[int, list[int]] = {}
        for process in processes.values():
            self._children.setdefault(process.parent, []).append(process.pid)

    def below(self, pid: int) -> list[int]:
        """All that descend from a process."""
        found, fresh = [], [pid]
        while fresh:
            children = self._children.get(fresh.pop(), [])
            found += children
            fresh += children
        return found

    def above(self, pid: int) -> list[int]:
        """A process's parent, and its parent, and so on, without the first process."""
        found: list[int] = []
        while pid in self.processes:
            pid = self.processes[pid].parent
            if pid <= 1 or pid in found:
                break
            found.append(pid)
        return [one for one in found if one in self.processes]

    def ranks(self) -> Iterator[LivingProcess]:
        """The processes that are ranks: of those with one identity, the first Python.

        What a rank starts inherits its environment. A launcher may have the identity of
        a whole machine.
        """
        for process in self.processes.values():
            identity = process.identity
            if identity is None or not process.is_python or process.is_launcher:
                continue
            if process.is_autopsy:
                continue
            above = [self.processes[pid] for pid in self.above(process.pid)]
            if any(
                one.identity == identity and one.is_python and not one.is_launcher
                for one in above
            ):
                continue
            if self._starts_ranks(process):
                continue
            yield process

    def _starts_ranks(self, process: LivingProcess) -> bool:
        """Whether below it there are ranks of their own, of a job of their own."""
        assert process.identity is not None
        others = {
            below.identity
            for pid in self.below(process.pid)
            if (below := self.processes[pid]).identity is not None
        }
        return bool(others - {process.identity})

    def is_called(self, ranks: Sequence[LivingProcess], name: str) -> bool:
        """Whether a rank, or what has started it, has a text in its command line."""
        ours = {os.getpid(), *self.above(os.getpid())}
        for rank in ranks:
            if name in " ".join(rank.command):
                return True
            above = [one for one in self.above(rank.pid) if one not in ours]
            if any(name in " ".join(self.processes[one].command) for one in above):
                return True
        return False

    def complete(self, job: LivingJob) -> None:
        """Add what the ranks have started, and what is left of ranks that ended."""
        pids = {process.pid for process in job.ranks.values()}
        for pid in pids:
            below = [self.processes[one] for one in self.below(pid) if one not in pids]
            if below:
                job.helpers[pid] = below
        parents = {process.parent for process in job.ranks.values()}
        job.parents = [self.processes[p] for p in parents if p in self.processes]
        job.zombies = [
            one
            for one in sorted(self.processes.values(), key=lambda one: one.pid)
            if one.is_zombie and one.parent in parents and one.parent > 1
        ]


def numbered(job: LivingJob, rank_of: Callable[[int], int | None]) -> bool:
    """Give the processes of a job their ranks, where their environment told none.

    Args:
        job: The job; it is changed.
        rank_of: By the number of a process, its rank, if anything tells it.

    Returns:
        Whether each process has one now, and no two the same.
    """
    unknown = {key: process for key, process in job.ranks.items() if key < 0}
    if not unknown:
        return True
    ranks = {key: rank_of(process.pid) for key, process in unknown.items()}
    reported = [rank for rank in ranks.values() if rank is not None]
    if len(reported) != len(unknown) or len(set(reported)) != len(reported):
        if len(unknown) > 1:
            return False
        ranks, reported = dict.fromkeys(unknown, 0), [0]
    job.ranks = {
        rank: unknown[key]
        for key, rank in sorted(ranks.items(), key=lambda item: item[1] or 0)
        if rank is not None
    }
    job.world_size = max(job.world_size, *(rank + 1 for rank in reported))
    return True
