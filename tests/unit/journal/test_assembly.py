"""Assembly: from journals as the probes write them to a run as the checks read it."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from distdoctor.analysis.deadlock.wait_for_graph import standstill
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.errors import JournalUnreadable, RecordUnreadable
from distdoctor.journal import folder as record
from distdoctor.journal.assembly import assemble, read_run
from distdoctor.journal.folder import Manifest, StackFrame, StackSample
from distdoctor.journal.format import HEADER_BYTES, RecordKind, offset_of
from distdoctor.journal.layout import EXITS_FILE, LOSSES_FILE, MEETINGS_FILE
from distdoctor.journal.packed_texts import group_text
from distdoctor.journal.stack_samples import BUSY_LOOKS
from distdoctor.journal.texts import parse_spec, relative
from distdoctor.journal.writer import JournalWriter
from distdoctor.model.drawing import draw, sketch
from distdoctor.model.events import (
    Batch,
    Busy,
    Call,
    Dead,
    Ended,
    Failure,
    Locked,
    Misplaced,
    Place,
    Started,
    State,
    Stranded,
    Tensor,
    ThreadEnded,
    Touched,
    Wrapped,
)
from distdoctor.model.layers import LAYER_SHIFT, LAYERS
from distdoctor.model.operations import (
    ASYNCHRONOUS,
    CODE_OF,
    FAILING,
    NO_REDUCE_OP,
    OPERATIONS,
    REDUCE_OPS,
    UNKNOWN_REDUCE_OP,
    UNUSED,
    signature,
)
from distdoctor.model.run import Frame, Group, Run, Spec

SMALL_BYTES = 64 * 1024

DIRECTORY = "/home/user/job"

ME = os.getpid()


def site(line: int, file: str = f"{DIRECTORY}/t.py", function: str = "train") -> str:
    return f"{file}\n{line}\n{function}"


class Process:
    """One process's pen: writes what the probes write, in their order."""

    def __init__(self, folder: Path, rank: int, world_size: int = 2) -> None:
        self.writer = JournalWriter(folder, rank, world_size, SMALL_BYTES)
        self.world = group_text("0", "default_pg", 0, tuple(range(world_size)))
        self.calls = 0
        self.ordinals: dict[str, int] = {}

    def enter(
        self,
        op: str = "barrier",
        spec: str = "",
        *,
        line: int = 7,
        group: str = "",
        reduce_op: int = NO_REDUCE_OP,
        peer: int = -1,
        kind: RecordKind = RecordKind.ENTER,
        flags: int = 0,
        thread: int = ME,
        nodes: int = 0,
    ) -> int:
        """Note a call that is about to be made; its number in this process."""
        group = group or self.world
        code, ordinal = CODE_OF[op], 0
        if not OPERATIONS[code].is_point_to_point:
            self.ordinals[group] = ordinal = self.ordinals.get(group, 0) + 1
        tensors = parse_spec(spec).tensors
        self.calls += 1
        self.writer.put(
            kind,
            thread,
            self.calls,
            ordinal,
            self.writer.intern(group),
            signature(
                code,
                reduce_op,
                -1 if OPERATIONS[code].is_point_to_point else peer,
                tuple(tensor.dtype for tensor in tensors),
                tuple(tensor.numel for tensor in tensors),
            ),
            code,
            reduce_op,
            flags,
            self.writer.intern(site(line)),
            self.writer.intern(spec),
            peer,
            nodes,
        )
        return self.calls

    def then(self, *kinds: RecordKind, call: int = 0, thread: int = ME) -> None:
        """Note how a call, the last one if none is named, goes on."""
        for kind in kinds:
            self.writer.put(kind, thread, call or self.calls)

    def note(self, what: str, where: str = "", /, **details: object) -> None:
        """Note an event of the process's life."""
        self.remark(json.dumps({"what": what, **details}), where)

    def remark(self, text: str, where: str = "") -> None:
        """Note a text as it is."""
        self.writer.put(
            RecordKind.LIFE,
            ME,
            spec=self.writer.intern(text),
            site=self.writer.intern(where),
        )

    def batch(self, count: int, line: int = 5, ended: bool = False) -> None:
        """Note how many batches a loader gave."""
        self.writer.put(
            RecordKind.BATCH,
            ME,
            ordinal=count,
            flags=int(ended),
            site=self.writer.intern(site(line)),
        )

    def header(self, field: str, value: int) -> None:
        """Put four bytes into the header."""
        with self.writer.path.open("r+b") as file:
            file.seek(offset_of(field))
            file.write(value.to_bytes(4, "little", signed=True))


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Process]:
    """Starts a process of the job whose record folder is `tmp_path`."""
    return lambda rank=0, world_size=2: Process(tmp_path, rank, world_size)


def manifest_of(**rest: object) -> Manifest:
    fields = {"distdoctor": "0.1.0", "launch": [], "directory": DIRECTORY} | rest
    return Manifest(**fields)  # type: ignore[arg-type]


def living(folder: Path) -> Run:
    """The run while its processes live, so that it has no ends."""
    return assemble(folder, manifest_of(alive=[ME]))


def ended(folder: Path, **rest: object) -> Run:
    record.write(folder, record.MANIFEST, manifest_of(**rest))
    return read_run(folder)


# --- how far a call came ------------------------------------------------------------


LOCKING = "lock = threading.Lock()\nwith lock:\n    step()\n"


def looks(rank: int, count: int, *lines: int) -> list[StackSample]:
    """Looks at a rank one of whose threads stands in these lines of t.py."""
    standing = [[StackFrame(f"{DIRECTORY}/t.py", line, "save")] for line in lines]
    return [
        StackSample(rank=rank, pid=ME, seconds=2.0 * n, standing=standing)
        for n in range(count)
    ]


def locked(folder: Path, samples: list[StackSample]) -> dict[int, Place]:
    record.write(folder, record.SOURCES, {"t.py": LOCKING})
    record.write(folder, record.STACKS, samples)
    run = ended(folder)
    return {r: event.place for r in run.life for event in run.of(Locked, r)}


def test_a_thread_that_stays_in_a_line_that_takes_a_lock_is_told(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    start(0), start(1)
    found = locked(tmp_path, looks(0, BUSY_LOOKS, 2, 3) + looks(1, 1, 2))
    assert found == dict.fromkeys([0, 1], Place("t.py", 2, "save"))


@pytest.mark.parametrize(("count", "lines"), [(BUSY_LOOKS - 1, [2]), (9, [3]), (9, [])])
def test_a_short_look_or_another_line_tells_of_no_lock(
    start: Callable[..., Process], tmp_path: Path, count: int, lines: list[int]
) -> None:
    start(0), start(1)
    assert not locked(tmp_path, looks(0, count, *lines))


@pytest.mark.parametrize("kind", [RecordKind.WAIT, RecordKind.HANDED])
def test_a_handle_is_unused_until_anything_is_done_with_it(
    start: Callable[..., Process], tmp_path: Path, kind: RecordKind
) -> None:
    process = start(0, 1)
    used = process.enter(flags=ASYNCHRONOUS | UNUSED)
    process.enter(flags=ASYNCHRONOUS | UNUSED)
    process.then(kind, call=used)
    run = living(tmp_path)
    assert [run.call(row).unused for row in run.rows_of(0)] == [False, True]
    assert run.call(0).asynchronous


@pytest.mark.parametrize(("how", "stepped"), [(1, False), (2, True)])
def test_a_touched_tensor_is_told_with_the_line_of_its_call(
    start: Callable[..., Process], tmp_path: Path, how: int, stepped: bool
) -> None:
    process = start(0, 1)
    call = process.enter(line=7)
    process.enter(line=8)
    where = process.writer.intern(site(9))
    process.writer.put(RecordKind.TOUCHED, ME, call, flags=how, site=where)
    (event,) = living(tmp_path).of(Touched, 0)
    lines = [place.line for place in (event.issued, event.place) if place]
    assert (lines, event.stepped) == ([7, 9], stepped)


@pytest.mark.parametrize(
    ("kinds", "drawn"),
    [
        ((), "barrier@t.py:7...inside"),
        ((RecordKind.RETURN,), "barrier@t.py:7...issued"),
        ((RecordKind.RETURN, RecordKind.WAIT), "barrier@t.py:7..."),
        ((RecordKind.RETURN, RecordKind.WAIT, RecordKind.WOKE), "barrier@t.py:7"),
        (
            (RecordKind.RETURN, RecordKind.WAIT, RecordKind.WAIT_RAISE),
            "barrier@t.py:7^",
        ),
        ((RecordKind.RAISE,), "barrier@t.py:7^"),
        ((RecordKind.RETURN, RecordKind.WOKE), "barrier@t.py:7"),
    ],
)
def test_the_last_word_on_a_call_is_its_state(
    start: Callable[..., Process],
    tmp_path: Path,
    kinds: tuple[RecordKind, ...],
    drawn: str,
) -> None:
    process = start(0, 1)
    process.enter()
    process.then(*kinds)
    assert draw(living(tmp_path)) == f"rank 0 | {drawn}"


@pytest.mark.parametrize(
    ("kinds", "state"),
    [
        ((), State.REFUSED),
        ((RecordKind.REISSUE,), State.INSIDE),
        ((RecordKind.REISSUE, RecordKind.RETURN, RecordKind.WAIT), State.WAITING),
    ],
)
def test_a_refused_call_stays_so_until_it_is_made_all_the_same(
    start: Callable[..., Process],
    tmp_path: Path,
    kinds: tuple[RecordKind, ...],
    state: State,
) -> None:
    process = start(0, 2)
    process.enter(kind=RecordKind.REFUSE)
    process.then(*kinds)
    assert living(tmp_path).call(0).state is state


def test_calls_that_end_out_of_order_are_told_apart(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start(0, 1)
    for line in (1, 2, 3):
        process.enter("all_reduce", "float32 4", line=line, flags=ASYNCHRONOUS)
        process.then(RecordKind.RETURN)
    process.then(RecordKind.WAIT, RecordKind.WOKE, call=3)
    process.then(RecordKind.WAIT, call=1)
    assert [living(tmp_path).call(row).state for row in range(3)] == [
        *(State.WAITING, State.ISSUED, State.DONE)
    ]


def test_times_are_kept(start: Callable[..., Process], tmp_path: Path) -> None:
    process = start(0, 1)
    process.enter()
    process.then(RecordKind.RETURN, RecordKind.WAIT, RecordKind.WOKE)
    (call,) = living(tmp_path).calls
    assert 0 < call["enter_ns"] <= call["wait_ns"] <= call["complete_ns"]


# --- what a call was ----------------------------------------------------------------


def test_a_call_is_told_whole(start: Callable[..., Process], tmp_path: Path) -> None:
    process = start(0, 2)
    process.enter(
        "reduce",
        "bfloat16 2x3;int64 ",
        line=31,
        reduce_op=REDUCE_OPS.index("max"),
        peer=1,
        flags=ASYNCHRONOUS | FAILING,
    )
    assert living(tmp_path).call(0) == Call(
        rank=0,
        op="reduce",
        ordinal=1,
        tensors=(Tensor((2, 3), "bfloat16"), Tensor((), "int64")),
        reduce_op="max",
        root=1,
        asynchronous=True,
        failing=True,
        state=State.INSIDE,
        place=Place("t.py", 31, "train"),
    )


def test_a_message_has_a_peer_and_a_tag_and_no_ordinal(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start(0, 2)
    process.enter("send", "float32 4", peer=1, nodes=7)
    process.enter("recv_any", "float32 4", nodes=9)
    run = living(tmp_path)
    assert draw(run, places=False) == (
        "rank 0 | send(4,peer=1,tag=7)...inside  recv_any(4,tag=9)...inside\nrank 1 | ?"
    )
    assert run.calls["nodes"].tolist() == [0, 0]


def test_a_collective_counts_autograd_nodes_and_has_no_tag(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    start(0, 2).enter(nodes=41)
    run = living(tmp_path)
    assert (int(run.calls["nodes"][0]), run.call(0).tag) == (41, 0)


@pytest.mark.parametrize("code", [NO_REDUCE_OP, UNKNOWN_REDUCE_OP])
def test_a_reduce_op_that_was_not_read_is_none(
    start: Callable[..., Process], tmp_path: Path, code: int
) -> None:
    start(0, 2).enter("all_reduce", "float32 4", reduce_op=code)
    assert living(tmp_path).call(0).reduce_op is None


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("", Spec()),
        ("float32 ", Spec((Tensor(()),))),
        ("float32 4x0", Spec((Tensor((4, 0)),))),
        ("bool 4;int64 2", Spec((Tensor((4,), "bool"), Tensor((2,), "int64")))),
        ("float32 4|1,3|2,2", Spec((Tensor((4,)),), ((1, 3), (2, 2)))),
        ("float32 0||", Spec((Tensor((0,)),), ((), ()))),
        ("float32 4|1,3", Spec((Tensor((4,)),))),  # cut off in the middle
    ],
)
def test_what_a_call_moves_is_read(text: str, spec: Spec) -> None:
    assert parse_spec(text) == spec


@pytest.mark.parametrize(
    ("file", "directory", "known_as"),
    [
        ("/job/src/t.py", "/job", "src/t.py"),
        ("/job/src/t.py", "/job/", "src/t.py"),
        ("/jobs/t.py", "/job", "/jobs/t.py"),
        ("/t.py", "/", "t.py"),
        ("t.py", "/job", "t.py"),
    ],
)
def test_files_are_named_as_the_user_knows_them(
    file: str, directory: str, known_as: str
) -> None:
    assert relative(file, directory) == known_as


def test_a_call_without_user_code_has_no_place(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start(0, 1)
    process.writer.put(RecordKind.ENTER, ME, 1, 1, process.writer.intern(process.world))
    assert living(tmp_path).call(0).place is None


def test_threads_but_the_first_are_numbered(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start(0, 1)
    process.enter()
    process.enter(thread=ME + 1)
    process.then(RecordKind.THREAD_END, thread=ME + 1)
    run = living(tmp_path)
    assert [run.call(row).thread for row in run.rows_of(0)] == [0, ME + 1]
    assert run.of(ThreadEnded, 0) == [ThreadEnded(rank=0, thread=ME + 1)]


def test_the_first_thread_may_leave_the_job_to_another(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start(0, 1)
    process.then(RecordKind.THREAD_END)
    process.enter(thread=ME + 1)
    assert living(tmp_path).of(ThreadEnded, 0) == [ThreadEnded(rank=0, thread=0)]


# --- backward -----------------------------------------------------------------------


def in_backward(process: Process, count: int) -> int:
    """Issue calls as DistributedDataParallel's reducer does; the first's number."""
    numbers = []
    for _ in range(count):
        numbers.append(process.enter("all_reduce", "float32 9", flags=ASYNCHRONOUS))
        process.then(RecordKind.RETURN)
    return numbers[0]


def states(run: Run) -> list[State]:
    return [run.call(row).state for row in range(len(run.calls))]


def test_what_backward_issued_is_complete_when_backward_is(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start(0, 1)
    first = in_backward(process, 2)
    process.then(RecordKind.BACKWARD_WAIT, RecordKind.BACKWARD_WOKE, call=first)
    in_backward(process, 1)
    run = living(tmp_path)
    assert states(run) == [State.DONE, State.DONE, State.ISSUED]
    assert run.calls["complete_ns"][0] == run.calls["complete_ns"][1] > 0


def test_a_backward_that_waits_waits_for_all_it_issued(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start(0, 1)
    process.enter("all_reduce", "float32 4", flags=ASYNCHRONOUS)
    process.then(RecordKind.RETURN)
    first = in_backward(process, 2)
    process.then(RecordKind.BACKWARD_WAIT, call=first)
    assert states(living(tmp_path)) == [State.ISSUED, State.WAITING, State.WAITING]


def test_brackets_of_many_steps_are_matched(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start(0, 1)
    for _ in range(3):
        first = in_backward(process, 2)
        process.then(RecordKind.BACKWARD_WAIT, RecordKind.BACKWARD_WOKE, call=first)
    first = in_backward(process, 1)
    process.then(RecordKind.BACKWARD_WAIT, call=first)
    assert states(living(tmp_path)) == [State.DONE] * 6 + [State.WAITING]


def test_what_was_waited_for_apart_is_not_touched_by_a_bracket(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start(0, 1)
    first = in_backward(process, 1)
    process.enter("broadcast", "float32 4", peer=0)
    process.then(RecordKind.RETURN, RecordKind.WAIT, RecordKind.WAIT_RAISE)
    process.then(RecordKind.BACKWARD_WAIT, RecordKind.BACKWARD_WOKE, call=first)
    assert states(living(tmp_path)) == [State.DONE, State.RAISED]


# --- groups -------------------------------------------------------------------------


def test_groups_are_named_for_readers(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start(0, 4)
    texts = [
        process.world,
        group_text("1", "mesh_tp", 0, (0, 1)),
        group_text("2", "undefined", 0, (0, 2)),
        group_text("3", "", 0, (3, 0)),
        group_text("7", "a b/c", 0, (0, 3)),
        group_text("0", "undefined", 1, (0, 1, 2, 3)),
    ]
    for text in texts:
        process.enter(group=text)
    assert living(tmp_path).groups == (
        Group("world", (0, 1, 2, 3)),
        Group("mesh_tp", (0, 1)),
        Group("group_2", (0, 2)),
        Group("group_3", (3, 0)),
        Group("a_b_c", (0, 3)),
        Group("world_2", (0, 1, 2, 3)),
    )


def test_groups_of_one_name_are_told_apart(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    """Every pipeline has its own "pp"."""
    start(0, 4).enter(group=group_text("5", "pp", 0, (0, 2)))
    start(1, 4).enter(group=group_text("6", "pp", 0, (1, 3)))
    assert living(tmp_path).groups == (Group("pp", (0, 2)), Group("pp_2", (1, 3)))


def test_names_of_groups_stay_words_of_a_drawing(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start(0, 2)
    process.enter(group=group_text("1", "mesh dp·tp\x1b[2J", 0, (0, 1)))
    process.then(RecordKind.RETURN, RecordKind.WAIT)
    run = living(tmp_path)
    assert sketch(draw(run)).groups == run.groups


def test_a_group_made_again_is_another_group(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    for rank in (0, 1):
        process = start(rank)
        for generation in (0, 1):
            process.enter(group=group_text("0", "default_pg", generation, (0, 1)))
    run = living(tmp_path)
    assert [group.name for group in run.groups] == ["world", "world_2"]
    assert run.calls["ordinal"].tolist() == [1, 1, 1, 1]


def test_ranks_share_groups_sites_and_specs(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    for rank in (1, 0):
        process = start(rank)
        process.note("something before")
        process.enter("all_reduce", "float32 4")
    run = living(tmp_path)
    first, second = run.calls
    for column in ("group", "site", "spec", "signature"):
        assert first[column] == second[column]


def test_a_group_whose_text_was_lost_leads_no_analysis_astray(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    """Once the area for strings is full, every string is number 0."""
    process = start(0, 2)
    code = CODE_OF["broadcast"]
    process.writer.put(RecordKind.ENTER, ME, 1, ordinal=1, group=0, op=code, peer=1)
    process.writer.lose()
    run = living(tmp_path)
    assert standstill(run).waits == {}
    assert divergences(run) == []
    assert "could not be written" in run.partial[0]


# --- life ---------------------------------------------------------------------------


def test_a_rank_that_joined_has_started(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start(0, 2)
    process.note("start", site(3), world_size=2)
    process.note("started", world_size=2, backend="gloo", torch="2.13.0", device="cpu")
    assert living(tmp_path).of(Started, 0) == [
        Started(
            rank=0,
            world_size=2,
            joined=True,
            backend="gloo",
            torch="2.13.0",
            device="cpu",
            place=Place("t.py", 3, "train"),
        )
    ]


def test_a_rank_that_is_stuck_in_joining_has_not_joined(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    start(0, 2).note("start", site(3), world_size=2)
    assert draw(living(tmp_path)) == "rank 0 | start=2@t.py:3...\nrank 1 | ?"


def test_only_what_ddp_still_waits_for_at_the_end_is_told(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start(0, 2)
    process.note("unreduced", site(4), model=0, parameters=["a", "b"])
    process.enter("barrier", line=5)
    process.note("unreduced", site(6), model=1, parameters=["c"])
    process.note("reduced", model=0)
    assert draw(living(tmp_path)) == (
        "rank 0 | barrier@t.py:5...inside  unreduced=c@t.py:6\nrank 1 | ?"
    )


def test_a_call_on_a_tensor_without_memory_is_told(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    start(0, 2).note("misplaced", site(4), device="meta", op="broadcast")
    (misplaced,) = living(tmp_path).of(Misplaced, 0)
    assert misplaced == Misplaced(
        rank=0, op="broadcast", place=Place("t.py", 4, "train")
    )


@pytest.mark.parametrize(
    ("alive", "drawing"),
    [
        ([ME], "rank 0 | barrier@t.py:7...inside\nrank 1 | ?"),
        ([], "rank 0 | barrier@t.py:7^  exit=?!\nrank 1 | ?"),
    ],
)
def test_what_a_rank_did_while_it_was_ended_tells_nothing(
    start: Callable[..., Process], tmp_path: Path, alive: list[int], drawing: str
) -> None:
    process = start(0, 2)
    process.enter("barrier")
    stopped_ns = time.monotonic_ns()
    process.then(RecordKind.RAISE)
    run = assemble(tmp_path, manifest_of(alive=alive, stopped_ns=stopped_ns))
    assert draw(run) == drawing


def test_members_may_describe_a_group_differently(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    for rank, description in ((0, "mesh_tp"), (1, "mesh_dp")):
        start(rank, 2).enter(group=group_text("7", description, 0, (0, 1)))
    run = living(tmp_path)
    assert {call.group for call in map(run.call, range(2))} == {"mesh_tp"}


def test_the_layer_of_a_call_is_told(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    start(0, 2).enter("barrier", line=5, flags=LAYERS.index("fsdp") << LAYER_SHIFT)
    assert living(tmp_path).call(0).layer == "fsdp"


def test_a_life_is_told_in_its_order_among_the_calls(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start(0, 1)
    process.note("wrap", site(4), how="ddp", parameters=["0.weight", "0.bias"])
    process.enter()
    process.then(RecordKind.RETURN, RecordKind.WAIT, RecordKind.WOKE)
    process.note("leave", site(9))
    process.note("start", site(10), world_size=1)
    process.enter(line=11)
    run = living(tmp_path)
    assert run.of(Wrapped, 0)[0].parameters == ("0.weight", "0.bias")
    assert draw(run) == (
        "rank 0 | wrap=ddp:0.weight+0.bias@t.py:4  barrier@t.py:7  leave@t.py:9  "
        "start=1@t.py:10...  barrier@t.py:11...inside"
    )


@pytest.mark.parametrize("fatal", [True, False])
@pytest.mark.parametrize("secondary", [True, False])
def test_a_failure_is_told_whole(
    start: Callable[..., Process], tmp_path: Path, fatal: bool, secondary: bool
) -> None:
    start(0, 1).note(
        "fail",
        error="KeyError",
        message="'lr'",
        site=site(12),
        fatal=fatal,
        secondary=secondary,
    )
    assert living(tmp_path).of(Failure, 0) == [
        Failure(
            rank=0,
            error="KeyError",
            message="'lr'",
            place=Place("t.py", 12, "train"),
            fatal=fatal,
            secondary=secondary,
        )
    ]


def test_of_a_loader_only_the_last_batch_is_told(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start(0, 1)
    for count in (1, 2, 3):
        process.batch(count)
    process.enter()
    assert draw(living(tmp_path)) == (
        "rank 0 | barrier@t.py:7...inside  batches=3@t.py:5..."
    )


def test_every_end_of_a_loader_is_told_where_it_was(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start(0, 1)
    for _epoch in (1, 2):
        process.batch(1)
        process.enter()
        process.then(RecordKind.RETURN, RecordKind.WAIT, RecordKind.WOKE)
        process.batch(1, ended=True)
    process.batch(1, line=20)
    run = living(tmp_path)
    assert draw(run) == (
        "rank 0 | barrier@t.py:7  batches=1@t.py:5  barrier@t.py:7  "
        "batches=1@t.py:5  batches=1@t.py:20..."
    )
    assert run.of(Batch, 0)[-1].ended is False


def test_a_shortened_loader_is_told(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start(0, 1)
    process.note("shortened", site(5), length=1000, kept=4)
    process.note("shortened", site(20), length=-1, kept=64)
    assert draw(living(tmp_path)) == (
        "rank 0 | shortened=4:1000@t.py:5  shortened=64:?@t.py:20"
    )


def test_a_note_of_a_later_release_is_passed_over(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start(0, 1)
    process.note("dreamt", site(1), of="sheep")
    process.enter()
    assert draw(living(tmp_path)) == "rank 0 | barrier@t.py:7...inside"


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"what": "fa',
        "[]",
        "7",
        "null",
        "{}",
        '{"what": ["leave"]}',
        '{"what": "fail"}',
        '{"what": "start", "world_size": "many"}',
        '{"what": "start", "world_size": 1e999}',
        '{"what": "group", "ranks": 3}',
        '{"what": "group", "ranks": [null]}',
        '{"what": "wrap", "how": 3, "parameters": null}',
        "[" * 4000,
    ],
)
def test_a_damaged_note_costs_only_itself(
    start: Callable[..., Process], tmp_path: Path, text: str
) -> None:
    process = start(0, 1)
    process.remark(text, site(1))
    process.enter()
    assert draw(living(tmp_path)) == "rank 0 | barrier@t.py:7...inside"


# --- processes and how they ended ---------------------------------------------------


@pytest.mark.parametrize(
    ("status", "orderly", "failed", "drawn"),
    [
        (0, True, False, "exit=0"),
        (1, True, True, "exit=1"),
        (-9, False, False, "exit=137!"),
        (-6, False, False, "exit=134!"),
        (-15, False, False, "exit=143!!"),
        (-15, True, False, "exit=143"),
        (None, True, True, "exit=1"),
        (None, True, False, "exit=?"),
        (None, False, False, "exit=?!"),
    ],
)
def test_the_end_of_a_process_is_what_its_parent_saw(
    start: Callable[..., Process],
    tmp_path: Path,
    status: int | None,
    orderly: bool,
    failed: bool,
    drawn: str,
) -> None:
    process = start(0, 1)
    if failed:
        process.note(
            "fail", error="E", message="", site="", fatal=True, secondary=False
        )
    if orderly:
        process.writer.end()
    if status is not None:
        note = json.dumps({"pid": ME, "status": status})
        (tmp_path / EXITS_FILE).write_text(note + "\n")
    assert draw(ended(tmp_path)).endswith(drawn)


def test_a_process_that_lives_has_no_end(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    start(0, 1)
    assert ended(tmp_path, alive=[ME]).of(Ended, 0) == []
    assert len(ended(tmp_path, alive=[ME + 1]).of(Ended, 0)) == 1


def test_an_end_is_the_last_event(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start(0, 1)
    process.enter()
    process.batch(1)
    assert isinstance(list(ended(tmp_path).events(0))[-1], Ended)


def test_of_a_restarted_rank_the_later_process_counts(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    start(0, 1).enter("all_reduce", "float32 4")
    start(0, 1).enter("barrier")
    assert draw(living(tmp_path), places=False) == "rank 0 | barrier...inside"


def test_the_later_process_is_told_by_its_clock_and_not_by_its_name(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    start(0, 1).enter("barrier")
    for number in range(11):
        process = start(0, 1)
        process.enter("all_reduce", f"float32 {number}")
    assert draw(living(tmp_path), places=False).endswith("all_reduce(10)...inside")


def test_a_process_may_learn_its_rank_late(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start(-1, 0)
    process.writer.become(1, 2)
    process.enter()
    run = living(tmp_path)
    assert (run.world_size, run.seen) == (2, [1])


def test_steps_are_counted(start: Callable[..., Process], tmp_path: Path) -> None:
    process = start(0, 2)
    start(1, 2)
    process.writer.step()
    process.writer.step()
    assert living(tmp_path).steps == {0: 2, 1: 0}


def test_the_manifest_tells_how_the_run_ended(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    start(0, 1)
    run = ended(tmp_path, stopped="budget", exit_code=3)
    assert (run.stopped, run.exit_code) == ("budget", 3)


# --- what nobody saw ----------------------------------------------------------------


def test_the_world_is_as_large_as_anybody_says(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    start(1, 3)
    assert ended(tmp_path).world_size == 3
    assert ended(tmp_path, ranks=5).world_size == 5


def test_a_rank_without_a_journal_is_unseen(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    start(1, 2)
    assert living(tmp_path).unseen == {
        0: "it never reached init_process_group or hvd.init with the probes in place"
    }


def in_another_process(folder: Path, rank: int, world_size: int) -> int:
    """A rank's journal of another process, which has ended; its number."""
    text = (
        "import os, sys; from pathlib import Path\n"
        "from distdoctor.journal.writer import JournalWriter\n"
        f"JournalWriter(Path(sys.argv[1]), {rank}, {world_size}, {SMALL_BYTES})\n"
        "print(os.getpid())"
    )
    command = [sys.executable, "-c", text, str(folder)]
    return int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


@pytest.mark.parametrize("is_one", [True, False])
def test_workers_of_ray_that_met_elsewhere_are_of_another_group(
    is_one: bool, start: Callable[..., Process], tmp_path: Path
) -> None:
    start(0, 2)
    other = in_another_process(tmp_path, 1, 2)
    meetings = {ME: "a:1", other: "a:1" if is_one else "b:2"}
    lines = [json.dumps({"pid": pid, "address": at}) for pid, at in meetings.items()]
    (tmp_path / MEETINGS_FILE).write_text("\n".join(lines) + "\n")
    run = living(tmp_path)
    assert set(run.seen) == ({0, 1} if is_one else {0})
    assert run.groups_apart == (0 if is_one else 1)


def test_a_rank_whose_journal_is_damaged_says_so(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    start(1, 12)
    (tmp_path / "rank-0.0.journal").write_bytes(b"x" * 100)
    unseen = living(tmp_path).unseen
    assert "less than a journal's header" in unseen[0]
    assert "never reached" in unseen[10]


def test_a_rank_whose_probes_failed_says_so(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    start(1, 2)
    note = json.dumps({"pid": 3, "rank": 0, "why": "open: OSError(28)"})
    (tmp_path / LOSSES_FILE).write_text(note)
    assert living(tmp_path).unseen == {0: "its probes failed: open: OSError(28)"}


def test_a_folder_of_nothing_but_damaged_journals_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rank-0.0.journal").write_bytes(b"x" * 100)
    with pytest.raises(JournalUnreadable):
        ended(tmp_path)


def test_a_folder_without_journals_is_a_run_nobody_saw(tmp_path: Path) -> None:
    run = ended(tmp_path, ranks=2, exit_code=1)
    assert (run.world_size, sorted(run.unseen), len(run.calls)) == (2, [0, 1], 0)


def test_a_folder_without_a_manifest_is_refused(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    start(0, 1)
    with pytest.raises(RecordUnreadable):
        read_run(tmp_path)


def test_records_that_fell_out_of_the_ring_make_a_rank_partial(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start(0, 1)
    for _ in range(1000):
        process.enter()
        process.then(RecordKind.RETURN)
    run = living(tmp_path)
    assert "its oldest" in run.partial[0]
    assert "fell out of its ring" in run.partial[0]
    assert run.calls["ordinal"][-1] == 1000


def test_an_end_without_its_beginning_is_passed_over(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    """What completes now may have been entered before the ring began."""
    process = start(0, 1)
    process.then(RecordKind.WOKE, call=9)
    process.then(RecordKind.BACKWARD_WAIT, RecordKind.BACKWARD_WOKE, call=8)
    process.calls = 11
    process.enter()
    process.then(RecordKind.WOKE, call=10)
    process.then(RecordKind.BACKWARD_WAIT, call=40)
    assert states(living(tmp_path)) == [State.INSIDE]


def test_lost_events_make_a_rank_partial(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    start(0, 1).writer.lose()
    note = json.dumps({"pid": ME, "rank": 0, "why": "entering: IndexError()"})
    (tmp_path / LOSSES_FILE).write_text(note)
    assert living(tmp_path).partial == {
        0: "1 events could not be written whole by the probes (entering: IndexError())"
    }


def test_a_file_that_was_cut_off_makes_a_rank_partial(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start(0, 1)
    process.enter()
    process.enter()
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    target = copy / process.writer.path.name
    shutil.copy(process.writer.path, target)
    os.truncate(target, HEADER_BYTES + SMALL_BYTES // 4 + 64)
    run = living(copy)
    assert len(run.calls) == 1
    assert run.partial == {0: "1 records were torn; its file was cut off"}


def test_a_whole_journal_is_not_partial(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    start(0, 1).enter()
    assert living(tmp_path).partial == {}


@pytest.mark.parametrize("field", ["rank", "world_size"])
def test_a_job_of_impossible_size_is_refused(
    start: Callable[..., Process], tmp_path: Path, field: str
) -> None:
    process = start(0, 1)
    process.header(field, (1 << 31) - 1)
    with pytest.raises((JournalUnreadable, RecordUnreadable)):
        living(tmp_path)


def test_an_operation_of_a_later_release_is_no_reason_to_crash(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start(0, 1)
    process.writer.put(
        RecordKind.ENTER, ME, 1, 1, process.writer.intern(process.world), op=200
    )
    try:
        run = living(tmp_path)
    except JournalUnreadable:
        return
    standstill(run)
    list(run.events(0))


# --- stacks -------------------------------------------------------------------------


def look(seconds: float, *functions: str, cpu: float | None = None) -> StackSample:
    frames = [
        StackFrame(f"{DIRECTORY}/t.py", 10 + int(seconds) % 3, function, {"i": 4})
        for function in functions
    ]
    return StackSample(rank=0, pid=ME, seconds=seconds, cpu_seconds=cpu, frames=frames)


def watched(
    start: Callable[..., Process], folder: Path, looks: list[StackSample]
) -> Run:
    start(0, 1).enter()
    record.write(folder, record.STACKS, looks)
    return living(folder)


def test_the_last_stack_of_a_rank_counts(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    run = watched(start, tmp_path, [look(1, "a"), look(2, "b", "main")])
    assert run.stacks == {
        0: [
            Frame(Place("t.py", 12, "b"), {"i": 4}),
            Frame(Place("t.py", 12, "main"), {"i": 4}),
        ]
    }


def test_a_rank_seen_in_one_place_again_and_again_is_busy(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    looks = [look(n, "spin", "main", cpu=n / 2) for n in range(BUSY_LOOKS)]
    assert watched(start, tmp_path, looks).of(Busy, 0) == [
        Busy(
            rank=0,
            place=Place("t.py", 11, "spin"),
            seconds=4.0,
            looks=BUSY_LOOKS,
            cpu=0.5,
        )
    ]


@pytest.mark.parametrize(
    "looks",
    [
        [look(n, "spin") for n in range(BUSY_LOOKS - 1)],
        [look(n, "spin" if n else "load") for n in range(BUSY_LOOKS)],
        [look(n) for n in range(BUSY_LOOKS)],
        [],
    ],
)
def test_a_rank_that_moves_or_was_hardly_seen_is_not_busy(
    start: Callable[..., Process], tmp_path: Path, looks: list[StackSample]
) -> None:
    assert watched(start, tmp_path, looks).of(Busy, 0) == []


def holding(seconds: float, cpu: float, *, holds_gil: bool = True) -> StackSample:
    """A look at a process whose main thread is, or is not, Python's one at work."""
    sample = look(seconds, "close", cpu=cpu)
    sample.holds_gil = holds_gil
    return sample


def test_a_rank_that_holds_the_lock_and_does_nothing_is_dead(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    looks = [holding(n, cpu=n / 100) for n in range(BUSY_LOOKS)]
    assert watched(start, tmp_path, looks).of(Dead, 0) == [
        Dead(rank=0, seconds=4.0, place=Place("t.py", 11, "close"))
    ]


def waiting(seconds: float, *, stranded: bool = True, line: int = 11) -> StackSample:
    """A look at a process of which each thread waits, or not, for another one."""
    sample = look(seconds, "close", cpu=0.0)
    sample.stranded = stranded
    sample.frames[0].line = line
    return sample


def test_a_rank_whose_threads_wait_for_each_other_is_stranded(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    looks = [waiting(n) for n in range(BUSY_LOOKS)]
    assert watched(start, tmp_path, looks).of(Stranded, 0) == [
        Stranded(rank=0, seconds=4.0, place=Place("t.py", 11, "close"))
    ]


@pytest.mark.parametrize(
    "looks",
    [
        [waiting(n) for n in range(BUSY_LOOKS - 1)],
        [waiting(n, stranded=n != 2) for n in range(BUSY_LOOKS)],
        [waiting(n, line=11 + n % 2) for n in range(BUSY_LOOKS)],
    ],
)
def test_a_rank_with_a_thread_at_work_is_not_stranded(
    start: Callable[..., Process], tmp_path: Path, looks: list[StackSample]
) -> None:
    assert watched(start, tmp_path, looks).of(Stranded, 0) == []


@pytest.mark.parametrize(
    "looks",
    [
        [holding(n, cpu=0) for n in range(BUSY_LOOKS - 1)],
        [holding(n, cpu=n) for n in range(BUSY_LOOKS)],
        [holding(n, cpu=0, holds_gil=n != 3) for n in range(BUSY_LOOKS)],
    ],
)
def test_a_rank_that_works_or_lets_go_of_the_lock_is_not_dead(
    start: Callable[..., Process], tmp_path: Path, looks: list[StackSample]
) -> None:
    assert watched(start, tmp_path, looks).of(Dead, 0) == []


def test_a_stack_of_a_rank_without_a_journal_does_no_harm(tmp_path: Path) -> None:
    record.write(tmp_path, record.STACKS, [look(n, "spin") for n in range(9)])
    run = ended(tmp_path, ranks=1)
    assert list(run.events(0)) == []


def test_sources_come_along(start: Callable[..., Process], tmp_path: Path) -> None:
    start(0, 1)
    record.write(tmp_path, record.SOURCES, {"t.py": "x = 1\n"})
    assert living(tmp_path).sources == {"t.py": "x = 1\n"}


def test_a_look_at_the_run_alone_reads_neither_stacks_nor_sources(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    start(0, 1)
    (tmp_path / record.STACKS).write_text("damaged")
    assert assemble(tmp_path, manifest_of(), stacks=False).stacks == {}


def test_more_journals_are_read_than_files_may_be_open(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from distdoctor.journal.writer import JournalWriter\n"
        "from distdoctor.journal.assembly import assemble\n"
        "from distdoctor.journal.folder import Manifest\n"
        "folder = Path(sys.argv[1])\n"
        "for rank in range(80):\n"
        "    JournalWriter(folder, rank, 80, 16 * 1024)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "manifest = Manifest(distdoctor='0', launch=[], directory='.')\n"
        "assert assemble(folder, manifest).seen == list(range(80))\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
