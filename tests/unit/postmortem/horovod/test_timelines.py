"""Timelines of Horovod's: who had come to what, and when that proves anything."""

import gzip
import io
import json
import random
from pathlib import Path

import pytest
from autopsies import findings_in, report_on
from horovod_leavings import RECORDED, START, timeline, whole
from hypothesis import given, settings
from hypothesis import strategies as st

from distdoctor.postmortem import trace_blocks
from distdoctor.postmortem.horovod_timeline.negotiations import TimelineEnd, end_of
from distdoctor.postmortem.horovod_timeline.timeline_events import events
from distdoctor.postmortem.horovod_timeline.timeline_reader import recognises
from distdoctor.report.schema import Report

TWO = (*whole("allreduce.a", 1, (0, 1)), *whole("allreduce.b", 2, (1, 0)))
THREE = (*whole("allreduce.a", 1, (0, 1, 2)), *whole("allreduce.b", 2, (1, 2, 0)))


def _end(text: str | bytes) -> TimelineEnd:
    content = text.encode() if isinstance(text, str) else text
    return end_of(events(io.BytesIO(content)))


def _of(folder: Path, *texts: str) -> Report:
    for number, text in enumerate(texts):
        (folder / f"timeline{number}.json").write_text(text)
    return report_on(folder)


def _gaps(report: Report) -> str:
    return " ".join(f"{gap.what}: {gap.why}" for gap in report.not_examined)


RECORDINGS = {
    "healthy": [("barrier.noname", {0})],
    "skip2": [("allreduce.val_loss", {0}), ("barrier.noname", set())],
    "skip3nocache": [("allreduce.val_loss", {0, 1}), ("barrier.noname", set())],
    "barrier3": [("barrier.noname", {0})],
    "latestall3": [("allreduce.loss", {0})],
    "marksbarrier3": [("barrier.noname", {0, 1})],
    "mid2": [],
    "async": [("allreduce.lonely", {0})],
}
"""By program, what was open at the end of its timeline, and who had come."""


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recorded_timeline_tells_who_had_come(name: str) -> None:
    end = _end((RECORDED / f"{name}.json").read_bytes())
    assert [(one.tensor, one.came) for one in end.negotiating] == RECORDINGS[name]


@pytest.mark.parametrize(
    "name", [path.stem for path in sorted(RECORDED.glob("*.json"))]
)
def test_only_time_that_went_by_accuses_anybody(name: str, tmp_path: Path) -> None:
    report = _of(tmp_path, (RECORDED / f"{name}.json").read_text())
    if name == "marksbarrier3":
        assert findings_in(report) == [("DD609", (2,))]
    else:
        assert findings_in(report) == []
        assert report.verdict == "unknown"


def test_who_has_not_come_is_told_though_nothing_is_proved(tmp_path: Path) -> None:
    report = _of(tmp_path, (RECORDED / "skip3nocache.json").read_text())
    assert "all_reduce (allreduce.val_loss)" in _gaps(report)
    assert "ranks {0-1} had come, and rank 2 had not;" in _gaps(report)


def test_of_two_missing_ranks_one_may_have_come_as_the_last_event_is_kept_back(
    tmp_path: Path,
) -> None:
    # The program had rank 2 missing; that rank 1 came is not in the file.
    report = _of(tmp_path, (RECORDED / "barrier3.json").read_text())
    assert "ranks {1-2} had not, but for one at most" in _gaps(report)
    waits = (*THREE, "B allreduce.c 3", "X allreduce.c 3 0", "X allreduce.a 70000 0")
    (finding,) = _of(tmp_path, timeline(*waits, start=START + 10**9)).findings
    assert (finding.code, finding.ranks) == ("DD609", [])
    assert "of ranks {1-2} all but one at most had not" in finding.summary


def test_marks_that_go_on_tell_that_nothing_moved(tmp_path: Path) -> None:
    waits = (*TWO, "B allreduce.c 3", "X allreduce.c 3 0", "i 59000", "i 64000")
    (finding,) = _of(tmp_path, timeline(*waits)).findings
    assert (finding.code, finding.ranks, finding.certainty) == ("DD609", [1], "likely")
    assert "64 s" in finding.summary
    assert "allreduce.c" in finding.summary


@pytest.mark.parametrize(
    "more",
    [
        ("i 40000",),  # not for long
        ("X allreduce.c 64000 1", "i 64100"),  # it came, and the rest is lost
        ("B allreduce.d 63000", "X allreduce.d 63000 1", "i 64000"),  # just moved
    ],
)
def test_a_rank_that_may_be_late_is_not_named(
    more: tuple[str, ...], tmp_path: Path
) -> None:
    waits = (*TWO, "B allreduce.c 3", "X allreduce.c 3 0", *more)
    assert findings_in(_of(tmp_path, timeline(*waits))) == []


def test_a_wait_as_long_as_others_before_is_none_in_vain(tmp_path: Path) -> None:
    slow = ("B allreduce.s 3", "X allreduce.s 3 0", "X allreduce.s 9003 1")
    done = ("E allreduce.s 9003", "O allreduce.s 9003")
    waits = ("B allreduce.c 9100", "X allreduce.c 9100 0", "i 75000")
    assert findings_in(_of(tmp_path, timeline(*TWO, *slow, *done, *waits))) == []


def test_ranks_of_which_nobody_knows_who_is_in_the_process_set_are_not_named(
    tmp_path: Path,
) -> None:
    of_a_set = whole("allreduce.in_set", 3, (0, 1))
    waits = ("B allreduce.c 4", "X allreduce.c 4 0", "X allreduce.c 4 1", "i 70000")
    (finding,) = _of(tmp_path, timeline(*THREE, *of_a_set, *waits)).findings
    assert (finding.code, finding.ranks) == ("DD609", [])
    assert "which ranks are missing is not told" in finding.summary


def test_a_cached_tensor_tells_nobody(tmp_path: Path) -> None:
    waits = ("B allreduce.a 3", "i 70000")
    (finding,) = _of(tmp_path, timeline(*TWO, *waits)).findings
    assert (finding.code, finding.ranks) == ("DD609", [])
    assert "who had come is not told" in finding.summary


def test_ranks_that_wait_elsewhere_are_not_named(tmp_path: Path) -> None:
    waits = ("B allreduce.c 3", "X allreduce.c 3 0", "B barrier.noname 4")
    more = ("X barrier.noname 4 1", "i 70000")
    (finding,) = _of(tmp_path, timeline(*TWO, *waits, *more)).findings
    assert finding.ranks == []
    assert "others wait in barrier (barrier.noname)" in finding.summary


def test_most_that_are_missing_are_not_named(tmp_path: Path) -> None:
    waits = ("B allreduce.c 3", "X allreduce.c 3 0", "i 70000")
    (finding,) = _of(tmp_path, timeline(*THREE, *waits)).findings
    assert finding.ranks == []
    assert "ranks {1-2} had not" in finding.summary


def test_the_last_of_several_timelines_counts(tmp_path: Path) -> None:
    hung = timeline(*TWO, "B allreduce.c 3", "X allreduce.c 3 0", "i 70000")
    assert findings_in(_of(tmp_path, hung)) == [("DD609", (1,))]
    later = timeline(*TWO, start=START + 10**9)
    report = _of(tmp_path, hung, later)
    assert findings_in(report) == []
    assert "it is of an earlier job" in str(report.remarks)


def test_timelines_without_a_beginning_are_not_mixed(tmp_path: Path) -> None:
    hung = timeline(*TWO, "B allreduce.c 3", "X allreduce.c 3 0", "i 70000")
    hung = hung.replace("start_time_since_epoch_in_micros", "name")
    assert findings_in(_of(tmp_path, hung, hung + " ")) == []


def test_a_rank_that_died_explains_who_is_missing(tmp_path: Path) -> None:
    hung = timeline(*TWO, "B allreduce.c 3", "X allreduce.c 3 0", "i 70000")
    (tmp_path / "job.out").write_text((RECORDED / "killed.out").read_text())
    assert findings_in(_of(tmp_path, hung)) == [("DD202", (1,))]


def test_a_packed_timeline_that_is_torn_is_read_as_far_as_it_goes(
    tmp_path: Path,
) -> None:
    rng = random.Random(1)
    names = [f"allreduce.{rng.random()}" for _ in range(500)]
    ops = [event for n, name in enumerate(names) for event in whole(name, n, (0, 1))]
    packed = gzip.compress(timeline(*ops).encode())
    (tmp_path / "timeline.json.gz").write_bytes(packed[: len(packed) // 2])
    report = report_on(tmp_path)
    assert report.verdict == "unknown"
    assert "read up to where it is damaged" in str(report.remarks)


def test_a_file_is_a_timeline_by_its_content() -> None:
    assert recognises("trace", timeline(*TWO).encode())
    profile = b'{"traceEvents": [{"ph": "X", "name": "aten::add", "pid": 1}]}'
    assert not recognises("timeline.json", profile)
    assert not recognises("timeline.json", b"")


def test_a_timeline_that_a_viewer_saved_is_read() -> None:
    text = timeline(*TWO, "B allreduce.c 3", "X allreduce.c 3 0")
    saved = json.dumps({"traceEvents": json.loads(text)}, indent=1)
    assert _end(saved).negotiating == _end(text).negotiating != []


def test_marks_cost_no_memory_and_keep_their_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trace_blocks, "BLOCK_BYTES", 4096)
    text = timeline(*TWO, "B allreduce.c 3", *(f"i {n}" for n in range(4, 3000)))
    found = list(events(io.BytesIO(text.encode())))
    assert len(found) < 300
    end = end_of(found)
    assert (end.last, end.last_is_mark, end.events) == (2_999_000, True, 13)


@pytest.mark.parametrize("size", [64, 100, 257, 4096])
def test_blocks_of_any_size_give_the_same(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = (RECORDED / "join2.json").read_bytes()
    expected = list(events(io.BytesIO(content)))
    monkeypatch.setattr(trace_blocks, "BLOCK_BYTES", size)
    assert list(events(io.BytesIO(content))) == expected


SOME = (RECORDED / "join2.json").read_bytes()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(SOME)), st.integers(0, len(SOME)), st.binary(max_size=30))
def test_a_timeline_torn_anywhere_is_read(a: int, b: int, between: bytes) -> None:
    torn = _end(SOME[: min(a, b)] + between + SOME[max(a, b) :])
    assert torn.events <= _end(SOME).events + 1


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("BEXMi"),
            st.sampled_from(
                ["NEGOTIATE_ALLREDUCE", "ALLREDUCE", "0", "1", "-1", "9" * 9]
            ),
            st.integers(-(10**20), 10**20) | st.just(1.5) | st.none(),
            st.integers(-1, 3) | st.text(max_size=2),
        ),
        max_size=40,
    )
)
def test_events_in_any_order_do_no_harm(
    made: list[tuple[str, str, object, object]],
) -> None:
    keys = ("ph", "name", "ts", "pid")
    end = _end(json.dumps([dict(zip(keys, one, strict=True)) for one in made]))
    assert len(end.negotiating) <= 4
    assert end.ranks <= 2


def test_what_has_no_end_of_an_event_is_not_kept() -> None:
    class Endless(io.RawIOBase):
        given = 0

        def read(self, size: int = -1) -> bytes:
            self.given += size
            return b"{" * size if self.given < 40 << 20 else b""

    assert list(events(Endless())) == []  # type: ignore[arg-type]
