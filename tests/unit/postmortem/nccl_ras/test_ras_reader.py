"""RAS reports, saved or fresh: what is read in them, in both forms."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ras_reports import (
    DEAD,
    LEFT,
    SILENT,
    TEXT,
    communicator,
    report,
    run_of_reports,
)

from distdoctor.model.observations.communicators import (
    AilingMember,
    CommunicatorLook,
    LaunchedCount,
)
from distdoctor.postmortem.job_evidence import Evidence
from distdoctor.postmortem.nccl_ras.ras_reader import reports_in, tell
from distdoctor.postmortem.recognising import gather


def test_json_is_read() -> None:
    (found,) = reports_in(
        report(
            communicator(
                4,
                counts={1: {"AllReduce": 639}},
                missing={3: DEAD},
                status={2: {"async_error": 6}},
            )
        )
    )
    (comm,) = found.communicators.values()
    assert (comm.comm, comm.size, comm.answered) == ("0000000000c0ffee", 4, 3)
    assert {(a.member, a.state, a.error) for a in comm.ailments} == {
        (2, "failed", "remote process error"),
        (3, "dead", ""),
    }
    assert comm.counts == {"AllReduce": {640: ((0, 2), 2), 639: ((1,), 1)}}
    assert comm.processes[3].pid == 1003


@pytest.mark.parametrize(
    ("missing", "state"), [(DEAD, "dead"), (SILENT, "silent"), (LEFT, "left")]
)
def test_ways_to_be_missing(missing: dict[str, bool], state: str) -> None:
    nested = communicator(4, missing={3: missing})
    flat = communicator(4, missing={3: missing})
    (of_flat,) = flat["missing_ranks"]
    of_flat.update(of_flat.pop("status"))
    for reported in (nested, flat):
        run = run_of_reports(report(reported))
        (one,) = run.of(AilingMember, -1)
        assert (one.state, one.known, one.pid) == (state, 3, 1003)


def test_text_is_read() -> None:
    run = run_of_reports(TEXT)
    assert run.world_size == 32
    (look,) = run.of(CommunicatorLook, -1)
    assert (look.comm, look.size, look.answered) == ("0000000000c0ffee", 32, 31)
    (dead,) = run.of(AilingMember, -1)
    assert (dead.member, dead.known, dead.state) == (21, 21, "dead")
    assert (dead.host, dead.pid, dead.device) == ("10.0.0.2", 1021, 5)
    counts = {(c.launched, c.count, c.members) for c in run.of(LaunchedCount, -1)}
    assert counts == {(640, 28, ()), (639, 2, (3, 4)), (0, 1, (7,))}


def test_a_text_that_breaks_off_is_not_read() -> None:
    assert reports_in(TEXT[: TEXT.index(b"Warnings")]) == []


def test_several_reports_in_one_file_are_several_looks() -> None:
    looks = [report(communicator(2), second=n) for n in (20, 10)]
    run = run_of_reports(b"".join(looks))
    assert [look.at_s % 60 for look in run.of(CommunicatorLook, -1)] == [10, 20]
    assert len(reports_in(TEXT + TEXT)) == 2


def test_sorted_and_compact_json_is_read() -> None:
    reported = json.loads(report(communicator(2)))
    assert reports_in(json.dumps(reported, sort_keys=True).encode())
    assert reports_in(json.dumps(reported, separators=(",", ":")).encode())


def test_a_communicator_that_is_just_being_made_is_passed_over() -> None:
    odd = communicator(4, digest="0x2")
    odd["ranks"][1]["rank"] = -7
    twice = communicator(4, digest="0x3")
    twice["ranks"][1]["rank"] = 0
    (found,) = reports_in(report(communicator(4), odd, twice))
    assert list(found.communicators) == ["0000000000c0ffee"]


def test_ranks_of_a_part_are_told_as_ranks_of_the_job() -> None:
    whole = communicator(8, missing={5: DEAD})
    part = communicator(2, missing={1: DEAD}, processes=[3, 5], digest="0x2")
    run = run_of_reports(report(whole, part))
    assert {(one.member, one.known) for one in run.of(AilingMember, -1)} == {
        (5, 5),
        (1, 5),
    }


def test_parts_alone_do_not_tell_ranks_of_the_job() -> None:
    one = communicator(4, missing={3: DEAD})
    other = communicator(4, processes=[4, 5, 6, 7], digest="0x2")
    run = run_of_reports(report(one, other))
    assert run.world_size == 0
    assert [each.known for each in run.of(AilingMember, -1)] == [-1]


def test_nobody_has_left_anything(tmp_path: Path) -> None:
    (tmp_path / "status.json.gz").write_bytes(gzip.compress(report(communicator(2))))
    (tmp_path / "status.txt").write_bytes(TEXT)
    (tmp_path / "broken.json").write_bytes(report(communicator(2))[:-20])
    (tmp_path / "other.json").write_bytes(b'{"communicators": 3}')
    evidence = gather([str(tmp_path)])
    assert len(evidence.sources) == 2
    assert [Path(path).name for path, _ in evidence.unreadable] == ["broken.json"]
    assert [Path(path).name for path, _ in evidence.left_out] == ["other.json"]


@given(st.binary(max_size=400))
def test_any_bytes_are_taken(noise: bytes) -> None:
    tell(reports_in(noise), Evidence())


@given(
    st.sampled_from([TEXT, report(communicator(4, missing={3: DEAD}))]),
    st.lists(st.tuples(st.integers(0, 3000), st.binary(max_size=6)), max_size=6),
)
def test_any_change_of_a_report_is_taken(
    text: bytes, changes: list[tuple[int, bytes]]
) -> None:
    for at, by in changes:
        text = text[:at] + by + text[at + len(by) // 2 :]
    tell(reports_in(text), Evidence())


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["rank", "size", "ranks", "status", "host", "pid"]), inner
        )
    ),
    max_leaves=12,
)


@given(ANYTHING)
def test_any_json_is_taken(reported: object) -> None:
    text = json.dumps({"nccl_version": "2", "communicators": reported}).encode()
    tell(reports_in(text), Evidence())


def test_a_size_that_no_job_has_takes_no_memory() -> None:
    reported = [{"hash": "a", "size": 10**9, "ranks": [{"rank": 0}]}]
    text = json.dumps({"nccl_version": "2", "communicators": reported}).encode()
    (report,) = reports_in(text)
    assert report.communicators == {}
