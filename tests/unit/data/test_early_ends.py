"""Whether a loop can do with fewer batches: a `for` can, who calls `next` cannot."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distdoctor.probes.data.early_ends import may_end_early


class Loader:
    """Asks before each batch whether it may end; like torch's, it is no user's code."""

    def __init__(self) -> None:
        self.answers: list[bool] = []
        names: dict[str, Any] = {"ask": self.ask}
        text = "def __next__(self):\n    return ask()"
        exec(compile(text, "<torch>", "exec"), names)
        self.of_torch = type("OfTorch", (), {"__iter__": lambda me: me, **names})

    def ask(self) -> int:
        """Give two batches."""
        # Two frames above stands whoever iterates: no file of the user's lies between.
        caller = sys._getframe(2)
        self.answers.append(may_end_early(caller))
        if len(self.answers) > 2:
            raise StopIteration
        return 1

    def __iter__(self) -> Iterator[int]:
        return self.of_torch()  # type: ignore[no-any-return]


def plain(loader: Loader) -> None:
    for _ in loader:
        pass


def enumerated(loader: Loader) -> None:
    for _n, _batch in enumerate(zip(loader, [1, 2, 3], strict=False)):
        pass


def comprehended(loader: Loader) -> None:
    [batch for batch in loader]  # noqa: C416


def own_generator(loader: Loader) -> None:
    def twice() -> Iterator[int]:
        for batch in loader:
            yield 2 * batch

    for _ in twice():
        pass


def delegating(loader: Loader) -> None:
    def whole() -> Iterator[int]:
        yield from loader

    for _ in whole():
        pass


def stepped(loader: Loader) -> None:
    batches = iter(loader)
    next(batches)


def stepped_generator(loader: Loader) -> None:
    next(batch for batch in loader)


def wrapped(loader: Loader) -> None:
    class Prefetcher:
        def __init__(self) -> None:
            self.batches = iter(loader)

        def __iter__(self) -> Prefetcher:
            return self

        def __next__(self) -> int:
            return next(self.batches)

    for _ in Prefetcher():
        pass


def listed(loader: Loader) -> None:
    list(loader)


LIBRARY = """
def bar(loader):
    for batch in loader:
        yield batch

def ahead(loader):
    batches = iter(loader)
    try:
        while True:
            yield next(batches)
    except StopIteration:
        pass

def fit(loader):
    for batch in loader:
        pass
"""


@pytest.fixture
def library(tmp_path: Path) -> dict[str, Any]:
    """Functions of an installed package."""
    file = tmp_path / "site-packages" / "bar.py"
    names: dict[str, Any] = {}
    exec(compile(LIBRARY, str(file), "exec"), names)
    return names


@pytest.mark.parametrize(
    "job",
    [plain, enumerated, comprehended, own_generator, delegating],
    ids=lambda job: job.__name__,
)
def test_a_loop_that_iterates_may_end_early(job: Any) -> None:
    loader = Loader()
    job(loader)
    assert loader.answers == [True] * 3


@pytest.mark.parametrize(
    "job", [stepped, stepped_generator, wrapped, listed], ids=lambda job: job.__name__
)
def test_who_steps_may_have_counted(job: Any) -> None:
    loader = Loader()
    job(loader)
    assert loader.answers
    assert not any(loader.answers)


def through(bar: Any, loader: Loader) -> None:
    for _ in bar(loader):
        pass


def stepping(bar: Any, loader: Loader) -> None:
    next(bar(loader))


@pytest.mark.parametrize("name", ["bar", "ahead"])
def test_a_librarys_generator_hands_the_end_on(
    library: dict[str, Any], name: str
) -> None:
    loader = Loader()
    through(library[name], loader)
    assert loader.answers == [True] * 3
    loader = Loader()
    stepping(library[name], loader)
    assert loader.answers == [False]


def test_what_a_librarys_own_loop_does_is_not_known(library: dict[str, Any]) -> None:
    loader = Loader()
    library["fit"](loader)
    assert loader.answers == [False] * 3


def test_without_a_loop_nothing_may_end() -> None:
    assert not may_end_early(None)
