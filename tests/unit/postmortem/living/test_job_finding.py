"""The ranks of jobs among all processes of a machine."""

import pytest

from distdoctor.errors import LeavingsMissing
from distdoctor.postmortem.living.job_finding import (
    LivingJob,
    jobs_with,
    numbered,
)
from distdoctor.postmortem.living.listed_processes import LivingProcess
from distdoctor.postmortem.rank_environment import identity_of


def process(
    pid: int,
    parent: int,
    command: str,
    rank: int = -1,
    port: int = 29500,
    more: dict[str, str] | None = None,
) -> LivingProcess:
    environment = dict(more or {})
    if rank >= 0:
        environment |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": str(port)}
    return LivingProcess(
        pid,
        parent,
        tuple(command.split()),
        0,
        "/job",
        identity=identity_of(environment),
    )


MACHINE = {
    one.pid: one
    for one in (
        process(1, 0, "init"),
        process(10, 1, "bash"),
        process(20, 10, "python -m torch.distributed.run train.py"),
        process(21, 20, "python -u train.py", 0),
        process(22, 20, "python -u train.py", 1),
        process(23, 21, "python -u train.py", 0),  # a loader's worker: it is forked
        process(
            24, 21, "python -c from multiprocessing.resource_tracker import main", 0
        ),
        process(30, 10, "python -m torch.distributed.run other.py"),
        process(31, 30, "python -u other.py", 0, 29501),
        process(32, 30, "python -u other.py", 1, 29501),
        process(40, 10, "python spawning.py"),
        process(41, 40, "python -c from multiprocessing.spawn import spawn_main"),
        process(42, 40, "python -c from multiprocessing.spawn import spawn_main"),
        process(43, 40, "python -c from multiprocessing.resource_tracker import main"),
    )
}


def test_a_look_that_was_given_a_rank_is_none() -> None:
    # As by `kubectl exec`, where the container's environment tells the rank.
    looks = [
        process(50, 1, "python -m distdoctor autopsy --job train.py", 0),
        process(51, 1, "python3 /usr/bin/distdoctor autopsy --job train.py", 1),
    ]
    (job,) = jobs_with(MACHINE | {one.pid: one for one in looks}, name="train.py")
    assert pids(job) == {0: 21, 1: 22}


def pids(job: LivingJob) -> dict[int, int]:
    return {rank: process.pid for rank, process in job.ranks.items()}


@pytest.mark.parametrize("pid", [20, 21, 22, 23])
def test_any_process_of_a_job_leads_to_all_its_ranks(pid: int) -> None:
    (job,) = jobs_with(MACHINE, pids=[pid])
    assert pids(job) == {0: 21, 1: 22}
    assert [one.pid for one in job.helpers[21]] == [23, 24]
    assert job.world_size == 2


def test_a_shell_above_two_jobs_leads_to_both() -> None:
    assert [pids(job) for job in jobs_with(MACHINE, pids=[10])] == [
        {0: 21, 1: 22},
        {0: 31, 1: 32},
    ]


def test_a_job_is_found_by_its_command() -> None:
    (job,) = jobs_with(MACHINE, name="other.py")
    assert pids(job) == {0: 31, 1: 32}
    with pytest.raises(LeavingsMissing, match=r"nothing\.py"):
        jobs_with(MACHINE, name="nothing.py")


def test_spawned_processes_are_found_though_nothing_says_their_rank() -> None:
    (job,) = jobs_with(MACHINE, pids=[40])
    assert pids(job) == {-1: 41, -2: 42}
    assert numbered(job, {41: 1, 42: 0}.get)
    assert pids(job) == {0: 42, 1: 41}


def test_ranks_that_are_told_twice_are_not_believed() -> None:
    (job,) = jobs_with(MACHINE, pids=[40])
    assert not numbered(job, {41: 1, 42: 1}.get)


def test_a_process_that_is_not_there_is_said() -> None:
    with pytest.raises(LeavingsMissing, match="no process 77"):
        jobs_with(MACHINE, pids=[77])


def test_a_launcher_with_the_environment_of_a_machine_is_no_rank() -> None:
    by_torchrun = {"TORCHELASTIC_RUN_ID": "none"}
    machine = {
        50: process(50, 1, "python -m torch.distributed.run t.py", 0),
        51: process(51, 50, "python -u t.py", 0, more=by_torchrun),
        52: process(52, 50, "python -u t.py", 1, more=by_torchrun),
    }
    (job,) = jobs_with(machine, pids=[50])
    assert pids(job) == {0: 51, 1: 52}


def test_a_shell_around_a_rank_is_no_rank() -> None:
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    machine = {
        60: process(60, 1, "bash run.sh", more=slurm),
        61: process(61, 60, "python t.py", more=slurm),
    }
    (job,) = jobs_with(machine, pids=[60])
    assert pids(job) == {0: 61}
