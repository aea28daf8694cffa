"""Draws from random streams belong to the batch that they were made for."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import data
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    dataloader,
    dataset,
)

from distdoctor.model.observations.rng import Drawn
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.rng import stream_draws

Told = list[Drawn]

SHEETS = TensorDataset(torch.arange(12.0))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """What is recorded while passes over DataLoaders are watched."""
    observed: Told = []
    iterator = dataloader._BaseDataLoaderIter
    for name in ("__init__", "_reset", "__next__", "_next_index"):
        monkeypatch.setattr(iterator, name, getattr(iterator, name))
    for module in (data, dataset):
        monkeypatch.setattr(module, "random_split", module.random_split)
    monkeypatch.setattr(RECORDER, "writer", object())
    monkeypatch.setattr(RECORDER, "observe", lambda one, *_: observed.append(one))
    stream_draws.PROBE.reset()
    stream_draws.PROBE.install()
    stream_draws.PROBE.joined()
    yield observed
    stream_draws.PROBE.reset()


class Noisy(Dataset[Tensor]):
    """Samples with noise of the rank's own stream."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        return index + torch.randn(1)


class Flowing(IterableDataset[Tensor]):
    """Samples without numbers."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.arange(4.0))


def train(told: Told, within: Callable[[], object]) -> Drawn:
    """Go through a loader, with something else done within each of its steps."""
    for _ in DataLoader(SHEETS, batch_size=2):
        within()
        stream_draws.PASSES.stepped()
    (trained,) = [one for one in told if one.loader == 0]  # begun first
    assert trained.trained
    return trained


def evaluation(loader: DataLoader[Any]) -> Callable[[], object]:
    return lambda: [*loader]


EVALUATIONS: dict[str, DataLoader[Any]] = {
    "in order": DataLoader(SHEETS, batch_size=4),
    "shuffled": DataLoader(SHEETS, shuffle=True),
    "by a sampler": DataLoader(SHEETS, sampler=RandomSampler(SHEETS, replacement=True)),
    "by workers": DataLoader(SHEETS, batch_size=6, shuffle=True, num_workers=1),
    "by workers that stay": DataLoader(
        SHEETS, batch_size=6, shuffle=True, num_workers=1, persistent_workers=True
    ),
    "with noise": DataLoader(Noisy()),
    "of a stream": DataLoader(Flowing()),
}


@pytest.mark.parametrize("how", EVALUATIONS)
def test_what_a_loader_within_a_step_draws_is_its_own(how: str, told: Told) -> None:
    assert train(told, evaluation(EVALUATIONS[how])).between == ()


def test_a_first_batch_of_another_loader_is_none_of_the_step(told: Told) -> None:
    loader = DataLoader(SHEETS, shuffle=True)
    assert train(told, lambda: next(iter(loader))).between == ()


def test_a_split_of_samples_is_none_of_the_step(told: Told) -> None:
    assert train(told, lambda: data.random_split(SHEETS, [6, 6])).between == ()


def test_loaders_that_are_read_together_draw_for_themselves(told: Told) -> None:
    one, other = (DataLoader(SHEETS, shuffle=True) for _ in range(2))
    for _ in zip(one, other, strict=True):
        stream_draws.PASSES.stepped()
    assert [each.between for each in told] == [(), ()]


def dropout(_batch: object = None) -> None:
    nn.functional.dropout(torch.ones(4))


@pytest.mark.parametrize("is_first", [True, False])
def test_dropout_is_the_steps_before_an_evaluation_and_behind(
    is_first: bool, told: Told
) -> None:
    evaluate = evaluation(DataLoader(SHEETS, shuffle=True))
    order = (dropout, evaluate) if is_first else (evaluate, dropout)
    assert train(told, lambda: [each() for each in order]).between == ("torch",)


def test_dropout_between_batches_of_another_loader_is_seen(told: Told) -> None:
    accumulated = DataLoader(SHEETS)
    assert train(told, lambda: [*map(dropout, accumulated)]).between == ("torch",)


def test_an_interrupted_loader_leaves_the_next_draws_to_the_step(told: Told) -> None:
    def fail() -> None:
        loader: DataLoader[Any] = DataLoader(SHEETS, collate_fn=lambda _: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            next(iter(loader))
        dropout()

    assert train(told, fail).between == ("torch",)


class Noise:
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(3)

    def draw(self) -> Tensor:
        """For one batch."""
        return torch.randn(2, generator=self.generator)


def test_a_generator_that_the_loop_holds_is_told_with_its_name(told: Told) -> None:
    noise, unused = Noise(), torch.Generator()
    drawn = train(told, noise.draw)
    assert "noise.generator" in drawn.streams
    assert drawn.between == drawn.explicit == ("noise.generator",)
    assert unused.initial_seed()


def test_what_orders_samples_is_no_noise_of_the_loop(told: Told) -> None:
    order = torch.Generator().manual_seed(3)
    loader = DataLoader(SHEETS, batch_size=2, shuffle=True, generator=order)
    for _ in loader:
        torch.randn(1, generator=order)  # whatever it is for
        stream_draws.PASSES.stepped()
    assert told[0].explicit == ()
