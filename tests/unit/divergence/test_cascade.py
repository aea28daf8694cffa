"""Divergences: one fault gets one explanation, and the rank at fault is named."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.divergence.cascade import divergences, findings
from distdoctor.analysis.sentences import finding, sentence
from distdoctor.model.drawing import sketch
from distdoctor.model.events import (
    WORLD,
    Batch,
    Call,
    Ended,
    Event,
    Failure,
    Left,
    Place,
    State,
    Tensor,
)
from distdoctor.model.findings import Certainty, Role
from distdoctor.model.operations import OPERATIONS, Waits
from distdoctor.model.run import Frame, Run

unhurried = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

WAITS = {operation.name: operation.waits for operation in OPERATIONS}


# --- jobs whose ranks do the same, but for one ----------------------------------------


@dataclass(frozen=True)
class Item:
    """A call of a program."""

    op: str
    line: int
    size: int = 4
    dtype: str = "float32"
    reduce_op: str | None = None
    root: int | None = None
    group: str = WORLD

    def call(self, rank: int, ordinal: int) -> Call:
        """The call as a rank begins it."""
        return Call(
            rank=rank,
            op=self.op,
            group=self.group,
            ordinal=ordinal,
            tensors=() if self.op == "barrier" else (Tensor((self.size,), self.dtype),),
            reduce_op=self.reduce_op,
            root=self.root,
            state=State.WAITING,
            place=Place("t.py", self.line),
        )

    @property
    def meets(self) -> tuple[object, ...]:
        """What must be equal on all ranks."""
        size = None if self.op == "barrier" else (self.size, self.dtype)
        return self.op, size, self.reduce_op, self.root


Program = list[Item | Event]
Members = dict[str, list[int]]


@st.composite
def items(choose: st.DrawFn, line: int, members: Members) -> Item:
    group = choose(st.sampled_from(sorted(members)))
    op = choose(
        st.sampled_from(["barrier", "all_gather", "all_reduce", "broadcast", "reduce"])
    )
    roots = st.integers(0, len(members[group]) - 1)
    reduce_ops = {
        "all_reduce": st.sampled_from(["sum", "max"]),
        "reduce": st.just("sum"),
    }
    return Item(
        op,
        line,
        choose(st.integers(1, 3)),
        reduce_op=choose(reduce_ops[op]) if op in reduce_ops else None,
        root=choose(roots) if op in {"broadcast", "reduce"} else None,
        group=group,
    )


@st.composite
def programs(choose: st.DrawFn, members: Members) -> list[Item]:
    """Some calls, a loop of calls, and some calls."""

    def part(first_line: int, least: int) -> list[Item]:
        count = choose(st.integers(least, 3))
        return [choose(items(first_line + n, members)) for n in range(count)]

    rounds = choose(st.integers(1, 4))
    return [*part(1, 0), *part(11, 1) * rounds, *part(21, 0)]


ARGUMENTS = {
    "size": Cause.NUMEL,
    "dtype": Cause.DTYPE,
    "reduce op": Cause.REDUCE_OP,
    "root": Cause.ROOT,
}
ENDS = {"raise": Cause.DIED, "kill": Cause.DIED, "leave": Cause.FINISHED}
SEQUENCES = ["operation", "skip", "add", "repeat", "swap"]  # told in several ways
MUTATIONS = [*ARGUMENTS, *ENDS, *SEQUENCES]


def fits(how: str, program: list[Item], at: int) -> bool:
    """Whether a call can be changed in that way."""
    item, after = program[at], program[at + 1 :]
    match how:
        case "size" | "dtype" if item.op == "barrier":
            return False
        case "reduce op" if item.reduce_op is None:
            return False
        case "root" if item.root is None:
            return False
        case "swap":
            return bool(after) and after[0].meets != item.meets
    # What comes next must not look like what should have come now: two calls in
    # another order are a good explanation then.
    return how not in ARGUMENTS or not after or after[0].meets != item.meets


def mutated(
    choose: st.DrawFn, how: str, program: list[Item], rank: int, members: Members
) -> Program:
    """The program of the rank at fault."""
    places = [at for at in range(len(program)) if fits(how, program, at)]
    assume(places)
    at = choose(st.sampled_from(places))
    item, before, after = program[at], program[:at], program[at + 1 :]
    match how:
        case "size":
            return [*before, replace(item, size=99), *after]
        case "dtype":
            return [*before, replace(item, dtype="int64"), *after]
        case "reduce op":
            return [*before, replace(item, reduce_op="min"), *after]
        case "root":
            assert item.root is not None
            other = (item.root + 1) % len(members[item.group])
            return [*before, replace(item, root=other), *after]
        case "operation":
            return [*before, Item("monitored_barrier", 99), *after]
        case "skip":
            return [*before, *after]
        case "add":
            return [*before, Item("all_gather", 99, 99), item, *after]
        case "repeat":
            return [*before, item, item, *after]
        case "swap":
            return [*before, after[0], item, *after[1:]]
        case "raise":
            failure = Failure(rank=rank, error="KeyError", place=Place("t.py", 98))
            return [*before, failure, Ended(rank=rank, status=1)]
        case "kill":
            return [*before, Ended(rank=rank, status=137, orderly=False)]
        case "leave":
            left = Left(rank=rank, place=Place("t.py", 97))
            return [*before, left, Ended(rank=rank, status=0)]
    raise AssertionError(how)


@dataclass
class Board:
    """Runs programs as ranks on one machine do, with the board before each call."""

    programs: Mapping[int, Program]
    members: Members

    def __post_init__(self) -> None:
        self.events: dict[int, list[Event]] = {rank: [] for rank in self.programs}
        self.at = dict.fromkeys(self.programs, 0)
        self.made: dict[tuple[int, str], list[Item]] = {
            (rank, group): [] for rank in self.programs for group in self.members
        }

    def run(self, order: list[int]) -> Run:
        """Until nothing moves; ranks take their turns in this order."""
        while sum(self._step(rank) for rank in order):
            pass
        return Run.of_events(self.events, members=self.members)

    def _step(self, rank: int) -> bool:
        program, events = self.programs[rank], self.events[rank]
        last = self._last(rank)
        if last is not None and last.state is State.REFUSED:
            return False
        if last is not None and last.state is State.WAITING:
            if not self._is_complete(last):
                return False
            events[-1] = replace(last, state=State.DONE)
        if self.at[rank] == len(program):
            return False
        step = program[self.at[rank]]
        self.at[rank] += 1
        events.append(self._begun(rank, step) if isinstance(step, Item) else step)
        return True

    def _last(self, rank: int) -> Call | None:
        """The rank's last call, if nothing came after it."""
        last = self.events[rank][-1] if self.events[rank] else None
        return last if isinstance(last, Call) else None

    def _begun(self, rank: int, item: Item) -> Call:
        self.made[rank, item.group].append(item)
        n = len(self.made[rank, item.group])
        shown = [self.made[other, item.group][n - 1 : n] for other in self.programs]
        refused = any(other.meets != item.meets for cell in shown for other in cell)
        call = item.call(rank, n)
        return replace(call, state=State.REFUSED) if refused else call

    def _is_complete(self, call: Call) -> bool:
        ranks = self.members[call.group]
        root, needed = ranks[call.root or 0], set(ranks)
        if WAITS[call.op] is Waits.ROOT:
            needed = {root}
        if WAITS[call.op] is Waits.AT_ROOT and root != call.rank:
            needed = set()
        return all(self._issued(other, call.group) >= call.ordinal for other in needed)

    def _issued(self, rank: int, group: str) -> int:
        last = self._last(rank)
        refused = (
            last is not None and last.group == group and last.state is State.REFUSED
        )
        return len(self.made[rank, group]) - refused


@dataclass(frozen=True)
class Job:
    """Programs of which one rank's is at fault, and the order of turns."""

    programs: Mapping[int, Program]
    members: Members
    order: list[int]
    culprit: int = -1

    def run(self) -> Run:
        """What the probes write."""
        return Board(self.programs, self.members).run(self.order)


@st.composite
def jobs(choose: st.DrawFn, how: str = "", groups: bool = False, least: int = 3) -> Job:
    """Jobs of which one rank does something else; without `how`, none does."""
    world_size = choose(st.integers(least, 9))
    members: Members = {WORLD: list(range(world_size))}
    if groups:
        ranks = st.lists(st.sampled_from(members[WORLD]), min_size=3, unique=True)
        members["dp"] = choose(ranks)
    common = choose(programs(members))
    own = {
        rank: [item for item in common if rank in members[item.group]]
        for rank in members[WORLD]
    }
    culprit = -1
    strayed: Program = []
    if how:
        culprit = choose(st.sampled_from(members[WORLD]))
        assume(own[culprit])
        strayed = mutated(choose, how, own[culprit], culprit, members)
    all_programs: dict[int, Program] = {}
    for rank, program in own.items():
        all_programs[rank] = [*program] if rank != culprit else strayed
        if how not in ENDS or rank != culprit:
            all_programs[rank] += [Left(rank=rank), Ended(rank=rank, status=0)]
    order = choose(st.permutations(members[WORLD]))
    return Job(all_programs, members, order, culprit)


@pytest.mark.parametrize("how", MUTATIONS)
@unhurried
@given(data=st.data())
def test_the_one_rank_at_fault_is_named(how: str, data: st.DataObject) -> None:
    job = data.draw(jobs(how))
    found = divergences(job.run())
    assert [divergence.culprits for divergence in found] == [(job.culprit,)]
    assert job.culprit not in found[0].victims


@pytest.mark.parametrize("how", [*ARGUMENTS, *ENDS])
@unhurried
@given(data=st.data())
def test_it_is_named_once_however_many_groups_are_concerned(
    how: str, data: st.DataObject
) -> None:
    job = data.draw(jobs(how, groups=True))
    found = divergences(job.run())
    assert [divergence.culprits for divergence in found] == [(job.culprit,)]


@pytest.mark.parametrize(("how", "why"), [*ARGUMENTS.items(), *ENDS.items()])
@unhurried
@given(data=st.data())
def test_a_fault_is_called_by_its_name(
    how: str, why: Cause, data: st.DataObject
) -> None:
    (found,) = divergences(data.draw(jobs(how)).run())
    assert found.why is why


@unhurried
@given(jobs(groups=True))
def test_a_job_whose_ranks_do_the_same_is_well(job: Job) -> None:
    assert divergences(job.run()) == []


@unhurried
@given(st.sampled_from(MUTATIONS).flatmap(jobs))
def test_every_finding_is_proved_by_events_of_the_run(job: Job) -> None:
    run = job.run()
    for divergence in divergences(run):
        found = finding(divergence)
        assert found.exhibits
        assert all(event in run.events(event.rank) for event in found.exhibits)
        assert set(found.culprits).isdisjoint(found.victims)
        assert sentence(divergence).endswith(".")


# --- explanations ---------------------------------------------------------------------


def the_one(run: Run) -> Divergence:
    (found,) = divergences(run)
    return found


def explained(drawing: str) -> tuple[Cause, tuple[int, ...]]:
    found = the_one(sketch(drawing))
    return found.why, found.culprits


@pytest.mark.parametrize(
    ("zero", "one", "why"),
    [
        ("all_reduce(4)@t.py:7", "all_reduce(5)@t.py:7", Cause.NUMEL),
        ("all_reduce(2x2)@t.py:7", "all_reduce(5)@t.py:7", Cause.NUMEL),
        ("all_reduce(4)@t.py:7", "all_reduce(4:int64)@t.py:7", Cause.DTYPE),
        ("all_reduce(4)@t.py:7", "all_reduce(4,op=max)@t.py:7", Cause.REDUCE_OP),
        ("broadcast(4)@t.py:7", "broadcast(4,root=1)@t.py:7", Cause.ROOT),
        ("all_gather(4+4)@t.py:7", "all_gather(8)@t.py:7", Cause.SPLITS),
        ("all_reduce(4)@t.py:7", "reduce(4)@t.py:7", Cause.OPERATION),
        ("all_reduce(4)@t.py:7", "barrier@t.py:9", Cause.OPERATION),
    ],
)
def test_two_ranks_that_differ_are_both_shown(zero: str, one: str, why: Cause) -> None:
    found = the_one(sketch(f"rank 0 | {zero}...\nrank 1 | {one}!"))
    assert (found.why, found.culprits) == (why, ())
    assert found.victims == (0, 1)
    assert {location.role for location in finding(found).locations} == {Role.PARTY}


def test_of_two_ranks_the_one_that_does_something_new_strays() -> None:
    assert explained("""
        rank 0 | all_reduce(4)@t.py:7  barrier@save.py:3...
        rank 1 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7!
    """) == (Cause.SKIPPED, (0,))


def test_of_two_ranks_that_do_both_something_new_none_is_named() -> None:
    assert explained("""
        rank 0 | all_reduce(4)@t.py:7  barrier@t.py:9...
        rank 1 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:12!
    """) == (Cause.OPERATION, ())


def test_of_two_ranks_that_do_both_something_old_none_is_named() -> None:
    assert explained("""
        rank 0 | all_reduce(4)@t.py:7  barrier@t.py:9  all_reduce(4)@t.py:7...
        rank 1 | all_reduce(4)@t.py:7  barrier@t.py:9  barrier@t.py:9!
    """) == (Cause.OPERATION, ())


def test_three_ranks_that_all_differ_have_no_majority() -> None:
    assert explained("""
        rank 0 | all_reduce(4)@t.py:7...
        rank 1 | all_reduce(5)@t.py:7!
        rank 2 | all_reduce(6)@t.py:7!
    """) == (Cause.NUMEL, ())


def test_two_ranks_may_stray_each_in_its_own_way() -> None:
    found = the_one(
        sketch("""
            rank 0 | all_reduce(4)@t.py:7...
            rank 1 | all_reduce(4)@t.py:7!
            rank 2 | all_reduce(5)@t.py:7!
            rank 3 | all_reduce(6)@t.py:7!
        """)
    )
    assert (found.why, found.culprits) == (Cause.NUMEL, (2, 3))
    assert found.victims == (0, 1)
    assert "rank 2 with 5; rank 3 with 6" in sentence(found)


def test_the_majority_is_right_even_against_rank_0() -> None:
    assert explained("""
        rank 0 | all_reduce(4)@t.py:7...
        rank 1 | all_reduce(5)@t.py:7!
        rank 2 | all_reduce(5)@t.py:7!
    """) == (Cause.NUMEL, (0,))


def test_a_skipped_call_is_told_with_its_line() -> None:
    found = the_one(
        sketch("""
            rank 0 | all_reduce(4)@t.py:7  barrier@t.py:9  all_reduce(4)@t.py:7!
            rank 1 | all_reduce(4)@t.py:7  barrier@t.py:9  all_reduce(4)@t.py:7!
            rank 2 | all_reduce(4)@t.py:7  barrier@t.py:9  barrier@t.py:9...
        """)
    )
    assert (found.why, found.culprits) == (Cause.SKIPPED, (2,))
    assert (found.elsewhere[0].place, found.elsewhere[0].ranks) == (
        Place("t.py", 7),
        (2,),
    )
    assert "skipped all_reduce" in sentence(found)


def test_a_call_of_ones_own_is_told_as_such() -> None:
    found = the_one(
        sketch("""
            rank 0 | all_reduce(4)@t.py:7  barrier@t.py:9...
            rank 1 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7!
            rank 2 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7!
        """)
    )
    assert (found.why, found.culprits) == (Cause.SKIPPED, (0,))
    assert sentence(found).startswith("Rank 0 alone calls barrier")


def test_the_same_calls_the_other_way_round_are_another_order() -> None:
    assert explained("""
        rank 0 | broadcast(4)@t.py:3  all_reduce(4)@t.py:4...
        rank 1 | broadcast(4)@t.py:3  all_reduce(4)@t.py:4...
        rank 2 | all_reduce(4)@t.py:4!
    """)[1] == (2,)
    found = the_one(
        sketch("""
            rank 0 | all_reduce(4)@t.py:3  all_reduce(8)@t.py:4
            rank 1 | all_reduce(8)@t.py:4  all_reduce(4)@t.py:3
            rank 2 | all_reduce(4)@t.py:3  all_reduce(8)@t.py:4
        """)
    )
    assert (found.why, found.culprits) == (Cause.ORDER, (1,))
    assert found.certainty is Certainty.PROVED


def test_calls_whose_lines_are_not_known_are_not_called_swapped() -> None:
    """Made by a callback: in torch's own thread no line of the user's is known."""
    drawing = """
        rank 0 | all_reduce(4)%2        all_reduce(4)@t.py:8  exit=0
        rank 1 | all_reduce(4)@t.py:8   all_reduce(4)%2       exit=0
    """
    assert divergences(sketch(drawing)) == []


def test_calls_of_one_size_in_another_order_are_likely_swapped() -> None:
    found = the_one(
        sketch("""
            rank 0 | all_reduce(4)@t.py:3  all_reduce(4)@t.py:4  exit=0
            rank 1 | all_reduce(4)@t.py:4  all_reduce(4)@t.py:3  exit=0
            rank 2 | all_reduce(4)@t.py:3  all_reduce(4)@t.py:4  exit=0
        """)
    )
    assert (found.why, found.culprits) == (Cause.ORDER, (1,))
    assert found.certainty is Certainty.LIKELY


def test_barriers_in_another_order_harm_nobody() -> None:
    run = sketch("""
        rank 0 | barrier@t.py:3  barrier@t.py:4  exit=0
        rank 1 | barrier@t.py:4  barrier@t.py:3  exit=0
    """)
    assert divergences(run) == []


def test_splits_that_do_not_fit_name_who_is_in_all_of_them() -> None:
    found = the_one(
        sketch("""
            rank 0 | all_to_all_single(6,sent=2/2/2,received=2/2/2)
            rank 1 | all_to_all_single(6,sent=1/2/1,received=2/2/2)
            rank 2 | all_to_all_single(6,sent=2/2/2,received=2/2/2)
        """)
    )
    assert (found.why, found.culprits) == (Cause.SPLITS, (1,))
    assert "rank 1 sends 1 elements to rank 0, which expects 2" in sentence(found)
    assert "1 more pairs disagree" in sentence(found)


def test_splits_that_differ_and_fit_are_well() -> None:
    run = sketch("""
        rank 0 | all_to_all_single(4,sent=1/3,received=1/2)  exit=0
        rank 1 | all_to_all_single(5,sent=2/3,received=3/3)  exit=0
    """)
    assert divergences(run) == []


@pytest.mark.parametrize("splits", ["sent=1,received=1", "sent=,received="])
def test_splits_for_too_few_ranks_are_no_reason_to_crash(splits: str) -> None:
    call = f"all_to_all_single(4,{splits})^"
    divergences(sketch(f"rank 0 | {call}\nrank 1 | {call}"))


# --- rounds ---------------------------------------------------------------------------

SOURCE = """\
def train(loader):
    for i, batch in enumerate(loader):
        if stop(batch):
            break
        if bad(batch):
            continue
        all_reduce(batch)
    barrier()

train(loader)
"""

OUT_OF_STEP = """
    rank 0 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7...
    rank 1 | all_reduce(4)@t.py:7  barrier@t.py:8!
"""


def with_stacks(
    drawing: str, lines: Mapping[int, int], integers: Mapping[int, int] | None = None
) -> Run:
    """A drawn run whose ranks stood at these lines of `train`, in these rounds."""
    stacks = {
        rank: [
            Frame(
                Place("t.py", line, "train"),
                {} if integers is None else {"i": integers[rank]},
            ),
            Frame(Place("t.py", 10, "<module>")),
        ]
        for rank, line in lines.items()
    }
    return replace(sketch(drawing), stacks=stacks, sources={"t.py": SOURCE})


def test_a_loader_that_ended_early_explains_fewer_rounds() -> None:
    found = the_one(
        sketch("""
            rank 0 | all_reduce(4)@t.py:7  batches=2@t.py:5...  all_reduce(4)@t.py:7...
            rank 1 | all_reduce(4)@t.py:7  batches=1@t.py:5     barrier@t.py:8!
        """)
    )
    assert (found.why, found.culprits, found.victims) == (Cause.UNEVEN, (1,), (0,))
    assert isinstance(found.cause, Batch)
    assert found.elsewhere[0].place == Place("t.py", 5)
    assert "had 1 batches" in sentence(found)
    assert "begun batch 2" in sentence(found)


def test_a_loader_that_ended_early_explains_a_rank_that_finished() -> None:
    assert explained("""
        rank 0 | all_reduce(4)@t.py:7  batches=2@t.py:5...  all_reduce(4)@t.py:7...
        rank 1 | all_reduce(4)@t.py:7  batches=1@t.py:5     exit=0
        rank 2 | all_reduce(4)@t.py:7  batches=2@t.py:5...  all_reduce(4)@t.py:7...
    """) == (Cause.UNEVEN, (1,))


def test_with_as_many_batches_the_call_was_skipped_and_not_the_round() -> None:
    assert explained("""
        rank 0 | all_reduce(4)@t.py:7  batches=2@t.py:5...  all_reduce(4)@t.py:7...
        rank 1 | all_reduce(4)@t.py:7  batches=2@t.py:5     barrier@t.py:8!
        rank 2 | all_reduce(4)@t.py:7  batches=2@t.py:5...  all_reduce(4)@t.py:7...
    """) == (Cause.SKIPPED, (1,))


def test_a_stack_behind_the_loop_explains_fewer_rounds() -> None:
    found = the_one(
        with_stacks(
            OUT_OF_STEP + "    rank 2 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7...",
            {0: 7, 1: 8, 2: 7},
        )
    )
    assert (found.why, found.culprits) == (Cause.UNEVEN, (1,))
    assert {location.place.line for location in found.elsewhere} >= {2, 4}
    assert "left the loop at t.py:2" in sentence(found)


def test_a_rank_that_went_through_all_rounds_skipped_the_call() -> None:
    run = with_stacks(
        OUT_OF_STEP + "    rank 2 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7...",
        {0: 7, 1: 8, 2: 7},
        {0: 1, 1: 1, 2: 1},
    )
    found = the_one(run)
    assert (found.why, found.culprits) == (Cause.SKIPPED, (1,))
    assert Place("t.py", 6, "") in {
        replace(location.place, function="") for location in found.elsewhere
    }


def test_a_stack_decides_between_two_ranks_that_do_what_both_did_before() -> None:
    drawing = """
        rank 0 | barrier@t.py:8  all_reduce(4)@t.py:7  all_reduce(4)@t.py:7...
        rank 1 | barrier@t.py:8  all_reduce(4)@t.py:7  barrier@t.py:8!
    """
    assert the_one(sketch(drawing)).culprits == ()
    found = the_one(with_stacks(drawing, {0: 7, 1: 8}))
    assert (found.why, found.culprits) == (Cause.UNEVEN, (1,))


# --- ranks that are gone --------------------------------------------------------------


def test_a_rank_that_finished_is_waited_for_in_vain() -> None:
    found = the_one(
        sketch("""
            rank 0 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7...
            rank 1 | all_reduce(4)@t.py:7  leave@t.py:15             exit=0
            rank 2 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7...
        """)
    )
    assert (found.why, found.culprits, found.victims) == (Cause.FINISHED, (1,), (0, 2))
    assert Place("t.py", 15) in {location.place for location in found.elsewhere}
    assert "which left the job at t.py:15 after 1 calls" in sentence(found)
    assert sentence(found).endswith(" on it and will never come.")


def test_who_waited_until_the_call_gave_up_waits_no_more() -> None:
    """As `monitored_barrier` does, and the caller may catch it and go on."""
    found = the_one(
        sketch("""
            rank 0 | all_reduce(4)@t.py:7  monitored_barrier@t.py:9^  leave  exit=0
            rank 1 | all_reduce(4)@t.py:7  leave@t.py:15              exit=0
            rank 2 | all_reduce(4)@t.py:7  monitored_barrier@t.py:9^  leave  exit=0
        """)
    )
    assert (found.why, found.culprits, found.victims) == (Cause.FINISHED, (1,), (0, 2))
    assert sentence(found).startswith(
        "Ranks {0,2} waited in vain in monitored_barrier "
    )
    assert sentence(found).endswith(" after 1 calls on it and never came.")


def test_a_rank_that_waits_for_many_that_finished_is_the_one_that_strayed() -> None:
    assert explained("""
        rank 0 | all_reduce(4)@t.py:7  barrier@t.py:12...
        rank 1 | all_reduce(4)@t.py:7  exit=0
        rank 2 | all_reduce(4)@t.py:7  exit=0
    """) == (Cause.SKIPPED, (0,))


def test_a_rank_that_goes_once_more_around_than_all_others_strayed() -> None:
    """The majority is the reference, also where it has finished."""
    found = the_one(
        sketch("""
            rank 0 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7...
            rank 1 | all_reduce(4)@t.py:7  exit=0
            rank 2 | all_reduce(4)@t.py:7  exit=0
            rank 3 | all_reduce(4)@t.py:7  exit=0
        """)
    )
    assert found.culprits == (0,)


def test_a_rank_that_died_is_told_with_its_error() -> None:
    found = the_one(
        sketch("""
            rank 0 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7...
            rank 1 | all_reduce(4)@t.py:7  fail=KeyError@t.py:6  exit=1
        """)
    )
    assert (found.why, found.culprits, found.victims) == (Cause.DIED, (1,), (0,))
    assert sentence(found).startswith("Rank 1 raised KeyError at t.py:6")
    assert isinstance(found.cause, Failure)


def test_a_rank_that_was_killed_is_told_with_its_last_line() -> None:
    found = the_one(
        sketch("""
            rank 0 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7...
            rank 1 | all_reduce(4)@t.py:7  exit=137!
        """)
    )
    assert (found.why, found.culprits) == (Cause.DIED, (1,))
    assert "killed by signal 9" in sentence(found)
    assert found.elsewhere[0].place == Place("t.py", 7)


@pytest.mark.parametrize(
    ("line", "is_named"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", True),
        ("os.kill(os.getpid(), 9)", True),
        ("signal.raise_signal(signal.SIGKILL)", True),
        ("os.kill(os.getpid(), signal.SIGUSR1)", False),
        ("os.kill(child.pid, signal.SIGKILL)", False),
    ],
)
def test_a_rank_that_killed_itself_is_told_with_that_line(
    line: str, is_named: bool
) -> None:
    run = sketch("""
        rank 0 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7...
        rank 1 | all_reduce(4)@t.py:7  exit=137!
    """)
    source = f"def crash():\n    {line}\n"
    found = the_one(replace(run, sources={"t.py": source}))
    lines = [location.place.line for location in found.elsewhere]
    assert lines == ([2, 7] if is_named else [7])


def test_who_loses_its_connection_is_a_victim() -> None:
    assert explained("""
        rank 0 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7^  fail=RuntimeError^  exit=1
        rank 1 | all_reduce(4)@t.py:7  fail=KeyError@t.py:6   exit=1
    """) == (Cause.DIED, (1,))


def test_who_was_ended_is_no_culprit() -> None:
    run = sketch("""
        rank 0 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7...
        rank 1 | all_reduce(4)@t.py:7  exit=143!!
    """)
    assert divergences(run) == []


def test_a_death_that_nobody_waited_for_yet_is_told() -> None:
    assert explained("""
        rank 0 | all_reduce(4)@t.py:7  exit=143!!
        rank 1 | all_reduce(4)@t.py:7  fail=KeyError@t.py:6  exit=1
    """) == (Cause.DIED, (1,))


def test_an_exception_on_its_way_up_explains_the_wrong_call() -> None:
    found = the_one(
        sketch(
            """
            rank 0 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7...
            rank 1 | all_reduce(4)@t.py:7  fail=KeyError~@t.py:6  barrier@t.py:20~!
        """.replace("fail=KeyError~@t.py:6", "fail=KeyError@t.py:6~")
        )
    )
    assert (found.why, found.culprits) == (Cause.DIED, (1,))
    assert "on its way up the exception led into barrier at t.py:20" in sentence(found)


def test_an_exception_that_was_handled_explains_nothing() -> None:
    assert explained("""
        rank 0 | all_reduce(4)@t.py:7  all_reduce(4)@t.py:7...
        rank 1 | all_reduce(4)@t.py:7  fail=KeyError@t.py:6~  all_reduce(5)@t.py:7!
    """) == (Cause.NUMEL, ())


def test_one_death_is_one_finding_however_many_groups_wait() -> None:
    assert explained("""
        group dp | 0 1 2
        rank 0 | barrier/dp@t.py:3...
        rank 1 | barrier/dp@t.py:3...
        rank 2 | fail=KeyError@t.py:2  exit=1
        rank 3 | barrier@t.py:4...
    """) == (Cause.DIED, (2,))


def test_one_that_left_is_one_finding_however_many_groups_wait() -> None:
    found = the_one(
        sketch("""
            group dp | 0 1 2
            rank 0 | barrier/dp@t.py:3...
            rank 1 | barrier/dp@t.py:3...
            rank 2 | leave@t.py:2  exit=0
            rank 3 | barrier@t.py:4...
            rank 4 | barrier@t.py:4...
        """)
    )
    assert (found.why, found.culprits) == (Cause.FINISHED, (2,))
    assert found.victims == (0, 1, 3, 4)


def test_a_long_message_is_cut() -> None:
    failure = Failure(rank=1, error="ValueError", message="x" * 500 + "\nsecond line")
    run = Run.of_events(
        {
            0: [Call(rank=0, op="barrier", state=State.WAITING)],
            1: [failure, Ended(rank=1, status=1)],
        }
    )
    assert len(sentence(the_one(run))) < 250
    assert "second line" not in sentence(the_one(run))


@pytest.mark.parametrize("message", ["", "\n", " \n ", "\r"])
def test_an_empty_message_is_none(message: str) -> None:
    failure = Failure(rank=1, error="ValueError", message=message)
    run = Run.of_events(
        {
            0: [Call(rank=0, op="barrier", state=State.WAITING)],
            1: [failure, Ended(rank=1, status=1)],
        }
    )
    assert sentence(the_one(run)).startswith("Rank 1 raised ValueError")


# --- ranks that wait for each other ---------------------------------------------------


def test_groups_in_opposite_order_are_a_circle() -> None:
    found = the_one(
        sketch("""
            group a | 0 1
            group b | 0 1
            rank 0 | barrier/a@t.py:3...
            rank 1 | barrier/b@t.py:4...
        """)
    )
    assert (found.why, found.culprits) == (Cause.CIRCLE, ())
    assert "rank 0 waits in barrier on a for rank 1" in sentence(found)
    assert {location.role for location in finding(found).locations} == {Role.PARTY}


def test_messages_that_cross_are_a_circle_of_messages() -> None:
    assert explained("""
        rank 0 | recv(4,peer=1)@t.py:3...
        rank 1 | recv(4,peer=0)@t.py:3...
    """) == (Cause.MESSAGES, ())


def test_who_waits_behind_a_circle_is_its_victim() -> None:
    found = the_one(
        sketch("""
            group a | 0 1
            group b | 0 1
            group c | 1 2
            rank 0 | barrier/a...
            rank 1 | barrier/b...
            rank 2 | barrier/c...
        """)
    )
    assert sorted(found.calls) == [0, 1]
    assert found.victims == (2,)


def test_a_refused_call_whose_partner_nobody_saw_is_no_circle() -> None:
    assert divergences(sketch("rank 0 | barrier@t.py:3!\nrank 1 | ?")) == []


def test_a_rank_in_its_own_code_that_others_wait_for_is_busy() -> None:
    found = the_one(
        sketch("""
            rank 0 | barrier@t.py:7...
            rank 1 | busy=40@t.py:9
        """)
    )
    assert (found.why, found.culprits, found.victims) == (Cause.BUSY, (1,), (0,))
    assert found.certainty is Certainty.LIKELY


def test_a_busy_rank_that_nobody_waits_for_is_at_work() -> None:
    assert (
        divergences(sketch("rank 0 | barrier\nrank 1 | barrier  busy=40@t.py:9")) == []
    )


# --- findings -------------------------------------------------------------------------


def test_findings_are_asked_for_by_their_explanation() -> None:
    run = sketch("rank 0 | all_reduce(4)...\nrank 1 | all_reduce(5)!")
    assert len(list(findings(run, Cause.NUMEL))) == 1
    assert list(findings(run, Cause.DTYPE)) == []


def test_a_finding_puts_the_line_of_the_culprit_first() -> None:
    run = sketch("""
        rank 0 | all_reduce(4)@a.py:7...
        rank 1 | all_reduce(4)@a.py:7!
        rank 2 | all_reduce(5)@b.py:9!
    """)
    first, second = finding(the_one(run)).locations
    assert (first.place, first.role, first.ranks) == (
        Place("b.py", 9),
        Role.CULPRIT,
        (2,),
    )
    assert (second.place, second.role, second.ranks) == (
        Place("a.py", 7),
        Role.VICTIM,
        (0, 1),
    )


def test_a_finding_has_figures_for_machines() -> None:
    run = sketch("""
        rank 0 | barrier/tp  all_reduce(4)/tp...
        rank 1 | barrier/tp  all_reduce(5)/tp!
    """)
    assert finding(the_one(run)).details == {
        "explanation": "another number of elements",
        "group": "tp",
        "ordinal": 2,
    }


def test_independent_faults_are_told_apart() -> None:
    found = divergences(
        sketch("""
            rank 0 | all_reduce(4)/a...
            rank 1 | all_reduce(5)/a!
            rank 2 | all_reduce(4)/b...
            rank 3 | all_reduce(4:int64)/b!
        """)
    )
    assert [divergence.why for divergence in found] == [Cause.NUMEL, Cause.DTYPE]


def test_divergences_are_worked_out_once() -> None:
    run = sketch("rank 0 | all_reduce(4)...\nrank 1 | all_reduce(5)!")
    assert divergences(run) is divergences(run)
