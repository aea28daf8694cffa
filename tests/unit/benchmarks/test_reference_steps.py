"""Steps of the reference jobs, tried in this process with numbers of all sizes."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from library_properties import LIBRARY, ask
from simulated import Ranks, Replica, Stuck
from step_properties import PROPERTIES, Property, load_job
from textbook import Case
from torch import nn

CASES = st.builds(
    lambda window, left, **sizes: Case(window=window, left=min(left, window), **sizes),
    seed=st.integers(0, 1000),
    ranks=st.integers(1, 3),
    window=st.integers(1, 4),
    left=st.integers(1, 4),
    rows=st.integers(2, 5),
    size=st.sampled_from([0.1, 0.5, 1.0, 3.0]),
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors on a busy machine: several threads would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("job", "holds"),
    [(job, holds) for job, those in PROPERTIES.items() for holds in those],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_step_is_the_textbooks(job: str, holds: Property) -> None:
    module = load_job(job)

    # The same cases in each run: a trust ratio of a gradient that is zero but for its
    # rounding may be anything. benchmarks/step_properties.py looks for such cases.
    @settings(max_examples=6, deadline=None, derandomize=True)
    @given(case=CASES)
    def tried(case: Case) -> None:
        holds(module, case)

    tried()


@pytest.mark.parametrize("job", [job for job, those in LIBRARY.items() if those])
def test_a_step_passes_the_assertions_of_the_library(job: str) -> None:
    for holds in LIBRARY[job]:
        ask(load_job(job), holds)


# The ranks that all this rests on


def test_replicas_have_the_mean_of_what_was_gathered() -> None:
    ranks = Ranks(2)

    def live(rank: int) -> Any:
        inner = nn.Linear(1, 1, bias=False)
        model = Replica(inner, ranks)
        with model.no_sync():
            model(torch.tensor([[1.0 + rank]])).sum().backward()
        assert inner.weight.grad is not None
        alone = inner.weight.grad.item()
        model(torch.tensor([[10.0 + rank]])).sum().backward()
        return alone, inner.weight.grad.item()

    assert ranks.run(live) == [(1.0, 12.0), (2.0, 12.0)]
    assert ranks.exchanged == 1


def test_a_rank_has_random_numbers_of_its_own() -> None:
    ranks = Ranks(2)

    def live(rank: int) -> list[float]:
        torch.manual_seed(rank)
        drawn = []
        for _ in range(3):
            drawn.append(torch.rand(()).item())
            ranks.barrier()
        return drawn

    wanted = []
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        wanted.append([torch.rand((), generator=generator).item() for _ in range(3)])
    assert ranks.run(live) == wanted


def test_ranks_that_wait_in_vain_are_told_of() -> None:
    ranks = Ranks(2)

    def live(rank: int) -> None:
        if rank:
            ranks.barrier()

    with pytest.raises(Stuck, match="have ended"):
        ranks.run(live)


def test_ranks_that_meet_in_different_collectives_are_told_of() -> None:
    ranks = Ranks(2)

    def live(rank: int) -> None:
        if rank:
            ranks.barrier()
        else:
            ranks.all_reduce(torch.ones(1))

    with pytest.raises(Stuck, match="met in"):
        ranks.run(live)


def test_what_a_rank_raised_is_raised() -> None:
    ranks = Ranks(2)

    def live(rank: int) -> float:
        ranks.barrier()
        value = 1 / (1 - rank)
        ranks.barrier()
        return value

    with pytest.raises(ZeroDivisionError):
        ranks.run(live)
