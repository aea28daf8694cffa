"""Shortening, with real DataLoaders: what is given, left out, and left alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    dataloader,
)

from distdoctor.journal.environment import BUDGET_VARIABLE
from distdoctor.journal.reader import JournalReader
from distdoctor.journal.writer import JournalWriter
from distdoctor.probes.data import epoch_shortening as module
from distdoctor.probes.data.epoch_shortening import (
    EpochShortening,
    all_ranks_are_here,
    of_environment,
)
from distdoctor.probes.data.loaders import watch_loaders
from distdoctor.probes.recorder import RECORDER

SECOND = 1_000_000_000


class Numbers(Dataset[int]):
    """The numbers below a size; it knows which were loaded."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.loaded.append(index)
        return index


class Stream(IterableDataset[int]):
    """Numbers without an end, or so many."""

    def __init__(self, size: int | None = None) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.size or 10**9))


class Sized(Stream):
    """A stream that says how long it is."""

    def __len__(self) -> int:
        assert self.size is not None
        return self.size


class Job:
    """A process of a job with one rank, whose clock goes on by a second a look."""

    def __init__(self, budget_s: int) -> None:
        self.now = 0
        self.met = 0
        self.world = 1
        self.shortening = EpochShortening(
            0,
            budget_s * SECOND,
            lambda: self.world,
            lambda: self.met,
            torch.is_grad_enabled,
            self.clock,
        )
        self.shortening.joined()

    def clock(self) -> int:
        """The time; it goes by."""
        self.now += SECOND
        return self.now


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """A job of 20 s, in which passes without steps are shortened from 8 s on."""
    monkeypatch.setattr(RECORDER, "folder", tmp_path)
    writer = JournalWriter(tmp_path, 0, 1, 8 << 20)
    monkeypatch.setattr(RECORDER, "writer", writer)
    iterator = dataloader._BaseDataLoaderIter
    monkeypatch.setattr(iterator, "__next__", iterator.__next__)
    monkeypatch.setattr(DataLoader, "__iter__", DataLoader.__iter__)
    monkeypatch.setattr(DataLoader, "__len__", DataLoader.__len__)
    made = Job(20)
    watch_loaders(made.shortening)
    with torch.no_grad():
        yield made


def given(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def notes(folder: Path) -> list[str]:
    box = JournalReader(folder / "rank-0.0.journal")
    texts = [box.string(int(record["spec"])) for record in box.last()]
    return [text for text in texts if "Shortened" in text]


@pytest.mark.usefixtures("job")
def test_the_first_batches_and_the_last_are_given_and_the_rest_never_loaded(
    tmp_path: Path,
) -> None:
    numbers = Numbers(403)
    loader = DataLoader(numbers, batch_size=4)
    assert len(loader) == 101
    batches = given(loader)
    assert batches[:3] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert batches[-1] == [400, 401, 402]
    assert len(batches) < 20
    assert len(loader) == len(batches)
    assert numbers.loaded == [n for batch in batches for n in batch]
    (note,) = notes(tmp_path)
    assert f'"kept":{len(batches)},"length":101' in note


def test_later_passes_are_as_short_and_keep_both_ends(job: Job) -> None:
    loader = DataLoader(Numbers(403), batch_size=4)
    first = given(loader)
    job.now -= 5 * SECOND
    again = given(loader)
    assert len(again) <= len(first)
    assert again[0] == [0, 1, 2, 3]
    assert again[-1] == [400, 401, 402]
    assert len(loader) == len(again)


def test_a_job_that_has_time_is_left_alone(job: Job, tmp_path: Path) -> None:
    job.shortening._deadline_ns = 10_000 * SECOND
    loader = DataLoader(Numbers(403), batch_size=4)
    assert len(given(loader)) == 101
    assert len(loader) == 101
    assert not notes(tmp_path)


def test_a_pass_that_not_all_ranks_make_is_left_alone(job: Job) -> None:
    job.world = 2
    assert len(given(DataLoader(Numbers(403), batch_size=4))) == 101


def test_the_random_state_is_that_of_a_whole_pass(job: Job) -> None:
    def state_after(shortened: bool) -> list[float]:
        generator = torch.Generator().manual_seed(3)
        sampler = RandomSampler(
            Numbers(400), replacement=True, num_samples=400, generator=generator
        )
        loader = DataLoader(Numbers(400), batch_size=4, sampler=sampler)
        job.now, job.shortening._window = 0, None
        job.shortening._deadline_ns = (20 if shortened else 10_000) * SECOND
        batches = given(loader)
        assert (len(batches) < 100) is shortened
        return [*torch.rand(3, generator=generator).tolist(), *batches[-1]]

    assert state_after(shortened=True) == state_after(shortened=False)


@pytest.mark.usefixtures("job")
def test_who_steps_by_next_gets_every_batch() -> None:
    loader = DataLoader(Numbers(400), batch_size=4)
    batches = iter(loader)
    for _ in range(len(loader)):
        next(batches)
    assert next(batches, None) is None
    given(loader)
    kept = len(loader)
    assert kept < 100
    assert len(list(iter(loader))) == 100  # also when it was shortened elsewhere


@pytest.mark.usefixtures("job")
def test_other_threads_get_every_batch() -> None:
    found: list[int] = []
    loader = DataLoader(Numbers(400), batch_size=4)
    thread = threading.Thread(target=lambda: found.append(len(given(loader))))
    thread.start()
    thread.join()
    assert found == [100]


def test_workers_deliver_what_they_have_loaded_and_then_the_end(job: Job) -> None:
    loader = DataLoader(
        Numbers(403), batch_size=4, num_workers=2, persistent_workers=True
    )
    for _ in range(3):
        batches = given(loader)
        assert batches[0] == [0, 1, 2, 3]
        assert batches[-1] == [400, 401, 402]
        assert len(batches) == len(loader) < 30
        job.now -= 3 * SECOND


@pytest.mark.usefixtures("job")
def test_a_stream_ends_where_it_stands(tmp_path: Path) -> None:
    loader = DataLoader(Stream(), batch_size=4)
    first = given(loader)
    assert 2 <= len(first) < 60
    assert len(given(loader)) <= len(first)
    assert '"length":null' in notes(tmp_path)[0]


@pytest.mark.usefixtures("job")
def test_a_stream_that_says_its_length_says_a_shorter_one() -> None:
    loader = DataLoader(Sized(400), batch_size=4)
    assert len(loader) == 100
    assert len(given(loader)) == len(loader) < 60


@pytest.mark.usefixtures("job")
def test_a_stream_that_ends_before_is_not_touched() -> None:
    assert len(given(DataLoader(Stream(6), batch_size=4))) == 2


class Boasting(Sampler[list[int]]):
    """Says it has a hundred batches, and has twelve."""

    def __len__(self) -> int:
        return 100

    def __iter__(self) -> Iterator[list[int]]:
        return iter(BatchSampler(range(12), 1, drop_last=False))


class Secret(Sampler[list[int]]):
    """Does not say how many batches it has."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter(BatchSampler(range(400), 4, drop_last=False))


@pytest.mark.usefixtures("job")
def test_a_sampler_that_says_too_much_just_ends() -> None:
    loader = DataLoader(Numbers(400), batch_sampler=Boasting())
    assert 2 <= len(given(loader)) <= 12


@pytest.mark.usefixtures("job")
def test_a_sampler_without_a_length_ends_where_it_stands() -> None:
    loader = DataLoader(Numbers(400), batch_sampler=Secret())
    assert 2 <= len(given(loader)) < 60


@pytest.mark.usefixtures("job")
def test_too_many_indices_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_DRAWN", 10)
    batches = given(DataLoader(Numbers(403), batch_size=4))
    assert batches == [list(range(n, n + 4)) for n in range(0, 4 * len(batches), 4)]
    assert len(batches) < 20


def test_a_rank_with_far_fewer_batches_ends_at_the_gate(job: Job) -> None:
    """Another rank, with a thousand batches, has decided to leave 900 out."""
    job.world = 2  # so that nobody decides here
    job.shortening._shared().settle = lambda *_: 90  # type: ignore[method-assign]
    loader = DataLoader(Numbers(200), batch_size=4)
    assert len(given(loader)) == 2 == len(loader)


def test_the_period_of_steps_is_seen(job: Job) -> None:
    loader = DataLoader(Numbers(400), batch_size=4)
    with torch.enable_grad():
        for n, _ in enumerate(loader, start=1):
            if n % 3 == 0 or n == len(loader):
                job.shortening.stepped()
    assert n < 100
    assert n % 3 == 100 % 3
    assert job.shortening._loaders[loader].period == 3


def test_steps_after_a_pass_inside_another_belong_to_the_outer(job: Job) -> None:
    outer = DataLoader(Numbers(400), batch_size=4)
    inner = DataLoader(Numbers(40), batch_size=4)
    with torch.enable_grad():
        for n, _ in enumerate(outer, start=1):
            if n == 2:
                given(inner)
            if n == 6:
                break
            if n % 2 == 0:
                job.shortening.stepped()
    assert job.shortening._loaders[outer].period == 2
    assert job.shortening._loaders[inner].period == 0


def test_a_pass_that_was_broken_off_is_followed_by_a_whole_one(job: Job) -> None:
    job.shortening._deadline_ns = 10_000 * SECOND
    loader = DataLoader(
        Numbers(400), batch_size=4, num_workers=1, persistent_workers=True
    )
    for n, _ in enumerate(loader):
        if n == 20:
            break
    assert len(given(loader)) == 100
    job.now, job.shortening._window = 0, None
    job.shortening._deadline_ns = 20 * SECOND
    assert len(given(loader)) < 100


def test_steps_between_passes_belong_to_none(job: Job) -> None:
    job.shortening.stepped()
    loader = DataLoader(Numbers(40), batch_size=4)
    given(loader)
    job.shortening.stepped()
    assert job.shortening._loaders[loader].period == 0


@pytest.mark.usefixtures("job")
def test_short_passes_are_not_even_told_of(tmp_path: Path) -> None:
    assert len(given(DataLoader(Numbers(28), batch_size=4))) == 7
    assert not list(tmp_path.glob("loaders.*"))


def test_passes_are_told_apart_by_what_the_world_did_between(job: Job) -> None:
    loader = DataLoader(Numbers(400), batch_size=4)
    keys = set()
    for met in (0, 0, 5, 5, 5):
        job.met = met
        for _ in loader:
            pass
        keys |= {known.key for known in job.shortening._last.values()}
    job.shortening.joined()
    for _ in range(1):
        for _ in loader:
            pass
    keys |= {known.key for known in job.shortening._last.values()}
    assert len(keys) == 6


@pytest.mark.usefixtures("job")
def test_a_process_without_a_journal_shortens_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RECORDER, "writer", None)
    assert len(given(DataLoader(Numbers(400), batch_size=4))) == 100


def test_a_probe_that_fails_ends_nothing(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise OSError("the disk is gone")

    monkeypatch.setattr(job.shortening._shared(), "settle", broken)
    assert len(given(DataLoader(Numbers(400), batch_size=4))) == 100


@pytest.mark.parametrize(
    ("environment", "here"),
    [
        ({}, True),
        ({"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"}, True),
        ({"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4"}, False),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_SIZE": "8"}, False),
        ({"HOROVOD_LOCAL_SIZE": "2", "HOROVOD_SIZE": "2"}, True),
        ({"HOROVOD_LOCAL_SIZE": "2", "HOROVOD_SIZE": "8"}, False),
        ({"SLURM_NNODES": "2"}, False),
        ({"SLURM_NNODES": "1"}, True),
    ],
)
def test_only_ranks_of_one_machine_can_agree(
    environment: dict[str, str], here: bool
) -> None:
    assert all_ranks_are_here(environment) is here


@pytest.mark.parametrize(
    ("budget", "shortens"), [("5-90", True), ("", False), ("x-y", False), ("5", False)]
)
def test_it_shortens_only_when_told_to(
    monkeypatch: pytest.MonkeyPatch, budget: str, shortens: bool
) -> None:
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NNODES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(BUDGET_VARIABLE, budget)
    assert (of_environment(int, int, bool) is not None) is shortens
