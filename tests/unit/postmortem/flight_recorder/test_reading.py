"""Reading dumps: nothing that is in a file runs, raises, or takes all memory."""

import pickle
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorder_dumps import Simulation, Style, dumps, fsdp, write

from distdoctor.judging import judge_run
from distdoctor.postmortem.evidence_run import manifest_of, run_of
from distdoctor.postmortem.flight_recorder import many_dumps, recorder_reader
from distdoctor.postmortem.flight_recorder.alike_files import model_of
from distdoctor.postmortem.flight_recorder.decoding import Dump, dump_of, loaded
from distdoctor.postmortem.flight_recorder.entry_columns import EntryTables
from distdoctor.postmortem.flight_recorder.frames import chain_of
from distdoctor.postmortem.flight_recorder.recorder_files import rank_of
from distdoctor.postmortem.flight_recorder.unpickling import NotPlainData, load
from distdoctor.postmortem.job_evidence import Evidence
from distdoctor.postmortem.leavings import find
from distdoctor.postmortem.recognising import gather


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("dumps")
    job = fsdp(16, 3)
    write(made, dumps(job, Simulation(job, 1), Style(timing=True)), Style())
    return made


def test_only_plain_data_is_loaded() -> None:
    assert load(pickle.dumps({"a": [1, (2.5, None, True)]}, 2)) == {
        "a": [1, (2.5, None, True)]
    }
    with pytest.raises(NotPlainData, match=r"collections\.OrderedDict"):
        load(b"\x80\x02ccollections\nOrderedDict\n)R.")


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x80\x02]r\xff\xff\xff\x7f.",  # puts it at place two thousand million
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.",  # a text of 2**63 bytes
        b"\x80\x02](" + b"\x86" * 4 + b".",
        b"\x80\x02Q.",  # an object from elsewhere
    ],
)
def test_a_few_bytes_cannot_ask_for_all_memory(bomb: bytes) -> None:
    begun = time.monotonic()
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever: it ends, and soon
        load(bomb)
    assert time.monotonic() - begun < 10


def test_what_is_shared_is_not_written_out_for_ever(tmp_path: Path) -> None:
    shape: object = [1]
    for _ in range(60):
        shape = [shape, shape]
    entry = {
        "record_id": 0,
        "collective_seq_id": 1,
        "profiling_name": "nccl:all_reduce",
        "process_group": ("0", "default_pg"),
        "input_sizes": shape,
    }
    full: dict[str, object] = dict.fromkeys(
        ["p2p_seq_id", "time_created_ns", "time_discovered_started_ns"], 0
    )
    full |= dict.fromkeys(["time_discovered_completed_ns", "retired", "is_p2p"], 0)
    full |= {"state": "scheduled", "output_sizes": [], "input_dtypes": []}
    full |= {"output_dtypes": []}
    top = {"pg_config": {}, "entries": [{**full, **entry}]}
    (tmp_path / "fr_rank_0").write_bytes(pickle.dumps(top, 2))
    begun = time.monotonic()
    gather([str(tmp_path)])
    assert time.monotonic() - begun < 60


@settings(max_examples=15)
@given(st.data())
def test_no_change_of_a_dump_makes_anything_raise(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    made = tmp_path_factory.mktemp("changed")
    for file in sorted(folder.iterdir())[:4]:
        content = bytearray(file.read_bytes())
        for _ in range(data.draw(st.integers(0, 4))):
            at = data.draw(st.integers(0, len(content) - 1))
            content[at] = data.draw(st.integers(0, 255))
        (made / file.name).write_bytes(bytes(content))
    _judge(made)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=15)
@given(st.data())
def test_no_value_in_a_dump_makes_anything_raise(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    made = tmp_path_factory.mktemp("odd")
    for file in sorted(folder.iterdir())[:3]:
        top = pickle.loads(file.read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            entry = data.draw(st.sampled_from(top["entries"]))
            entry[data.draw(st.sampled_from(sorted(entry)))] = data.draw(_VALUES)
        if data.draw(st.booleans()):
            key = data.draw(st.sampled_from(sorted(set(top) - {"entries"})))
            top[key] = data.draw(_VALUES)
        (made / file.name).write_bytes(pickle.dumps(top, 2))
    _judge(made)


def _judge(folder: Path) -> None:
    evidence = gather([str(folder)])
    manifest = manifest_of(evidence, [str(folder)], str(folder))
    report = judge_run(run_of(evidence), manifest).report
    assert report.checks is not None
    assert report.checks.crashed == []


def _dump(content: bytes, tables: EntryTables) -> Dump:
    return dump_of(loaded(content), tables, len(content))


def test_a_file_that_differs_in_numbers_alone_is_read_alike(folder: Path) -> None:
    files = [file.read_bytes() for file in sorted(folder.iterdir())]
    tables = EntryTables()
    top = loaded(files[0])
    model = model_of(files[0], top["entries"], _dump(files[0], tables))
    assert model is not None
    read = 0
    for content in files:
        known = model.read(content)
        if known is not None:
            read += 1
            plain = _dump(content, tables)
            assert (known.entries == plain.entries).all()
            assert (known.times == plain.times).all()
            assert known.members == plain.members
    assert read > 1


def test_a_file_that_differs_in_more_is_not_taken_for_the_same(folder: Path) -> None:
    content = next(folder.iterdir()).read_bytes()
    model = model_of(content, loaded(content)["entries"], _dump(content, EntryTables()))
    assert model is not None
    for old, new in ((b"BFloat16", b"BFloat19"), (b"completed", b"scheduled")):
        assert model.read(content.replace(old, new)) is None


def test_several_processes_read_the_same_as_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = run_of(gather([str(folder)]))
    monkeypatch.setattr(many_dumps, "_WORTH_PROCESSES_BYTES", 0)
    monkeypatch.setattr(many_dumps, "_WORTH_A_MODEL", 1000)
    monkeypatch.setattr(many_dumps, "_FILES_AT_ONCE", 3)
    monkeypatch.setattr(many_dumps, "processors", lambda: 2)
    together = run_of(gather([str(folder)]))
    assert alone == together


def test_what_the_calls_are_is_left_to_another_source(folder: Path) -> None:
    evidence = Evidence()
    known = run_of(gather([str(folder)]))
    evidence.columns = type(evidence.columns)(
        known.calls, known.groups, known.sites, known.callers, known.specs
    )
    before = evidence.columns
    recorder_reader.read(list(find([str(folder)])), evidence)
    assert evidence.columns is before


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_12", 12),
        ("comm_lib_trace_rank_node07_3", 3),
        ("fr-host9-0.json", 0),
        ("fr_rank_4.pkl.gz", 4),
        ("rank5_trace.json", 5),
        ("r3.fr_dump", 3),
        ("rank0_of_8", 0),
        ("node-x-10.trace", 10),
        ("trace_of_7_ranks", None),
        ("nccl_trace_rank_", None),
        ("nccl_trace_rank_9999999", None),
    ],
)
def test_the_rank_is_told_by_the_name(name: str, rank: int | None) -> None:
    assert rank_of(f"/dumps9/{name}") == rank


def test_lines_of_libraries_are_left_out() -> None:
    stack = [
        {"name": "f", "filename": "/x/site-packages/torch/a.py", "line": 1},
        {"name": "c10d::f", "filename": "??", "line": 0},
        {"name": "step", "filename": "/job/train.py", "line": 7},
        "no frame",
    ]
    assert [str(place) for place in chain_of(stack)] == ["/job/train.py:7"]
    packed = [{"name": "s", "filename": "/x/site-packages/megatron/s.py", "line": 3}]
    assert [str(place) for place in chain_of(packed)] == [
        "/x/site-packages/megatron/s.py:3"
    ]
    assert chain_of(17) == ()
