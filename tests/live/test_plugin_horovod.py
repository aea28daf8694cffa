"""Tests on ranks of Horovod: what they can do, and how a fault among them is told."""

import plugin_sessions as sessions
import pytest
from horovod_jobs import needs_horovod
from plugin_sessions import Session

pytestmark = needs_horovod

TESTS = """\
import os, signal
import pytest, torch
import torch.distributed as dist
import horovod.torch as hvd

@pytest.mark.ranks(2, launcher="horovod")
def test_ranks_have_joined(rank, world_size, device):
    assert (hvd.rank(), hvd.size(), hvd.local_rank()) == (rank, world_size, rank)
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [2, 2]
    assert "RANK" not in os.environ and not dist.is_initialized()

@pytest.mark.ranks(2)
def test_of_torch_between(group):
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 2
    assert not hvd.is_initialized() and "HOROVOD_RANK" not in os.environ

@pytest.mark.ranks([2, 3], launcher="horovod")
def test_operations_without_names_in_a_pool_that_grows(world_size):
    for _ in range(3):
        total = hvd.allreduce(torch.ones(1), op=hvd.Sum)
        assert total.item() == world_size

@pytest.mark.ranks(2, launcher="horovod")
def test_group_is_of_torch(group):
    pass

@pytest.mark.ranks(2, launcher="horovod")
def test_hangs(rank):
    if rank == 0:
        hvd.allreduce(torch.ones(1), name="lonely")  # line of the fault
    hvd.allreduce(torch.ones(1), name="common")

@pytest.mark.ranks(2, launcher="horovod")
def test_rank_dies(rank):
    hvd.allreduce(torch.ones(1), name="first")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.allreduce(torch.ones(1), name="second")

@pytest.mark.ranks(2, launcher="horovod", lane="fresh")
def test_in_processes_of_its_own(world_size):
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == world_size

@pytest.mark.ranks(2, launcher="mpirun")
def test_with_an_unknown_launcher():
    pass
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """One session with all of them."""
    return sessions.run(tmp_path_factory.mktemp("horovod"), TESTS)


@pytest.mark.parametrize(
    "name",
    [
        "test_ranks_have_joined",
        "test_of_torch_between",
        "test_operations_without_names_in_a_pool_that_grows[2ranks]",
        "test_operations_without_names_in_a_pool_that_grows[3ranks]",
        "test_in_processes_of_its_own",
    ],
)
def test_what_is_well_passes(session: Session, name: str) -> None:
    assert session.tests[name].outcome == "passed", session.tests[name].text


def test_a_hang_is_told_by_its_code_and_line(session: Session) -> None:
    test = session.tests["test_hangs"]
    assert "DD108" in test.message, test
    assert "test_it.py:" in test.message, test
    assert test.seconds < 60


def test_a_rank_that_dies_is_told(session: Session) -> None:
    message = session.tests["test_rank_dies"].message
    assert "rank 1 was killed by SIGKILL" in message, session.tests["test_rank_dies"]


def test_what_cannot_be_is_refused_in_a_sentence(session: Session) -> None:
    assert "'group' is of torch" in session.tests["test_group_is_of_torch"].text
    unknown = session.tests["test_with_an_unknown_launcher"]
    assert "launcher='mpirun': one of 'torch', 'horovod' was" in unknown.message


def test_nothing_is_left(session: Session) -> None:
    assert session.left == []
