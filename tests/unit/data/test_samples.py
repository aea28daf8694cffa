"""What a rank reads, seen at real DataLoaders: indices, contents, steps, lines."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    Subset,
    TensorDataset,
    dataloader,
)

from distdoctor.analysis.data.passes import LoaderPass, passes
from distdoctor.journal.assembly import assemble
from distdoctor.journal.folder import Manifest
from distdoctor.journal.writer import JournalWriter
from distdoctor.model.observations.data import DATASET, LOADER, Held
from distdoctor.model.run import Run
from distdoctor.probes.data import creation_sites
from distdoctor.probes.data.epoch_shortening import LEFT_OUT
from distdoctor.probes.data.loaders import watch_loaders
from distdoctor.probes.data.sample_fingerprints import held_by, of_samples, of_whole
from distdoctor.probes.data.samples import SAMPLES
from distdoctor.probes.recorder import RECORDER
from distdoctor.probes.replicas import trained_models

Samples = Dataset[tuple[Tensor, ...]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a rank keeps its journal, whose passes are seen."""
    monkeypatch.setattr(RECORDER, "folder", tmp_path)
    monkeypatch.setattr(RECORDER, "writer", JournalWriter(tmp_path, 0, 1, 8 << 20))
    monkeypatch.setattr(RECORDER, "_notes", None)
    iterator = dataloader._BaseDataLoaderIter
    monkeypatch.setattr(iterator, "__next__", iterator.__next__)
    SAMPLES.reset()
    creation_sites.install()
    watch_loaders(None)
    return tmp_path


def seen(folder: Path) -> tuple[Run, list[LoaderPass]]:
    SAMPLES.flush()
    run = assemble(folder, Manifest(distdoctor="", launch=[], directory="/"))
    assert not run.partial
    return run, passes(run, 0)


def rows(count: int = 12) -> TensorDataset:
    return TensorDataset(torch.arange(count * 3.0).reshape(count, 3))


def shuffled(data: Samples, workers: int = 0, **options: Any) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(5)
    sampler = torch.randperm(len(data), generator=generator).tolist()  # type: ignore[arg-type]
    return DataLoader(data, 5, sampler=sampler, num_workers=workers, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_indices_are_told_as_they_are_read(folder: Path, workers: int) -> None:
    loader = shuffled(Subset(rows(), range(11, -1, -1)), workers)
    given = [int(x) // 3 for (batch,) in loader for x in batch[:, 0]]
    _, (one,) = seen(folder)
    assert one.samples.tolist() == given
    assert sorted(given) == list(range(12))
    assert one.whole
    assert one.batch == 5
    assert len(set(one.contents.tolist())) == 12


def test_a_workers_prefetched_batches_are_not_read_before_they_are_given(
    folder: Path,
) -> None:
    for _ in shuffled(rows(), 2):
        break
    _, (one,) = seen(folder)
    assert len(one.samples) == 5
    assert not one.whole


def test_workers_that_stay_begin_anew(folder: Path) -> None:
    loader = shuffled(rows(), 1, persistent_workers=True)
    for _ in range(2):
        for _ in loader:
            pass
    next(iter(loader))
    _, read = seen(folder)
    assert [len(one.samples) for one in read] == [12, 12, 5]
    assert [one.whole for one in read] == [True, True, False]


def test_what_distdoctor_leaves_out_has_an_index_and_no_content(folder: Path) -> None:
    iterator: Any = iter(shuffled(rows()))
    next(iterator)
    setattr(iterator, LEFT_OUT, True)
    iterator._next_index()
    delattr(iterator, LEFT_OUT)
    assert len(list(iterator)) == 1
    _, (one,) = seen(folder)
    assert sorted(one.samples.tolist()) == list(range(12))
    assert [value == 0 for value in one.contents] == [False] * 5 + [True] * 5 + [
        False
    ] * 2


class Endless(Sampler[int]):
    """Has no length, as samplers for so many steps do not."""

    def __iter__(self) -> Iterator[int]:
        return iter([2, 0, 1])


def test_a_sampler_without_a_length_is_no_trouble(folder: Path) -> None:
    for _ in DataLoader(rows(), 2, sampler=Endless()):
        pass
    _, (one,) = seen(folder)
    assert one.samples.tolist() == [2, 0, 1]


class Stream(IterableDataset[Tensor]):
    """Numbers that each worker gives."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.arange(8.0))


def test_a_stream_is_told_by_content(folder: Path) -> None:
    for _ in DataLoader(Stream(), 2, num_workers=2):
        pass
    _, (one,) = seen(folder)
    assert one.read.iterable
    assert not len(one.samples)
    assert len(one.contents) == 16
    assert len(set(one.contents.tolist())) == 8


def test_steps_are_those_made_on_a_pass(folder: Path) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training, test = DataLoader(rows(), 6), DataLoader(rows(), 6)
    with torch.no_grad():
        for (batch,) in test:
            model(batch)
    for (batch,) in training:
        model(batch).sum().backward()
        optimizer.step()
    for (batch,) in training:  # one step for all of it
        model(batch).sum().backward()
    optimizer.step()
    _, read = seen(folder)
    assert [one.steps for one in read] == [0, 2, 1]


@pytest.mark.parametrize("way", ["in eval()", "fetched before", "without eval()"])
def test_a_look_at_other_data_between_two_steps_is_no_training(
    folder: Path, way: str
) -> None:
    """Also where gradients are left on."""
    weight = nn.Linear(3, 1)
    trained_models.wrapped(weight, "ddp")
    optimizer = torch.optim.SGD(weight.parameters(), lr=0.1)
    train, other = shuffled(rows(30)), shuffled(rows())
    for (batch,) in train:
        weight(batch).sum().backward()
        optimizer.step()
        if way == "in eval()":
            weight.eval()
        (looked_at,) = next(iter(other))
        if way != "without eval()":
            weight.eval()
        weight(looked_at)
        weight.train()
    _, found = seen(folder)
    assert sorted(one.steps for one in found) == [0] * 6 + [6]


def test_a_model_that_trains_in_evaluation_is_trained_on_all_it_is_given(
    folder: Path,
) -> None:
    """As one whose normalisation is frozen, with batches of two loaders in a step."""
    weight = nn.Linear(3, 1)
    trained_models.wrapped(weight, "ddp")
    weight.eval()
    optimizer = torch.optim.SGD(weight.parameters(), lr=0.1)
    for (batch,), (other,) in zip(shuffled(rows()), shuffled(rows()), strict=True):
        (weight(batch).sum() + weight(other).sum()).backward()
        optimizer.step()
    _, found = seen(folder)
    assert [one.steps for one in found] == [3, 3]


def test_two_loaders_that_each_step_takes_a_batch_of_are_both_trained_on(
    folder: Path,
) -> None:
    weight = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(weight.parameters(), lr=0.1)
    one, other = iter(shuffled(rows())), iter(shuffled(rows()))
    for _ in range(3):
        (weight(next(one)[0]).sum() + weight(next(other)[0]).sum()).backward()
        optimizer.step()
    _, found = seen(folder)
    assert [each.steps for each in found] == [3, 3]


def test_the_lines_that_made_things_are_known(folder: Path) -> None:
    data = rows()
    sampler: DistributedSampler[Any] = DistributedSampler(data, 1, 0)
    loader = DataLoader(data, 4, sampler=sampler)
    for _ in loader:
        pass
    _, (one,) = seen(folder)
    made = {each.role: each.place for each in one.made}
    for role, line in ((LOADER, "loader = DataLoader(data, 4"), (DATASET, "return T")):
        place = made[role]
        assert place is not None
        text = Path("/", place.file).read_text().splitlines()[place.line - 1]
        assert text.strip().startswith(line)
    assert one.read.shuffled
    assert one.read.replicas == 1


def test_classes_tell_what_their_constructors_take(folder: Path) -> None:
    assert "num_workers" in inspect.signature(DataLoader).parameters
    assert [*inspect.signature(TensorDataset).parameters] == ["tensors"]
    _ = folder


def test_random_numbers_are_what_they_would_be(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = []
    for watched in (True, False):
        if not watched:
            monkeypatch.setattr(RECORDER, "writer", None)
        torch.manual_seed(1)
        for _ in DataLoader(rows(), 4, shuffle=True):
            pass
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
    _ = folder


class Pair(NamedTuple):
    """A batch."""

    x: Tensor
    names: list[str]


@pytest.mark.parametrize(
    ("batch", "other"),
    [
        (torch.tensor([[1, 2], [3, 4]]), torch.tensor([[3, 4], [5, 6]])),
        ({"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([2.0, 3.0])}),
        (Pair(torch.ones(2), ["a", "b"]), Pair(torch.ones(2), ["b", "c"])),
        (["a", "b"], ["b", "c"]),
        (
            [torch.ones(3), torch.ones(5)],  # ragged
            [torch.ones(5), torch.ones(7)],
        ),
        ([(1, "x"), (2, "y")], [(2, "y"), (3, "z")]),
    ],
)
def test_a_sample_is_the_same_in_another_batch(batch: object, other: object) -> None:
    here, there = of_samples(batch, 2), of_samples(other, 2)
    assert here is not None
    assert there is not None
    assert here[1] == there[0]
    assert len({*here, *there}) == 3


def test_a_batch_of_what_is_not_known_has_no_samples() -> None:
    assert of_samples(object(), 2) is None
    assert of_samples(torch.ones(3, 2), 2) is None
    assert of_whole(object()) is None


def test_a_large_row_is_told_by_its_pieces() -> None:
    large = torch.zeros(2, 300_000)
    large[1, 299_999] = 1
    digests = of_samples(large, 2)
    assert digests is not None
    assert digests[0] != digests[1]


def test_what_a_dataset_holds_is_told_row_by_row() -> None:
    first, other = held_by(rows(), 12, 1), held_by(rows(), 12, 2)
    assert first is not None
    assert other is not None
    assert first.names == ("tensors.0",)
    assert first.rows == other.rows
    turned = TensorDataset(rows().tensors[0].flip(0))
    again = held_by(turned, 12, 3)
    assert isinstance(again, Held)
    assert again.rows != first.rows
    assert again.bags == first.bags


def test_of_paths_the_name_alone_counts() -> None:
    here = held_by([("/rank0/a.png", 1), ("/rank0/b.png", 2)], 2, 1)
    there = held_by([("/rank1/a.png", 1), ("/rank1/b.png", 2)], 2, 1)
    assert here == there
    assert here is not None
    assert held_by([None, "a"], 2, 1) is None  # filled as it goes: tells nothing
