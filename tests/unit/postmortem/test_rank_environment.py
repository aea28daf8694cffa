"""Ranks by their environment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdoctor.postmortem.rank_environment import identity_of

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "n0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "x",
}


@pytest.mark.parametrize(
    ("environment", "rank", "size", "launcher"),
    [
        (TORCHRUN, 5, 8, "torchrun"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, 0, 2, ""),
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "4"}, 1, 4, "horovod"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}, 1, 4, "mpi"),
        ({"PMI_RANK": "2", "PMI_SIZE": "3"}, 2, 3, "mpi"),
        ({"SLURM_PROCID": "6", "SLURM_NTASKS": "8"}, 6, 8, "slurm"),
        ({**TORCHRUN, "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, 5, 8, "torchrun"),
    ],
)
def test_launchers_say_the_rank(
    environment: dict[str, str], rank: int, size: int, launcher: str
) -> None:
    found = identity_of(environment)
    assert found is not None
    assert (found.rank, found.world_size, found.launcher) == (rank, size, launcher)


def test_jobs_are_kept_apart_by_where_they_meet() -> None:
    other = identity_of({**TORCHRUN, "MASTER_PORT": "29501"})
    mine = identity_of(TORCHRUN)
    same = identity_of({**TORCHRUN, "RANK": "6"})
    assert mine is not None
    assert other is not None
    assert same is not None
    assert mine.job == same.job != other.job


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"RANK": "3"},
        {"RANK": "3", "WORLD_SIZE": "2"},
        {"RANK": "x", "WORLD_SIZE": "2"},
    ],
)
def test_others_are_no_ranks(environment: dict[str, str]) -> None:
    assert identity_of(environment) is None


@given(st.dictionaries(st.sampled_from(sorted(TORCHRUN)), st.text(max_size=12)))
def test_no_environment_is_too_odd(environment: dict[str, str]) -> None:
    found = identity_of(environment)
    assert found is None or 0 <= found.rank < found.world_size
