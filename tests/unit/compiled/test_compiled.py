"""The compiled part does what the Python beside it does."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distdoctor.compiled import HOT
from distdoctor.journal import writer
from distdoctor.journal.format import RECORD_BYTES, RECORD_FIELDS
from distdoctor.journal.writer import JournalWriter
from distdoctor.probes import call_sites
from distdoctor.probes.collectives import board
from distdoctor.probes.collectives.board import Board

SMALL_BYTES = 16 * 1024

FIELDS = (
    *("kind", "thread", "call", "ordinal", "group", "signature", "op"),
    *("reduce_op", "flags", "site", "spec", "peer", "nodes"),
)
"""Of a record, in the order in which `put` takes them."""

CODES = dict(RECORD_FIELDS)
LIMITS = {
    "Q": (0, 2**64 - 1),
    "I": (0, 2**32 - 1),
    "B": (0, 255),
    "i": (-(2**31), 2**31 - 1),
}

values = st.tuples(*(st.integers(*LIMITS[CODES[name]]) for name in FIELDS))

here = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def hot() -> Any:
    if HOT is None:
        pytest.skip("installed without a compiler, or switched off")
    return HOT


def records(made: JournalWriter) -> list[bytes]:
    """What its ring holds, but for the time."""
    end = made._ring + made._capacity * RECORD_BYTES
    ring = bytes(made._map[made._ring : end])
    return [
        ring[at : at + 8] + ring[at + 16 : at + RECORD_BYTES]
        for at in range(0, len(ring), RECORD_BYTES)
    ]


def both(folder: Path, hot: ModuleType, use: Callable[[JournalWriter], object]) -> None:
    """Use a journal that C writes and one that Python writes; they must be equal."""
    found = []
    for number, which in enumerate((hot, None)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(writer, "HOT", which)
            made = JournalWriter(folder, number, 2, SMALL_BYTES)
        assert (made.ring is None) is (which is None)
        use(made)
        found.append((records(made), bytes(made._map[48:64])))
        made.path.unlink()
    assert found[0] == found[1]


@here
@given(written=st.lists(st.tuples(values, st.integers(1, len(FIELDS))), max_size=8))
def test_records_are_the_same_bytes(
    tmp_path: Path, hot: ModuleType, written: list[tuple[tuple[int, ...], int]]
) -> None:
    def use(made: JournalWriter) -> None:
        for given_values, positional in written:
            named = dict(
                zip(FIELDS[positional:], given_values[positional:], strict=True)
            )
            made.put(*given_values[:positional], **named)
            made.mark(*given_values[:3])
            made.mark(*given_values[:5])

    both(tmp_path, hot, use)


def test_a_ring_that_is_full_begins_again(tmp_path: Path, hot: ModuleType) -> None:
    def use(made: JournalWriter) -> None:
        for call in range(made._capacity * 2 + 3):
            made.put(1, 7, call)

    both(tmp_path, hot, use)


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("side", [0, 1])
def test_what_does_not_fit_is_refused(
    tmp_path: Path, hot: ModuleType, name: str, side: int
) -> None:
    limit = LIMITS[CODES[name]][side] + (-1, 1)[side]
    made = JournalWriter(tmp_path, 0, 2, SMALL_BYTES)
    assert isinstance(made.ring, hot.Ring)
    before = records(made)
    given_values = [limit if name == one else 1 for one in FIELDS]
    with pytest.raises(OverflowError):
        made.put(*given_values)
    with pytest.raises(OverflowError):
        made.put(
            given_values[0], **dict(zip(FIELDS[1:], given_values[1:], strict=True))
        )
    with pytest.raises(TypeError):
        made.put(1, nonsense=2)
    with pytest.raises(TypeError):
        made.put(1, 2, thread=3)
    with pytest.raises(TypeError):
        made.put(*range(len(FIELDS) + 1))
    assert records(made) == before


@pytest.mark.parametrize(
    "arguments",
    [(0, 4, 0), (0, 0, 8), (8, 1, 121), (4, 1, 0), (-8, 1, 0), (0, 1, 128), (0, 1, -8)],
)
def test_a_ring_lies_within_its_memory(
    hot: ModuleType, arguments: tuple[int, int, int]
) -> None:
    with pytest.raises(ValueError, match="memory"):
        hot.Ring(bytearray(128), *arguments)


@here
@given(
    calls=st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 200), st.integers(0, 3)),
        max_size=40,
    )
)
def test_boards_agree_and_disagree_alike(
    tmp_path: Path, hot: ModuleType, calls: list[tuple[int, int, int]]
) -> None:
    found = []
    for which in (hot, None):
        folder = tmp_path / str(which is None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(board, "HOT", which)
            patch.setattr(board, "_LARGEST_BYTES", 1)  # rows are used again soon
            boards = [Board(folder, "g", 3, member) for member in range(3)]
        answers = []
        for member, ordinal, signature in calls:
            boards[member].write(ordinal, signature)
            answers.append([one.agrees(ordinal, signature) for one in boards])
        found.append((answers, bytes(boards[0]._words)))
        for file in folder.iterdir():
            file.unlink()
    assert found[0] == found[1]


def test_a_board_lies_within_its_memory(hot: ModuleType) -> None:
    for arguments in ((9, 1, 0), (1, 9, 0), (1, 1, 1), (0, 1, 0), (1, 1, -1)):
        with pytest.raises(ValueError, match="memory"):
            hot.Cells(bytearray(128), *arguments)
    with pytest.raises(OverflowError):
        hot.Cells(bytearray(128), 1, 8, 0).write(1 << 64, 1)


def deep(frames: int, ask: Callable[[], Any]) -> Any:
    return ask() if not frames else deep(frames - 1, ask)


def test_stacks_are_told_apart_by_their_lines(hot: ModuleType) -> None:
    found = [hot.stack(0) for _ in range(2)]
    assert found[0] == found[1]
    assert hot.stack(0) != found[0]
    assert deep(2, lambda: hot.stack(0)) != deep(3, lambda: hot.stack(0))
    assert len(deep(2, lambda: hot.stack(2))) + 16 == len(deep(2, lambda: hot.stack(0)))
    assert deep(60, lambda: hot.stack(0)) is None
    assert hot.stack(10_000) == b""


def test_the_way_to_a_line_is_the_same(
    hot: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ways(which: ModuleType | None) -> list[tuple[str, str, int]]:
        monkeypatch.setattr(call_sites, "HOT", which)
        monkeypatch.setattr(call_sites, "_stacks", {})
        asked = []
        for _ in range(2):
            asked.append(call_sites.layered_way(0))
            asked += [
                deep(frames, lambda: call_sites.layered_way(1)) for frames in (1, 60)
            ]
        return asked

    assert ways(hot) == ways(None)


class Stop(Exception):
    """What a user's signal handler raises."""


class Calls:
    """An operator's calls, with stand-ins for all that is asked about them."""

    def __init__(self, hot: ModuleType, folder: Path, **others: Any) -> None:
        self.seen: list[Any] = []
        self.lost: list[str] = []
        self.writer: Any = JournalWriter(folder, 0, 2, SMALL_BYTES)
        self.group = SimpleNamespace(
            number=3, ordinal=0, board=Board(folder / "boards", "g", 1, 0)
        )
        self.recorder: Any = SimpleNamespace(
            writer=self.writer, calls=0, lock=Lock(), thread=lambda: 11
        )
        self.kept: dict[Any, Any] = {}
        self.groups: dict[str, Any] = {"world": self.group}
        way = {
            "entering": self.entering,
            "kept": self.kept,
            "recorder": self.recorder,
            "groups": self.groups,
            "unbox": lambda boxed: SimpleNamespace(group_name=boxed),
            "read": lambda args: ("float32", len(args[1])),
            "asked": lambda boxed, caller: boxed if caller else 255,
            "task": lambda: -1,
            "nodes": lambda: (1 << 31) + 5,
            "pending": lambda *given: SimpleNamespace(given=given),
            "forget": lambda: None,
            "count": lambda *given: self.seen.append(("count", *given)),
            "look": lambda _, *given: self.seen.append(("look", *given)),
            "refused": lambda *given: self.seen.append(("refused", *given)),
            "lose": self.lose,
            "is_interruption": lambda error: isinstance(error, Stop),
        }
        places = {"at_group": 0, "at_read": 1, "at_reduce": 2, "at_peer": 3}
        places |= {"at_async": 4, "code": 6, "enter": 1, "refuse": 7, "needs_all": 1}
        self.enter: Any = hot.Repeats(SimpleNamespace(**way | places | others))

    def entering(self, args: tuple[Any, ...], key: Any) -> str:
        """What is done in Python, for a call that is new."""
        self.seen.append(("python", key is not None))
        if key is not None:
            assert key[1:] == (("float32", len(args[1])), args[2], args[3])
            self.kept[key] = (90, 80, 4, args[2], args[3], 0, 70, 0, "here", ())
        return "python"

    def lose(self, probe: str, error: BaseException) -> None:
        """As `lose_or_raise`."""
        if isinstance(error, Stop):
            raise error
        self.lost.append(f"{probe}: {error!r}")

    def make(self, *, asynchronous: bool = False, root: int = -1) -> Any:
        """Make a call."""
        return self.enter(("world", [1, 2], 4, root, asynchronous))


class Lock:
    """A lock that knows whether it is held."""

    held = False

    def acquire(self) -> None:
        """Take it."""
        assert not self.held
        self.held = True

    def release(self) -> None:
        """Let it go."""
        assert self.held
        self.held = False


def test_a_call_that_is_made_again_is_recorded_without_python(
    hot: ModuleType, tmp_path: Path
) -> None:
    calls = Calls(hot, tmp_path)
    results = [calls.make() for _ in range(3)]
    assert results[0] == "python"
    assert [one.given for one in results[1:]] == [
        (1, calls.group, 1, 0),
        (2, calls.group, 2, 0),
    ]
    assert all(one.needs_all is True for one in results[1:])
    told = [("count", 4, [1, 2], 0, False), ("look", [1, 2], 4, "here", 0)]
    assert calls.seen == [("python", True), *told, *told]
    expected = JournalWriter(tmp_path, 1, 2, SMALL_BYTES)
    for number in (1, 2):
        expected.put(1, 11, number, number, 3, 90, 6, 4, 0, 70, 80, -1, 5)
    assert records(calls.writer) == records(expected)
    assert not calls.recorder.lock.held


def test_another_line_or_root_is_another_call(hot: ModuleType, tmp_path: Path) -> None:
    calls = Calls(hot, tmp_path)
    for root in (0, 1, 0):
        calls.make(root=root)
    calls.make(root=0)
    assert calls.seen.count(("python", True)) == 3


def test_what_is_out_of_the_ordinary_is_for_python(
    hot: ModuleType, tmp_path: Path
) -> None:
    def asked(calls: Calls, **how: Any) -> list[Any]:
        calls.seen.clear()
        for _ in range(2):  # for one line
            assert calls.make(**how) == "python"
        return calls.seen

    python = [("python", False)] * 2
    calls = Calls(hot, tmp_path)
    assert asked(calls, asynchronous=True) == python
    try:
        raise ValueError
    except ValueError:
        assert asked(calls) == python
    calls.groups["world"] = None
    assert asked(calls) == python
    del calls.groups["world"]
    assert asked(calls) == python
    calls.recorder.writer = None
    assert asked(calls) == python
    calls.recorder.writer = SimpleNamespace(ring=None)
    assert asked(calls) == python
    assert asked(Calls(hot, tmp_path, task=lambda: 3)) == python
    assert asked(Calls(hot, tmp_path, read=lambda _: 1 / 0)) == python
    assert asked(Calls(hot, tmp_path, read=lambda _: [])) == python  # no hash
    short = Calls(hot, tmp_path)
    assert short.enter(("world", [1], 4)) == "python"
    assert short.seen == [("python", False)]


def _stop(*_: object) -> None:
    raise Stop


def _fail(*_: object) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("where", ["read", "asked", "unbox", "task", "count", "look"])
def test_what_a_signal_handler_raises_goes_on(
    hot: ModuleType, tmp_path: Path, where: str
) -> None:
    calls = Calls(hot, tmp_path, **{where: _stop})
    with pytest.raises(Stop):
        again(calls)
    assert not calls.recorder.lock.held


@pytest.mark.parametrize("where", ["count", "look"])
def test_a_fault_of_those_who_look_costs_no_call(
    hot: ModuleType, tmp_path: Path, where: str
) -> None:
    calls = Calls(hot, tmp_path, **{where: _fail})
    found = [calls.make() for _ in range(2)]
    assert found[1].given == (1, calls.group, 1, 0)
    assert calls.lost == ["counting: ZeroDivisionError()"]


def test_a_fault_while_a_call_is_counted_is_not_hidden(
    hot: ModuleType, tmp_path: Path
) -> None:
    calls = Calls(hot, tmp_path)
    calls.make()
    calls.group.board = SimpleNamespace(write=_fail, agrees=_fail)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            again(calls)
    assert not calls.recorder.lock.held


def again(calls: Calls) -> None:
    """Two calls of one line, of which the second is known."""
    for _ in range(2):
        calls.make()


def test_a_call_that_the_others_do_not_make_is_held(
    hot: ModuleType, tmp_path: Path
) -> None:
    calls = Calls(hot, tmp_path)
    calls.group.board = SimpleNamespace(
        write=lambda *_: None, agrees=lambda *given: given != (2, 90)
    )
    for _ in range(3):
        calls.make()
    assert ("refused", 11, 2, 2, 3) in calls.seen
    kinds = [one[24] for one in records(calls.writer)]
    assert kinds[:3] == [1, 7, 0]


def test_it_is_let_go_with_what_it_holds(hot: ModuleType, tmp_path: Path) -> None:
    calls = Calls(hot, tmp_path)
    again(calls)
    gone = weakref.ref(calls)
    calls.kept["cycle"] = calls.enter
    del calls
    gc.collect()
    assert gone() is None


def test_it_can_be_switched_off() -> None:
    code = "from distdoctor.compiled import HOT; print(HOT)"
    asked = subprocess.run(
        [sys.executable, "-c", code],
        env={"DISTDOCTOR_INTERPRETED": "1", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert asked.stdout == "None\n"
