"""The messages from pytest to its ranks, and the parsing of the marker `ranks`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

LANES = ("auto", "pool", "fresh", "fake")

LAUNCHERS = ("torch", "horovod")

_MOST_RANKS = 1024  # in the lane "fake" they cost only time

PARAMETER = "distdoctor_ranks"
"""Name of the parameter of a test that runs on several numbers of ranks in turn."""

TIMEOUT_INI = "distdoctor_timeout"
SLOTS = "distdoctor_slots"
REPORT = "distdoctor_report"


class MarkerWrong(Exception):
    """The marker `ranks` has invalid arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a test's markers ask for: ranks, backend, device and so on.

    Attributes:
        ranks: Number of ranks.
        backend: Backend of the process group.
        device: "cpu" or "cuda".
        timeout_s: Seconds after which the test is ended.
        lane: How its ranks are started: "pool", "fresh" or "fake".
        launcher: What they have joined: the process group of "torch", or "horovod".
        watch: Whether the probes watch its communication.
        ignore: Codes of findings that do not fail it.
        gpus: Indices of the devices of its ranks, once they are leased.
    """

    ranks: int
    backend: str
    device: str
    timeout_s: float
    lane: str
    launcher: str = "torch"
    watch: bool = True
    ignore: frozenset[str] = frozenset()
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Settings that a rank's process gets once, at its start.

    Attributes:
        options: pytest's options, by name.
        arguments: Arguments that are needed before plugins are loaded.
        sys_path: The value of `sys.path`.
        directory: Where pytest was started.
        log: File for what is printed outside of the tests; none: as it comes.
        port: Port of the pool's store; 0: this rank opens it.
        debug: A test that fails is looked at with pdb.
    """

    options: dict[str, Any]
    arguments: list[str]
    sys_path: list[str]
    directory: str
    log: str
    port: int
    debug: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A test that one rank process is to run.

    Attributes:
        number: Number of the test in this pytest process, from 1.
        nodeid: The test.
        path: Its file.
        following: The test after it (file, nodeid), if its fixtures may stay for it.
        ranks: The ranks that the process runs as, one after the other.
        wanted: What its markers ask for.
        examples: The body is run for each example that is sent, and not at once.
        folder: The record folder; none: it is not watched.
        scratch: Folder of `shared_tmp_path` and `rank_tmp_path`.
        rendezvous: Port of Horovod's rendezvous server; 0: they do not meet by Horovod.
    """

    number: int
    nodeid: str
    path: str
    following: tuple[str, str] | None
    ranks: Sequence[int]
    wanted: Wanted
    folder: Path | None
    examples: bool = False
    scratch: Path = field(default_factory=Path)
    rendezvous: int = 0


def sizes_of(item: pytest.Item | Any) -> list[int]:
    """The numbers of ranks that a test runs on, one after the other.

    Raises:
        MarkerWrong: The marker names none.
    """
    mark = item.get_closest_marker("ranks")
    assert mark is not None
    given = mark.args[0] if mark.args else mark.kwargs.get("n")
    sizes: list[Any] = (
        list(given) if isinstance(given, list | tuple | range) else [given]
    )
    for size in sizes:
        if not isinstance(size, int) or not 1 <= size <= _MOST_RANKS:
            raise MarkerWrong(
                f"@pytest.mark.ranks({given!r}): a number of ranks from 1 to "
                f"{_MOST_RANKS} was expected, or a list of them"
            )
    if not sizes:
        raise MarkerWrong("@pytest.mark.ranks([]) names no number of ranks")
    return sizes


def ranks_of(item: pytest.Item) -> int:
    """How many processes a test on ranks needs at most; 0 for any other test."""
    mark = item.get_closest_marker("ranks")
    if mark is None:
        return 0
    try:
        return 1 if mark.kwargs.get("lane") == "fake" else max(sizes_of(item))
    except MarkerWrong:
        return 0


def wanted_by(item: pytest.Item) -> Wanted:
    """What the markers of a test ask for.

    Raises:
        MarkerWrong: Something that makes no sense.
    """
    sizes = sizes_of(item)
    params = getattr(getattr(item, "callspec", None), "params", {})
    mark = item.get_closest_marker("ranks")
    assert mark is not None
    given = dict(mark.kwargs)
    given.pop("n", None)
    device = given.pop("device", "cpu")
    lane = given.pop("lane", "auto")
    launcher = given.pop("launcher", "torch")
    usual = "nccl" if device == "cuda" and launcher != "horovod" else "gloo"
    backend = given.pop("backend", usual)
    timeout = given.pop("timeout", None)
    timeout_s = float(item.config.getini(TIMEOUT_INI) if timeout is None else timeout)
    if given:
        raise MarkerWrong(
            f"@pytest.mark.ranks has no argument {', '.join(map(repr, given))}; it "
            "takes backend, device, lane, launcher and timeout"
        )
    if launcher not in LAUNCHERS:
        raise MarkerWrong(
            f"launcher={launcher!r}: one of {', '.join(map(repr, LAUNCHERS))} was "
            "expected"
        )
    if launcher == "horovod" and (lane == "fake" or backend != "gloo"):
        raise MarkerWrong(
            "launcher='horovod' has the backend of Horovod's own, and no lane 'fake': "
            "leave out backend and lane"
        )
    if lane not in LANES:
        raise MarkerWrong(
            f"lane={lane!r}: one of {', '.join(map(repr, LANES))} was expected"
        )
    if len(sizes) > 1 and PARAMETER not in params:
        raise MarkerWrong(
            "a list of numbers of ranks needs a test that can be parametrised; tests "
            "of unittest.TestCase cannot"
        )
    watch, ignore = _watching(item)
    return Wanted(
        ranks=params.get(PARAMETER, sizes[0]),
        backend=backend,
        device="cuda" if backend == "nccl" else device,
        timeout_s=timeout_s,
        lane="pool" if lane == "auto" else lane,
        launcher=launcher,
        watch=watch and lane != "fake",
        ignore=ignore,
    )


def _watching(item: pytest.Item) -> tuple[bool, frozenset[str]]:
    """What the marker `distdoctor` says; the closest that says something counts."""
    watch, ignore = True, set()
    for mark in reversed(list(item.iter_markers("distdoctor"))):
        unknown = set(mark.kwargs) - {"watch", "ignore"}
        if unknown or mark.args:
            raise MarkerWrong(
                "@pytest.mark.distdoctor takes ignore=[codes] and watch=True or False"
            )
        watch = bool(mark.kwargs.get("watch", watch))
        ignore |= {str(code).upper() for code in mark.kwargs.get("ignore", ())}
    return watch, frozenset(ignore)
