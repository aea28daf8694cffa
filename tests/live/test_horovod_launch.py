"""Jobs of Horovod, MPI and Slurm: how `distdoctor check` starts and ends them."""

import signal
import stat
import sys
import time

import pytest
from command_box import Box
from horovod_jobs import FOR_ROOT, horovodrun, needs_horovod, needs_mpi

TRAINING = """\
import sys
import torch
import horovod.torch as hvd

hvd.init()
model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1),
    named_parameters=model.named_parameters(),
)
hvd.broadcast_parameters(model.state_dict(), 0)
generator = torch.Generator().manual_seed(hvd.rank())
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 2, generator=generator)).sum().backward()
    optimizer.step()
print("trained on", hvd.size())
"""

HANGS = """\
import torch
import horovod.torch as hvd

hvd.init()
if hvd.rank() == 0:
    hvd.allreduce(torch.ones(1), name="lonely")
hvd.allreduce(torch.ones(1), name="common")
"""

KILLED = """\
import os, signal
if os.environ["HOROVOD_RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
import torch
import horovod.torch as hvd
hvd.init()
"""

NEVER_ENDS = """\
import time
import torch
import horovod.torch as hvd

hvd.init()
print("READY", flush=True)
while True:
    hvd.allreduce(torch.ones(1), name="again")
    time.sleep(0.05)
"""

OF_SLURM = """\
import os
import torch
import torch.distributed as dist

dist.init_process_group(
    "gloo",
    init_method="file://" + os.path.abspath("meeting"),
    rank=int(os.environ["SLURM_PROCID"]),
    world_size=int(os.environ["SLURM_NTASKS"]),
)
t = torch.ones(2)
dist.all_reduce(t)
if dist.get_rank() == 0:
    dist.all_reduce(t)
dist.barrier()
"""

SRUN = f"""\
#!{sys.executable} -S
import os, subprocess, sys

count = sys.argv[2]
tasks = []
for rank in map(str, range(int(count))):
    told = dict(SLURM_PROCID=rank, SLURM_LOCALID=rank, SLURM_NTASKS=count)
    told |= dict(SLURM_JOB_ID="7", SLURM_STEP_ID="0", SLURM_NODEID="0")
    tasks.append(subprocess.Popen(sys.argv[3:], env=os.environ | told))
sys.exit(max(task.wait() for task in tasks))
"""
"""A stand-in for Slurm's srun: it starts tasks here, with the variables of srun(1)."""

ITS_OWN = ("Horovod detected", "exit with status code", "Terminating remaining")


def nothing_is_left(box: Box) -> bool:
    """Whether all processes of a box have ended, and its temporary files are gone."""
    end = time.monotonic() + 5.0
    while box.marked() and time.monotonic() < end:
        time.sleep(0.1)
    # torch makes the folder of its compiler as soon as an optimizer takes a step.
    left = [name for name in box.temporary() if not name.startswith("torchinductor")]
    return not box.marked() and not left


@needs_horovod
def test_a_script_is_started_by_horovodrun(box: Box) -> None:
    box.write(TRAINING)
    status, out, err = box.run("check", "train.py")
    assert status == 0, out + err
    assert "[rank0]:trained on 2\n" in out
    assert "[rank1]:trained on 2\n" in out
    assert "2 ranks · torch" in out
    assert nothing_is_left(box)


@needs_horovod
def test_horovodrun_does_not_take_the_users_modules_for_its_own(box: Box) -> None:
    (box.folder / "job").mkdir()
    box.write("raise SystemExit('taken for the one of Python')\n", "yaml.py")
    box.write(TRAINING, "job/train.py")
    status, out, err = box.run("check", "job/train.py")
    assert status == 0, out + err
    assert "[rank1]:trained on 2\n" in out


@needs_horovod
def test_a_rank_killed_before_it_joined_is_named(box: Box) -> None:
    box.write(KILLED)
    command = horovodrun(2, "train.py")
    status, out, err = box.run("check", "--", *command)
    assert status in {1, 4}, out + err
    assert "rank 1 ended by signal 9" in out or "Rank 1 was killed" in out
    assert not any(words in out + err for words in ITS_OWN)


@needs_horovod
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_after_a_signal(box: Box, number: int) -> None:
    box.write(NEVER_ENDS)
    status, out, err = box.interrupted(number, "check", "train.py")
    assert status == 128 + number, out + err
    assert not any(words in out + err for words in ITS_OWN)
    assert nothing_is_left(box)


@needs_mpi
def test_a_hang_under_mpirun_is_proved(box: Box) -> None:
    box.environment |= FOR_ROOT
    box.write(HANGS)
    command = ["mpirun", "--oversubscribe", "-np", "2", sys.executable, "train.py"]
    status, out, err = box.run("check", "--", *command)
    assert status == 1, out + err
    assert "DD108" in out
    assert "train.py:6" in out
    assert nothing_is_left(box)


def test_ranks_of_srun_are_known_by_its_variables(box: Box) -> None:
    box.write(OF_SLURM)
    srun = box.folder / "srun"
    srun.write_text(SRUN)
    srun.chmod(srun.stat().st_mode | stat.S_IXUSR)
    status, out, err = box.run("check", "--", str(srun), "-n", "2", *_python())
    assert status == 1, out + err
    assert "DD10" in out
    assert "on 2 ranks" in out
    assert nothing_is_left(box)


@needs_horovod
def test_a_single_process_in_an_allocation_is_no_rank_of_several(box: Box) -> None:
    box.environment |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}
    box.write(TRAINING)
    status, out, err = box.run("check", "--", *_python())
    assert status != 1, out + err
    assert "trained on 1" in out


@needs_horovod
def test_a_process_that_trains_alone_is_said_to_be_one_rank(box: Box) -> None:
    box.write(TRAINING)
    status, out, err = box.run("check", "--", *_python())
    assert status == 4, out + err
    assert "the job ran on one rank; try -n 2" in out


def _python() -> list[str]:
    return [sys.executable, "train.py"]
