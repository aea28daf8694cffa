"""Fixtures of tests that run on ranks: who this rank is, its group, its folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


class Seat:
    """The rank that this process plays at present, and its resources.

    Attributes:
        rank: The rank.
        world_size: Number of ranks.
        device: "cpu" or "cuda".
        gpu: Index of this rank's own GPU, if it has one.
        scratch: Folder that the ranks of the test share.
        launcher: "torch" or "horovod": what the ranks have joined.
        ask: Sends a question to the pytest process and returns its answer.
    """

    def __init__(self, ask: Callable[[str], Any]) -> None:
        self.rank = 0
        self.world_size = 1
        self.device = "cpu"
        self.gpu = 0
        self.scratch = Path()
        self.launcher = "torch"
        self.ask = ask


SEAT = pytest.StashKey[Seat]()


def is_rank(config: pytest.Config) -> bool:
    """Whether this process is a rank of another pytest process."""
    return SEAT in config.stash


def _seat(request: pytest.FixtureRequest) -> Seat:
    seat = request.config.stash.get(SEAT, None)
    if seat is None:
        pytest.fail(
            f"the fixture {request.fixturename!r} is for tests that run on ranks: mark "
            "the test with @pytest.mark.ranks(2)",
            pytrace=False,
        )
    return seat


def _seat_in_group(request: pytest.FixtureRequest) -> Seat:
    """The seat, in a test whose ranks have a process group."""
    seat = _seat(request)
    if seat.launcher == "horovod":
        pytest.fail(
            f"the fixture {request.fixturename!r} is of torch.distributed, which the "
            "ranks of a test with launcher='horovod' have not joined",
            pytrace=False,
        )
    return seat


@pytest.fixture(scope="session")
def rank(request: pytest.FixtureRequest) -> int:
    """This rank's global number, from 0."""
    return _seat(request).rank


@pytest.fixture(scope="session")
def world_size(request: pytest.FixtureRequest) -> int:
    """The number of ranks that run the test."""
    return _seat(request).world_size


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    """The device of this rank in this test: the CPU, or a GPU of its own."""
    import torch

    seat = _seat(request)
    return (
        torch.device("cuda", seat.gpu) if seat.device == "cuda" else torch.device("cpu")
    )


@pytest.fixture
def group(request: pytest.FixtureRequest) -> ProcessGroup:
    """The process group of all ranks, made anew for each test."""
    import torch.distributed as dist

    _seat_in_group(request)
    world = dist.group.WORLD
    assert world is not None
    return world


@pytest.fixture
def mesh(request: pytest.FixtureRequest) -> DeviceMesh:
    """A one-dimensional device mesh over all ranks."""
    from torch.distributed.device_mesh import init_device_mesh

    seat = _seat_in_group(request)
    return init_device_mesh(seat.device, (seat.world_size,))


@pytest.fixture
def shared_tmp_path(request: pytest.FixtureRequest) -> Path:
    """A folder that all ranks of the test share, empty at its start."""
    folder = _seat(request).scratch / "shared"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def rank_tmp_path(request: pytest.FixtureRequest) -> Path:
    """A folder of this rank's own, empty at the start of the test."""
    seat = _seat(request)
    folder = seat.scratch / f"rank-{seat.rank}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def distdoctor_findings(
    request: pytest.FixtureRequest,
) -> Callable[[], list[dict[str, Any]]]:
    """A function that gives the findings on what the ranks have done so far.

    All ranks must call it, and all get the same list of findings, in the
    shape of the report as data.
    """
    seat = _seat(request)
    return lambda: list(seat.ask("findings"))
