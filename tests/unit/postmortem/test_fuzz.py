"""Hostile leavings: some by chance, and each that once did harm."""

import json
import pickle
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path

import fuzz
import pytest
from click.testing import CliRunner
from fuzz import TARGETS, InMemory
from hostile_inputs import seeds

from distdoctor.cli import app
from distdoctor.errors import RecordUnreadable
from distdoctor.journal.folder import read_manifest
from distdoctor.journal.packed_texts import members_of
from distdoctor.model.events import MOST_RANKS
from distdoctor.postmortem.flight_recorder import recorder_reader
from distdoctor.postmortem.flight_recorder.creation_order import passed_over
from distdoctor.postmortem.flight_recorder.recorder_files import rank_of
from distdoctor.postmortem.flight_recorder.unpickling import load
from distdoctor.postmortem.job_evidence import Evidence
from distdoctor.postmortem.leavings import Leaving
from distdoctor.postmortem.nccl_logs import nccl_reader
from distdoctor.postmortem.nccl_logs.line_grammar import (
    INTERFACE,
    PEER,
    PREFIX,
    SETTING,
)
from distdoctor.postmortem.stacks import dump_files
from distdoctor.report.json import indented


@pytest.fixture
def handlers() -> Iterator[None]:
    """The fuzzer's alarm goes off in no other test."""
    before = signal.getsignal(signal.SIGVTALRM)
    yield
    signal.signal(signal.SIGVTALRM, before)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("name", TARGETS)
def test_no_hostile_input_does_harm(name: str) -> None:
    tally = fuzz.fuzz(name, seed=5, seconds=1.0, inputs=60)
    assert not tally.failures


def test_a_file_packed_with_damage_is_unreadable_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "job.log.gz"
    path.write_bytes(b"\x1f\x8b\x08\x00" + b"\0" * 6 + b"\xff" * 40)
    with pytest.raises(OSError, match="damaged"):
        Leaving(str(path), 50).head()
    with pytest.raises(zlib.error):
        Leaving(str(path), 50).open().read()


@pytest.mark.parametrize("content", [b'{"schema": "\x9b"}', b'{"a":' + b"[" * 9999])
def test_a_manifest_that_is_no_text_is_unreadable(
    content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(RecordUnreadable):
        read_manifest(tmp_path)


def test_a_few_bytes_of_a_pickle_get_no_gigabytes() -> None:
    memo = b"\x80\x02]r\xff\xff\xff\x03."
    case = {"nccl_trace_rank_0": memo}
    _, _, megabytes = fuzz.failure(TARGETS["dumps"].give, case)
    assert megabytes < fuzz.MEGABYTES


def test_a_damaged_pickle_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    short = b"\x80\x05\x96\xff\xff\xff\xff\0\0\0\0."
    with pytest.raises((pickle.UnpicklingError, MemoryError)):
        load(short)
    assert capfd.readouterr().err == ""


def test_a_number_that_is_none_of_ranks_makes_no_job_of_that_many() -> None:
    assert rank_of("nccl_trace_rank_9999999") is None
    assert rank_of(f"nccl_trace_rank_{MOST_RANKS - 1}") == MOST_RANKS - 1
    group = {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 999999999]"}
    top = {"version": "2.10", "pg_config": {"0": group}, "entries": []}
    evidence = Evidence()
    for content in (pickle.dumps(top, 2), json.dumps(top).encode()):
        recorder_reader.read([InMemory("nccl_trace_rank_0", content)], evidence)
        assert evidence.world_size == 2
    line = (
        b"a:1:2 [0] NCCL INFO comm 0x1 rank 0 nranks 9999999 cudaDev 0 - Init START\n"
    )
    nccl_reader.read([InMemory("a.log", line)], evidence)
    assert evidence.world_size == 2


def test_groups_of_a_damaged_record_are_no_larger_than_a_job() -> None:
    text = "0\nworld\n0\n" + ",".join(["0-9999999999"] * 50)
    with pytest.raises(ValueError, match="ranks"):
        members_of(text)
    assert len(members_of(f"0\nworld\n0\n0-{MOST_RANKS - 1}")) == MOST_RANKS


@pytest.mark.parametrize(
    "line", [b"A" * 60_000, b"a:" * 30_000, b"1:1 " * 15_000, b"INFO" * 15_000]
)
def test_no_line_of_nccl_takes_time_by_the_square_of_its_length(line: bytes) -> None:
    signal.signal(signal.SIGVTALRM, fuzz.the_time_is_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, 2)
    try:
        for expression in (PREFIX, INTERFACE, PEER):
            assert not list(expression.finditer(line + b" NCCL INFO "))
        SETTING.match(b"NCCL_A set to x" + b" " * 60_000 + b"y")
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


@pytest.mark.parametrize("key", ["pid", "os_thread_id"])
def test_a_process_with_an_infinite_number_is_no_dump(key: str) -> None:
    record = {"frames": [], "thread_id": 1, "os_thread_id": 1, key: float("inf")}
    leaving = InMemory("stack-rank0.json", json.dumps([record]).encode())
    assert dump_files.read(leaving) == []


def test_a_setting_is_told_without_its_dot() -> None:
    line = b"h:1:2 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5. \n"
    evidence = Evidence()
    nccl_reader.read([InMemory("a.log", line)], evidence)
    assert "NCCL_IB_HCA=mlx5'" in str(evidence.life)


def test_a_message_cannot_control_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from distdoctor.cli import main

    bad = str(tmp_path / "\x1b]0;owned\x07")
    monkeypatch.setattr("sys.argv", ["distdoctor", "autopsy", bad])
    with pytest.raises(SystemExit):
        main()
    assert "\x1b" not in capsys.readouterr().err
    assert CliRunner().invoke(app, ["autopsy", bad]).exception is not None


def test_json_cannot_control_the_terminal() -> None:
    stated = "a\x7f\x9b31m\x1b"
    text = indented({"said": stated})
    assert all(c.isprintable() or c == "\n" for c in text)
    assert json.loads(text) == {"said": stated}


def test_an_operation_of_no_text_is_read() -> None:
    """A name that is half a surrogate pair cannot be encoded."""
    case = next(iter(seeds("dumps")))
    broken = {
        name: content.replace(b"all_reduce", b"all\xed\xa0\x80duce")
        for name, content in case.items()
    }
    assert broken != case
    assert fuzz.failure(TARGETS["dumps"].give, broken)[0] == ""


@pytest.mark.parametrize("name", ["07", "9" * 5000, "٣"])
def test_a_group_that_is_called_like_a_number_is_counted_among_none(name: str) -> None:
    everyone: tuple[int, ...] = (0, 1)
    reported = {one: {everyone: None} for one in ("0", "1", "2", name)}
    assert passed_over({}, reported) == {}
