"""Records that somebody made to do harm: each is told in a sentence, and soon."""

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType

import fuzz
import fuzz_records
import hostile_records
import pytest

from distdoctor.analysis.deadlock.wait_for_graph import standstill
from distdoctor.errors import DistdoctorError, JournalUnreadable, RecordUnreadable
from distdoctor.journal import folder as record
from distdoctor.journal.assembly import read_run
from distdoctor.journal.event_text import event_text
from distdoctor.journal.folder import Manifest, as_text, read_exits
from distdoctor.journal.format import HEADER, HEADER_FIELDS, RecordKind
from distdoctor.journal.layout import EXITS_FILE
from distdoctor.journal.notes import NotesWriter, notes_of
from distdoctor.journal.packed_texts import group_text
from distdoctor.journal.writer import JournalWriter
from distdoctor.judging import judge
from distdoctor.model.events import MOST_RANKS, Left, Observation, Started, Wrapped
from distdoctor.model.observations.optimizer_step import Cycle
from distdoctor.model.observations.replicas import Trained, Weights
from distdoctor.model.operations import CODE_OF, NO_REDUCE_OP, signature

WORLD = group_text("0", "default_pg", 0, (0, 1))
SITE = "/job/t.py\n7\ntrain"


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """Nothing may take longer, also if it only waits."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def write_rank(
    folder: Path,
    rank: int = 0,
    *,
    call: int = 1,
    other: int = 0,
    group: str = WORLD,
    spec: str = "float32 4",
    peer: int = -1,
    ordinal: int = 1,
    notes: tuple[Observation, ...] = (),
) -> Path:
    """A journal of two ranks' job with one call, and some notes."""
    writer, me = JournalWriter(folder, rank, 2, 64 * 1024), os.getpid()
    for joined in (False, True):
        started = event_text(Started(world_size=2, joined=joined))
        writer.put(RecordKind.LIFE, me, spec=writer.intern(started))
    site, code = writer.intern(SITE), CODE_OF["all_reduce"]
    mark = signature(code, NO_REDUCE_OP, -1, (), ())
    writer.put(
        *(RecordKind.ENTER, me, call, ordinal, writer.intern(group), mark, code, 0, 0),
        *(site, writer.intern(spec), peer, 0),
    )
    if other:
        writer.put(RecordKind.ENTER, me, other, 2, writer.intern(group), mark, code)
    for kind in (RecordKind.RETURN, RecordKind.WAIT, RecordKind.WOKE):
        writer.put(kind, me, call)
    notes_of(writer.path).unlink(missing_ok=True)
    told = NotesWriter(writer.path)
    for note in notes:
        begin, size = told.add(note)
        writer.put(RecordKind.NOTE, me, 0, size, signature=begin, site=site)
    told.close()
    writer.step()
    writer.put(RecordKind.LIFE, me, spec=writer.intern(event_text(Left())))
    writer.end()
    return writer.path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A record of a job that went well."""
    manifest = Manifest(
        distdoctor="0.1.0", launch=["t.py"], directory="/job", ranks=2, exit_code=0
    )
    record.write(tmp_path, record.MANIFEST, manifest)
    record.write(tmp_path, record.SOURCES, {"t.py": "x = 1\n"})
    record.write(tmp_path, record.STACKS, [])
    (tmp_path / EXITS_FILE).write_text('{"pid": 7, "status": 0}\n')
    for rank in (0, 1):
        write_rank(tmp_path, rank)
    return tmp_path


def gaps(folder: Path) -> dict[str, str]:
    """What the report says was not examined, and why."""
    report = judge(folder).report
    assert report.verdict != "well"
    return {gap.what: gap.why for gap in report.not_examined}


# --- what is no plain file ------------------------------------------------------------


def _socket(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)  # for the names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(before)


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "it is a pipe"),
    "zeros": (lambda path: path.symlink_to("/dev/zero"), "it is a link"),
    "link": (lambda path: path.symlink_to("run.json"), "it is a link"),
    "folder": (lambda path: path.mkdir(), "it is a folder"),
    "socket": (_socket, "it is a socket"),
    "sparse": (_sparse, "larger than"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [record.SOURCES, record.STACKS, EXITS_FILE])
def test_what_is_no_plain_file_is_told_and_the_rest_judged(
    kind: str, name: str, folder: Path
) -> None:
    make, why = KINDS[kind]
    (folder / name).unlink()
    make(folder / name)
    assert why in gaps(folder)[f"what {name} tells"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_manifest_that_is_no_plain_file_is_refused(kind: str, folder: Path) -> None:
    make, why = KINDS[kind]
    (folder / record.MANIFEST).unlink()
    make(folder / record.MANIFEST)
    with pytest.raises(RecordUnreadable, match=why):
        judge(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_a_journal_that_is_no_plain_file_is_a_rank_unseen(
    kind: str, folder: Path
) -> None:
    make, _ = KINDS[kind]
    (folder / "rank-1.0.journal").unlink()
    make(folder / "rank-1.0.journal")
    assert set(read_run(folder).unseen) == {1}
    assert "rank 1" in gaps(folder)
    (folder / "rank-0.0.journal").unlink()
    with pytest.raises(JournalUnreadable, match=r"rank-1\.0\.journal"):
        judge(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_notes_that_are_no_plain_file_are_missing(kind: str, folder: Path) -> None:
    (folder / "rank-1.0.journal").unlink()
    journal = write_rank(folder, 1, notes=(Trained(model=1),))
    notes_of(journal).unlink()
    KINDS[kind][0](notes_of(journal))
    assert "1 records were torn" in gaps(folder)["part of what rank 1 did"]


# --- one damaged byte -----------------------------------------------------------------


def test_one_bad_byte_in_the_sources_costs_the_sources_alone(folder: Path) -> None:
    whole = (folder / record.SOURCES).read_bytes()
    (folder / record.SOURCES).write_bytes(whole.replace(b"x", b"\xff"))
    assert "cannot be read" in gaps(folder)["what sources.json tells"]


def test_a_damaged_line_is_told(folder: Path) -> None:
    with (folder / EXITS_FILE).open("ab") as file:
        file.write(b'{"pid": 8, "status": true}\n{"pid": -8, "status": 1}\n')
    assert "damaged lines: 2" in gaps(folder)[f"what {EXITS_FILE} tells"]
    assert read_exits(folder).keys() == {7}


def test_a_file_of_very_many_lines_is_read_no_further_than_need_be(
    folder: Path,
) -> None:
    (folder / EXITS_FILE).write_bytes(b"x\n" * 10_000_000)
    assert "more than" in gaps(folder)[f"what {EXITS_FILE} tells"]


# --- numbers --------------------------------------------------------------------------


@pytest.mark.parametrize("call", [2**31, 2**32 - 1])
def test_numbers_of_calls_that_lie_far_apart_take_no_memory(
    call: int, folder: Path
) -> None:
    (folder / "rank-1.0.journal").unlink()
    write_rank(folder, 1, call=1, other=call)
    assert len(read_run(folder).rows_of(1)) == 2


@pytest.mark.parametrize(
    "spec",
    [
        "float32 1e3",
        "float32 -4",
        "=[1, {}]",
        '="',
        f"float32 {'9' * 5000}",
        "=NaN",
        f"float32 {'x'.join(['9' * 18] * 400)}",
        "float32 ٣",
        f"=[{'[' * 5000}",
    ],
)
def test_tensors_that_cannot_be_are_not_known(spec: str, folder: Path) -> None:
    (folder / "rank-1.0.journal").unlink()
    write_rank(folder, 1, spec=spec)
    run = read_run(folder)
    assert len(run.rows_of(1)) == 1
    assert run.call(run.rows_of(1)[0]).tensors == ()
    assert "1 records were torn" in gaps(folder)["part of what rank 1 did"]


@pytest.mark.parametrize(
    "ranks",
    [
        "0-99999999999",
        f"0-{MOST_RANKS}",
        "1-0",
        "-1",
        "0,0",
        "x",
        "1e3",
        "٣",
        "9" * 5000,
        ",".join(["0-99999"] * 40),
    ],
)
def test_members_that_no_group_has_cost_their_calls(ranks: str, folder: Path) -> None:
    (folder / "rank-1.0.journal").unlink()
    write_rank(folder, 1, group=f"0\ndefault_pg\n0\n{ranks}")
    run = read_run(folder)
    assert (run.world_size, len(run.rows_of(1))) == (2, 0)
    assert "1 records were torn" in gaps(folder)["part of what rank 1 did"]


def test_groups_together_have_a_bounded_number_of_members(folder: Path) -> None:
    (folder / "rank-1.0.journal").unlink()
    journal = JournalWriter(folder, 1, MOST_RANKS, 1 << 20)
    for n in range(1, 200):
        group = journal.intern(f"g{n}\n\n0\n0-{MOST_RANKS - 1}")
        journal.put(RecordKind.ENTER, 1, n, 1, group, 7, 0)
    journal.end()
    run = read_run(folder)
    assert sum(len(group.ranks) for group in run.groups) < 1 << 23
    assert "torn" in run.partial[1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("world_size", -1), ("world_size", MOST_RANKS + 1), ("rank", MOST_RANKS)),
        *(("rank", -2), ("head", (1 << 64) - 1), ("head", 1 << 63), ("capacity", 0)),
        *(("capacity", 1 << 63), ("strings_bytes", 1 << 62), ("started_ns", 1 << 63)),
    ],
)
def test_a_header_that_cannot_be_is_a_rank_unseen(
    field: str, value: int, folder: Path
) -> None:
    path = folder / "rank-1.0.journal"
    data = path.read_bytes()
    at = [name for name, _ in HEADER_FIELDS].index(field)
    fields = list(HEADER.unpack_from(data))
    fields[at] = value
    path.write_bytes(HEADER.pack(*fields) + data[HEADER.size :])
    assert "damaged header" in read_run(folder).unseen[1]


def test_calls_with_peers_and_ordinals_that_cannot_be_are_left_out(
    folder: Path,
) -> None:
    (folder / "rank-1.0.journal").unlink()
    write_rank(folder, 1, peer=-5)
    assert "1 records were torn" in gaps(folder)["part of what rank 1 did"]
    (folder / "rank-1.0.journal").unlink()
    write_rank(folder, 1, ordinal=1 << 63)
    assert "1 records were torn" in gaps(folder)["part of what rank 1 did"]


# --- time -----------------------------------------------------------------------------


def test_ends_of_backward_passes_that_lie_over_each_other_cost_what_one_does(
    folder: Path,
) -> None:
    """Each went through all calls since the first again: 4 s for so many."""
    (folder / "rank-1.0.journal").unlink()
    writer, me, many = JournalWriter(folder, 1, 2, 16 << 20), os.getpid(), 40_000
    group, code = writer.intern(WORLD), CODE_OF["all_reduce"]
    for n in range(1, many + 1):
        writer.put(RecordKind.ENTER, me, n, n, group, 7, code)
    for _ in range(many):
        writer.put(RecordKind.BACKWARD_WOKE, me, 1)
    writer.end()
    begun = time.process_time()
    assert len(read_run(folder).rows_of(1)) == many
    assert time.process_time() - begun < 2


def test_a_group_of_all_ranks_that_a_job_may_have_is_looked_at_in_bulk(
    tmp_path: Path,
) -> None:
    """Each rank that never came was asked for by name: 3.5 s."""
    cases = hostile_records.seeds(alike=3)
    case = next(one for one in cases if b"dd409_contested" in one[record.MANIFEST])
    for name, content in case.items():
        if name.endswith(".journal"):
            box = hostile_records.Box.of(content)
            box.set("world_size", MOST_RANKS)
            box.strings = [
                text.replace(b"\n0-1", b"\n0-%d" % (MOST_RANKS - 1))
                for text in box.strings
            ]
            content = box.whole()
        hostile_records.place(tmp_path / name, content)
    judge(tmp_path)  # loads the checks
    begun = time.process_time()
    assert judge(tmp_path).run.world_size == MOST_RANKS
    assert time.process_time() - begun < 2


def test_what_is_text_is_not_gone_through_piece_by_piece() -> None:
    codes = {"exit_codes": {str(rank): None for rank in range(10)}, "words": ["é"]}
    assert as_text(codes) is codes
    assert as_text({"\ud800": ["\udfff"]}) == {"\\ud800": ["\\udfff"]}


def test_calls_that_the_same_ranks_lack_share_the_set_of_these(folder: Path) -> None:
    """A set of all ranks for each call that stands open: gigabytes."""
    manifest = record.read_manifest(folder)
    manifest.alive = [os.getpid()]
    record.write(folder, record.MANIFEST, manifest)
    for rank in (0, 1):
        (folder / f"rank-{rank}.0.journal").unlink()
        writer, me = JournalWriter(folder, rank, MOST_RANKS, 1 << 20), os.getpid()
        for n in range(1, 401):
            group = writer.intern(f"0\ndefault_pg\n0\n0-{MOST_RANKS - 1}")
            writer.put(RecordKind.ENTER, me, n, n, group, 7, CODE_OF["all_reduce"])
        writer.end()
    stuck = standstill(replace(read_run(folder), closed=True))
    assert len(stuck.waits[0]) == 400
    assert len({id(wait.missing) for wait in stuck.waits[0]}) == 1


# --- notes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "note",
    [
        Trained(model=1, names=("a", "b"), numels=(1,)),
        Trained(model=1, ranks=(0, 99)),
        Trained(model=1, ranks=(0, 0)),
        Trained(model=1 << 70),
        Weights(model=1, step=1, prints=(1, 2), gradients=(1,)),
        Weights(model=1, step=1, prints=(-1,)),
        Weights(model=1, step=1 << 40),
        Weights(model=1, prints=(1,), samples=(1.0,)),
        Cycle(optimizer=1),
    ],
)
def test_a_note_that_no_probe_can_have_written_is_missing(
    note: Observation, folder: Path
) -> None:
    (folder / "rank-1.0.journal").unlink()
    write_rank(folder, 1, notes=(note,))
    assert "1 records were torn" in gaps(folder)["part of what rank 1 did"]


def test_weights_of_other_parameters_than_the_model_has_are_missing(
    folder: Path,
) -> None:
    (folder / "rank-1.0.journal").unlink()
    model = Trained(model=1, names=("a", "b"), numels=(1, 1))
    write_rank(folder, 1, notes=(model, Weights(model=1, prints=(1, 2, 3))))
    assert "1 records were torn" in gaps(folder)["part of what rank 1 did"]


def test_one_note_is_not_read_again_and_again(folder: Path) -> None:
    """Each costs time as its length, and a record is short."""
    (folder / "rank-1.0.journal").unlink()
    large = Trained(model=1, names=("a" * 1_000_000,), numels=(1,))
    journal = write_rank(folder, 1, notes=(large,))
    (size,) = [notes_of(journal).stat().st_size]
    writer = JournalWriter(folder, 1, 2, 256 * 1024)
    notes_of(journal).rename(notes_of(writer.path))
    journal.unlink()
    for _ in range(2000):
        writer.put(RecordKind.NOTE, 1, 0, size)
    writer.end()
    run = read_run(folder)
    assert len(run.life[1]) <= 2
    assert "1999 records were torn" in run.partial[1]


def test_a_rank_that_wrapped_a_model_for_ranks_of_no_job_did_not(folder: Path) -> None:
    (folder / "rank-1.0.journal").unlink()
    writer = JournalWriter(folder, 1, 2, 16 * 1024)
    wrapped = event_text(Wrapped(how="ddp", ranks=(0, 5)))
    writer.put(RecordKind.LIFE, 1, spec=writer.intern(wrapped))
    writer.end()
    run = read_run(folder)
    assert not run.of(Wrapped, 1)
    assert "torn" in run.partial[1]


# --- JSON -----------------------------------------------------------------------------

_FRAME = {"file": "t.py", "line": 3, "function": "f"}
_SAMPLE = {"rank": 0, "pid": 1, "seconds": 1.0, "frames": [_FRAME]}


@pytest.mark.parametrize(
    "change",
    [
        *({"rank": MOST_RANKS}, {"rank": 1.5}, {"pid": -1}, {"seconds": -1.0}),
        *({"seconds": float("nan")}, {"cpu_seconds": 1e300}, {"standing": 3}),
        *({"frames": [_FRAME | {"line": -1}]}, {"frames": [_FRAME | {"line": 10**12}]}),
    ],
    ids=str,
)
def test_a_stack_that_cannot_be_is_told(
    change: dict[str, object], folder: Path
) -> None:
    (folder / record.STACKS).write_text(json.dumps([_SAMPLE | change]))
    assert "cannot be read" in gaps(folder)["what stacks.json tells"]


def test_stacks_without_frames_are_read(folder: Path) -> None:
    sample = _SAMPLE | {"standing": [[], [_FRAME]], "frames": []}
    (folder / record.STACKS).write_text(json.dumps([sample] * 12))
    judge(folder)


@pytest.mark.parametrize(
    "content", [b"[" * 1_000_000, b'{"a":' * 100_000, b"\xff\xfe", b"1e999"]
)
def test_deep_or_damaged_json_is_a_sentence(content: bytes, folder: Path) -> None:
    for name in (record.STACKS, record.SOURCES):
        (folder / name).write_bytes(content)
        assert "cannot be read" in gaps(folder)[f"what {name} tells"]
    (folder / record.MANIFEST).write_bytes(content)
    with pytest.raises(DistdoctorError, match="cannot be read"):
        judge(folder)


def test_a_schema_is_quoted_in_short(folder: Path) -> None:
    manifest = json.loads((folder / record.MANIFEST).read_bytes())
    manifest["schema"] = "x" * 100_000
    (folder / record.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(RecordUnreadable) as raised:
        judge(folder)
    assert len(str(raised.value)) < 1000


# --- many of them ---------------------------------------------------------------------


@pytest.mark.parametrize("level", fuzz_records.LEVELS)
def test_no_hostile_record_does_harm(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz_records, "SECONDS", 10.0)  # tests share the machine
    monkeypatch.setattr(fuzz_records, "WAITING_SECONDS", 60.0)
    signal.alarm(0)  # the runs that are mutated are judged first, on a busy machine
    inputs, tally = fuzz_records.Inputs(level, 5, tmp_path), fuzz_records.Tally()
    before = signal.signal(signal.SIGVTALRM, fuzz.the_time_is_up)
    try:
        for number in range(40):
            inputs.take(number, tally)
    finally:
        signal.signal(signal.SIGVTALRM, before)
    assert (tally.inputs, dict(tally.failures)) == (40, {})
