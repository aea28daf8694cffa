"""The comparison bit by bit: what it sees, and that its jobs are there."""

import random
import re

import bit_identity
import numpy as np
import pytest
import torch
from bit_jobs.leaving import digests, of_optimizer, random_states
from torch import nn


def _told(value: object) -> dict[str, str]:
    return dict(digests("it", value))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.tensor([0.0]), torch.tensor([-0.0])),
        (torch.tensor(1.0), torch.tensor(1.0 + 2**-23)),
        (torch.zeros(4), torch.zeros(2, 2)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int32)),
        (torch.eye(2)[0:1].to_sparse(), torch.eye(2)[1:2].to_sparse()),
        (0.1 + 0.2, 0.3),
        ([1.0, {"a": 2}], [1.0, {"a": 3}]),
    ],
)
def test_what_differs_by_a_bit_differs(one: object, other: object) -> None:
    assert _told(one) == _told(one)
    assert _told(one) != _told(other)


@pytest.mark.parametrize("draw", [random.random, np.random.rand, lambda: torch.rand(1)])
def test_a_number_that_is_drawn_is_seen(draw: object) -> None:
    before = _told(random_states())
    assert _told(random_states()) == before
    assert callable(draw)
    draw()
    assert _told(random_states()) != before


def test_the_state_of_an_optimizer_is_seen() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight])
    weight.grad = torch.ones(2)
    optimizer.step()
    before = _told(of_optimizer(optimizer))
    optimizer.state[weight]["exp_avg"][1] += 2**-10
    after = _told(of_optimizer(optimizer))
    assert [name for name in before if before[name] != after[name]] == [
        "it.groups[0].state[0].exp_avg"
    ]


def test_all_jobs_are_there_and_more_than_twenty_besides_controls() -> None:
    found = list(bit_identity.jobs(True, bit_identity.TORCHRUN))
    assert len({job.name for job in found}) == len(found)
    assert sum(not job.differs for job in found) > 20
    assert sum(job.differs for job in found) == 2
    for script, ways in bit_identity.OWN.items():
        text = (bit_identity.JOBS / f"{script}.py").read_text()
        functions = set(re.findall(r"^def (\w+)\(\) -> None:", text, re.MULTILINE))
        assert set(ways.split()) <= functions - {"main"}
    for line in bit_identity.REFERENCE:
        assert (bit_identity.ROOT / f"reference_jobs/{line.split()[0]}.py").exists()


def test_what_only_one_run_left_is_a_difference() -> None:
    one = bit_identity.Left(0, {"rank0 a": "1", "rank1 a": "2"}, "", "")
    other = bit_identity.Left(0, {"rank0 a": "1"}, "", "")
    assert bit_identity.differing(one, other) == ["rank1 a"]
    assert bit_identity.is_complete(one)
    assert not bit_identity.is_complete(other)
