"""What is seen of what ranks make of evaluations, and what is concluded from it."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset, dataloader

from distdoctor.analysis.metrics.averaged_averages import averaged
from distdoctor.analysis.metrics.partial_results import partial
from distdoctor.journal.assembly import assemble
from distdoctor.journal.folder import Manifest
from distdoctor.journal.writer import JournalWriter
from distdoctor.model.drawing import sketch
from distdoctor.model.observations.metrics import Contributed, Reported
from distdoctor.probes.data import creation_sites
from distdoctor.probes.data.loaders import watch_loaders
from distdoctor.probes.data.samples import SAMPLES
from distdoctor.probes.metrics import evaluations
from distdoctor.probes.metrics.evaluations import METRICS
from distdoctor.probes.recorder import RECORDER

Averages = list[Contributed | Reported]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a rank keeps its journal, whose evaluations are seen."""
    monkeypatch.setattr(RECORDER, "folder", tmp_path)
    monkeypatch.setattr(RECORDER, "writer", JournalWriter(tmp_path, 0, 1, 8 << 20))
    monkeypatch.setattr(RECORDER, "_notes", None)
    iterator = dataloader._BaseDataLoaderIter
    monkeypatch.setattr(iterator, "__next__", iterator.__next__)
    monkeypatch.setattr(logging.Handler, "handle", logging.Handler.handle)
    SAMPLES.reset()
    METRICS.reset()
    creation_sites.install()
    watch_loaders(None)
    evaluations._watch_logging()
    yield tmp_path
    METRICS.reset()


class Output:
    """A stream of Python's own that is watched, and what comes out of it."""

    def __init__(self) -> None:
        self.raw = io.BytesIO()
        self.stream = io.TextIOWrapper(self.raw, write_through=True)
        evaluations._watch_stream(self.stream)

    def print(self, *words: object, end: str = "\n") -> None:
        """As users do, for whom it is the standard output."""
        print(*words, end=end, file=self.stream)

    @property
    def text(self) -> str:
        """All of it."""
        return self.raw.getvalue().decode()


def averages_in(folder: Path) -> Averages:
    run = assemble(folder, Manifest(distdoctor="", launch=[], directory="/"))
    assert not run.partial
    return [*run.of(Contributed, 0), *run.of(Reported, 0)]


def evaluate() -> None:
    for _ in DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2):
        pass


def test_what_is_written_after_an_evaluation_is_told_once(folder: Path) -> None:
    output = Output()
    output.print("before", 0.5)
    evaluate()
    output.print("accuracy", 0.75, end="!\n")
    output.print("loss", 1.5)
    (one,) = averages_in(folder)
    assert isinstance(one, Reported)
    assert (one.passes, one.fraction) == ((0,), True)
    assert output.text == "before 0.5\naccuracy 0.75!\nloss 1.5\n"


def test_a_count_is_a_number_and_a_progress_bar_tells_nothing(folder: Path) -> None:
    output = Output()
    evaluate()
    output.stream.write("\r 50%|####    | 1.5 s")
    assert output.stream.write("nothing at all") == len("nothing at all")
    output.stream.write("3 of 4")
    assert [one.fraction for one in averages_in(folder)] == [False]  # type: ignore[union-attr]
    assert output.text.endswith("3 of 4")


def test_when_training_goes_on_nothing_is_told(folder: Path) -> None:
    output = Output()
    evaluate()
    METRICS.train()  # what backward does first
    output.print(0.5)
    METRICS.contribute(1, [torch.tensor(0.5)], "")
    for _ in DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2):
        METRICS.train()
    output.print(0.5)
    assert not METRICS.passes
    assert [one for one in averages_in(folder) if one.passes] == []
    assert output.text == "0.5\n0.5\n"


def test_what_is_logged_to_any_handler_is_told(folder: Path, tmp_path: Path) -> None:
    handler = logging.FileHandler(tmp_path / "log.txt")
    logger = logging.Logger("of a rank")
    logger.addHandler(handler)
    evaluate()
    logger.info("%.3f right", 0.25)
    handler.close()
    assert [type(one) for one in averages_in(folder)] == [Reported]
    assert (tmp_path / "log.txt").read_text() == "0.250 right\n"


def test_few_numbers_are_told_and_many_are_not(folder: Path) -> None:
    evaluate()
    METRICS.contribute(2, [torch.tensor([0.5, 3.0])], "")
    METRICS.contribute(9, [torch.ones(9)], "")
    METRICS.contribute(0, [torch.ones(2, dtype=torch.int64)], "")
    METRICS.contribute(1, [torch.tensor(float("nan"))], "")
    given = [one.values for one in averages_in(folder) if isinstance(one, Contributed)]
    assert given == [(0.5, 3.0), (), (), ()]


def test_a_stream_that_is_watched_can_be_printed_to_by_compiled_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        print("2.0")  # noqa: T201
        return x * 2

    output = Output()
    monkeypatch.setattr(sys, "stdout", output.stream)
    compiled: Any = torch.compile(doubled, backend="eager")
    evaluate()
    assert compiled(torch.ones(1)).item() == 2
    assert output.text == "2.0\n"
    assert len(averages_in(folder)) == 1


# --- conclusions ---


def exchanged(
    first: str, second: str, op: str = "all_reduce(-)", more: str = ""
) -> Any:
    """Two ranks evaluate 12 and 7 samples, in batches of 4, and exchange numbers."""
    return sketch(
        "\n".join(
            f"rank {rank} | wrap=ddp:a  read(samples=0-{count - 1},contents=1-{count},"
            f"batch=4)@t.py:9  {op}@t.py:12  "
            f"contributed(passes=0,values={values})@t.py:12 {more} leave"
            for rank, count, values in ((0, 12, first), (1, 7, second))
        )
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (11 / 12, 2 / 7),
        (100 * 11 / 12, 200 / 7),
        (1 - 11 / 12, 1 - 2 / 7),
        ("1.37+0.9166666865", "2.41+0.2857142984"),  # a loss and an accuracy
        ("0.9166666865+12.0", "0.2857142984+7.0"),  # the count comes too late
    ],
)
def test_averages_over_shares_are_known(first: object, second: object) -> None:
    (one,) = averaged(exchanged(str(first), str(second)))
    assert one.counts == (12, 7)
    assert one.plain != pytest.approx(one.weighted)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("11.0", "2.0"),
        ("12.71", "9.03"),  # summed losses
        (11 / 19, 2 / 19),  # parts of the average over all
        ("2.75+3.0", "0.5833333135+2.0"),  # sums of batches' averages, and their number
        ("0.5", "0.25"),
        ("1.0", "0.0"),
    ],
)
def test_other_numbers_are_not_taken_for_averages(
    first: object, second: object
) -> None:
    assert not list(averaged(exchanged(str(first), str(second))))


def test_what_was_gathered_is_told_unless_it_can_be_weighted() -> None:
    mean = "0.9166666865", "0.2857142984"
    (one,) = averaged(exchanged(*mean, op="all_gather(1)"))
    assert one.gathered
    counts = "all_gather(1:int64)@t.py:13  contributed(passes=0)@t.py:13"
    assert not list(averaged(exchanged(*mean, op="all_gather(1)", more=counts)))
    assert not list(averaged(exchanged(*mean, op="all_reduce(-,op=max)")))


def test_a_line_that_gives_something_else_at_times_is_not_told() -> None:
    """It was no average then, and is none ever."""
    again = (
        "read(number=1,samples=0-11,contents=1-12,batch=4)@t.py:9  "
        "all_reduce(-)@t.py:12  contributed(passes=1,values=0.911)@t.py:12"
    )
    assert not list(averaged(exchanged(str(11 / 12), str(2 / 7), more=again)))


def shared(*more: str) -> Any:
    """Two ranks evaluate halves, rank 0 tells a figure, and each does more."""
    reported = "reported(passes=0,fraction)@t.py:12"
    return sketch(
        "\n".join(
            f"rank {rank} | wrap=ddp:a read(samples=0-6,contents={first}-{first + 6})"
            f"@t.py:9 {reported if not rank else ''} {more[rank]} leave"
            for rank, first in ((0, 1), (1, 21))
        )
    )


def test_a_figure_of_one_share_is_told() -> None:
    (one,) = partial(shared("barrier", "barrier"))
    assert (one.tellers, one.covered, one.of) == ((0,), 7, 14)
    send = "broadcast(-)@t.py:13 contributed(passes=0)@t.py:13"
    assert list(partial(shared(send, send)))


@pytest.mark.parametrize(
    "more",
    [
        "all_reduce(2)@t.py:13 contributed(passes=0)@t.py:13",
        "all_gather(30:uint8)@t.py:13 contributed(passes=0)@t.py:13",
        "read(number=1,samples=0-13,contents=1-14)@t.py:20",  # all of it, too
    ],
)
def test_a_figure_that_may_be_of_all_is_not_told(more: str) -> None:
    assert not list(partial(shared(more, more)))


@pytest.mark.parametrize(
    "other",
    [
        "reported(passes=0)@t.py:14",
        "written(path=/r1.txt)@t.py:14",
        "stored(file=/r1.pt)@t.py:14",
    ],
)
def test_ranks_that_tell_their_own_are_well(other: str) -> None:
    assert not list(partial(shared(".", other)))
