"""Who waits for ever: against a little simulator that runs the ranks until they stand.

The simulator knows programs; the analysis knows only the calls that were written.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest
from drawn_backends import put_on
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distdoctor.analysis.causes import Cause
from distdoctor.analysis.deadlock.wait_for_graph import gone, standstill
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.model.drawing import sketch
from distdoctor.model.events import WORLD, Call, Ended, Event, State, Tensor
from distdoctor.model.run import Run

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

TENSORS = (Tensor((4,)),)


# --- programs -------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One thing a rank does: a call, or a wait for an earlier one.

    Attributes:
        op: Name of the operation; "wait" for the end of an asynchronous call.
        group: Its group.
        number: Of the step in the script: all ranks' parts of it have the same.
        root: Global rank of the root.
        peer: Global rank of the other side of a message.
    """

    op: str
    group: str
    number: int
    root: int = -1
    peer: int = -1
    asynchronous: bool = False

    @property
    def order(self) -> tuple[object, ...]:
        """Steps with the same order must not change places."""
        if self.op in {"send", "recv"}:
            return self.op, self.peer
        return (self.group,)


Programs = dict[int, list[Step]]
Members = dict[str, list[int]]


@st.composite
def scripts(choose: st.DrawFn) -> tuple[Members, Programs]:
    """Programs that fit together: each rank does its part of one script."""
    world_size = choose(st.integers(2, 5))
    everyone = list(range(world_size))
    members = {WORLD: everyone}
    for name in ("tp", "pp")[: choose(st.integers(0, 2))]:
        members[name] = choose(
            st.lists(st.sampled_from(everyone), min_size=2, unique=True)
        )
    programs: Programs = {rank: [] for rank in everyone}
    ops = ["barrier", "all_reduce", "later", "broadcast", "reduce", "message"]
    for number in range(choose(st.integers(1, 7))):
        op = choose(st.sampled_from(ops))
        group = choose(st.sampled_from(list(members)))
        ranks = members[group]
        if op == "message":
            one, other = choose(st.permutations(everyone))[:2]
            programs[one].append(Step("send", WORLD, number, peer=other))
            programs[other].append(Step("recv", WORLD, number, peer=one))
            continue
        root = choose(st.sampled_from(ranks)) if op in {"broadcast", "reduce"} else -1
        for rank in ranks:
            if op == "later":
                programs[rank].append(
                    Step("all_reduce", group, number, asynchronous=True)
                )
                if choose(st.booleans()):
                    programs[rank].append(Step("wait", group, number))
            else:
                programs[rank].append(Step(op, group, number, root=root))
    return members, programs


def postpone_waits(choose: st.DrawFn, programs: Programs) -> None:
    """Let ranks do other things before they wait; every program still fits."""
    for steps in programs.values():
        for at in reversed(range(len(steps))):
            if steps[at].op == "wait":
                later = choose(st.integers(at, len(steps) - 1))
                steps.insert(later, steps.pop(at))


def swap(choose: st.DrawFn, programs: Programs) -> None:
    """Let a rank do two things of different groups the other way round."""
    steps = programs[choose(st.sampled_from(sorted(programs)))]
    if len(steps) > 1:
        at = choose(st.integers(0, len(steps) - 2))
        first, second = steps[at : at + 2]
        if first.order != second.order:
            steps[at : at + 2] = [second, first]


def cut(choose: st.DrawFn, programs: Programs) -> None:
    """Let a rank end early."""
    steps = programs[choose(st.sampled_from(sorted(programs)))]
    del steps[choose(st.integers(0, len(steps))) :]


Mutation = Callable[[st.DrawFn, Programs], None]


@st.composite
def programs_with(choose: st.DrawFn, *mutations: Mutation) -> tuple[Members, Programs]:
    members, programs = choose(scripts())
    postpone_waits(choose, programs)
    if mutations:
        for mutation in choose(st.lists(st.sampled_from(mutations), max_size=3)):
            mutation(choose, programs)
    return members, programs


# --- the simulator --------------------------------------------------------------------


@dataclass
class Simulator:
    """Runs programs, one rank and one step at a time."""

    members: Members
    programs: Programs
    at: dict[int, int] = field(default_factory=dict)  # the step a rank is at
    made: dict[int, list[Call]] = field(default_factory=dict)
    blocked: dict[int, int] = field(default_factory=dict)  # position in `made`
    _rows: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for rank in self.programs:
            self.at[rank], self.made[rank] = 0, []

    def run(self) -> None:
        """Until nothing moves."""
        while sum(self.step(rank) for rank in self.programs):
            pass

    def step(self, rank: int) -> bool:
        """One step of a rank; whether it moved."""
        if self.at[rank] >= len(self.programs[rank]):
            return False
        step = self.programs[rank][self.at[rank]]
        moved = rank not in self.blocked
        if moved:
            self._begin(rank, step)
        row = self.blocked[rank]
        if step.asynchronous or self._is_complete(rank, step, self.made[rank][row]):
            state = State.ISSUED if step.asynchronous else State.DONE
            self._become(rank, row, state)
            del self.blocked[rank]
            self.at[rank] += 1
            moved = True
        return moved

    def _begin(self, rank: int, step: Step) -> None:
        if step.op == "wait":
            self.blocked[rank] = self._rows[rank, step.number]
            self._become(rank, self.blocked[rank], State.WAITING)
            return
        made, ranks = self.made[rank], self.members[step.group]
        is_message = step.op in {"send", "recv"}
        before = sum(call.group == step.group and call.ordinal > 0 for call in made)
        self._rows[rank, step.number] = self.blocked[rank] = len(made)
        made.append(
            Call(
                rank=rank,
                op=step.op,
                group=step.group,
                ordinal=0 if is_message else before + 1,
                tensors=() if step.op == "barrier" else TENSORS,
                reduce_op="sum" if "reduce" in step.op else None,
                root=ranks.index(step.root) if step.root >= 0 else None,
                peer=ranks.index(step.peer) if is_message else None,
                asynchronous=step.asynchronous,
                state=State.WAITING,
            )
        )

    def _become(self, rank: int, row: int, state: State) -> None:
        call = self.made[rank][row]
        fields = {name: getattr(call, name) for name in call.__slots__}
        self.made[rank][row] = Call(**fields | {"state": state})

    def _is_complete(self, rank: int, step: Step, call: Call) -> bool:
        if step.op in {"send", "recv"}:
            other = "recv" if step.op == "send" else "send"
            mine = [
                s for s in self._begun(rank) if (s.op, s.peer) == (step.op, step.peer)
            ]
            theirs = [
                s for s in self._begun(step.peer) if (s.op, s.peer) == (other, rank)
            ]
            return len(theirs) >= len(mine)
        needed = set(self.members[step.group])
        if step.op == "broadcast":
            needed = {step.root} if rank != step.root else set()
        if step.op == "reduce" and rank != step.root:
            needed = set()
        return all(
            call.ordinal
            <= max((c.ordinal for c in self._on(other, step.group)), default=0)
            for other in needed
        )

    def _on(self, rank: int, group: str) -> list[Call]:
        return [call for call in self.made[rank] if call.group == group]

    def _begun(self, rank: int) -> list[Step]:
        return self.programs[rank][: self.at[rank] + (rank in self.blocked)]

    def stuck(self) -> set[int]:
        """Ranks that have not come to the end of their programs."""
        return {r for r, steps in self.programs.items() if self.at[r] < len(steps)}

    def recorded(self, hidden: frozenset[int] = frozenset()) -> Run:
        """The run as the probes would have written it up to now."""
        events: dict[int, list[Event]] = {
            rank: [*self.made[rank]] for rank in self.programs if rank not in hidden
        }
        for rank in events:
            if rank not in self.stuck():
                events[rank].append(Ended(rank=rank, status=0))
        return Run.of_events(events, dict.fromkeys(hidden, "hidden"), self.members)


def simulated(members: Members, programs: Programs) -> Simulator:
    simulator = Simulator(members, programs)
    simulator.run()
    return simulator


# --- properties -----------------------------------------------------------------------


@unhurried
@given(programs_with(swap, cut))
def test_the_stuck_are_those_the_simulator_leaves_stuck(
    job: tuple[Members, Programs],
) -> None:
    simulator = simulated(*job)
    run = simulator.recorded()
    assert set(standstill(run).waits) == simulator.stuck()
    assert gone(run) == set(job[1]) - simulator.stuck()


@unhurried
@given(programs_with(swap))
def test_a_job_that_comes_to_its_end_is_well(job: tuple[Members, Programs]) -> None:
    simulator = simulated(*job)
    run = simulator.recorded()
    if not simulator.stuck():
        assert standstill(run).waits == {}
        assert divergences(run) == []


@unhurried
@given(programs_with())
def test_programs_that_fit_come_to_their_end(job: tuple[Members, Programs]) -> None:
    """Of the simulator itself: messages may still cross, collectives cannot."""
    messages = any(step.op == "send" for steps in job[1].values() for step in steps)
    assert messages or not simulated(*job).stuck()


@unhurried
@given(programs_with(swap, cut), st.lists(st.integers(0, 4), max_size=25))
def test_no_rank_is_called_stuck_too_early(
    job: tuple[Members, Programs], schedule: list[int]
) -> None:
    """A look at any moment, whatever came first.

    Of a broadcast whose root has given it, only the backend knows whether it will come:
    that such a wait ends is left open, and said.
    """
    simulator = Simulator(*job)
    for choice in schedule:
        simulator.step(choice % len(job[1]))
    early = standstill(simulator.recorded())
    assert early.by_send or set(early.waits) <= simulated(*job).stuck()


@unhurried
@given(programs_with(swap, cut), st.frozensets(st.integers(0, 4), min_size=1))
def test_what_nobody_saw_makes_nobody_stuck(
    job: tuple[Members, Programs], hidden: frozenset[int]
) -> None:
    simulator = simulated(*job)
    hidden &= set(job[1])
    if len(hidden) < len(job[1]):
        assert set(standstill(simulator.recorded(hidden)).waits) <= simulator.stuck()


@unhurried
@given(programs_with(swap, cut))
def test_a_wait_names_those_that_did_not_come(job: tuple[Members, Programs]) -> None:
    simulator = simulated(*job)
    run = simulator.recorded()
    for rank, (wait,) in standstill(run).waits.items():
        call = run.call(wait.row)
        assert (wait.rank, call.rank) == (rank, rank)
        assert wait.missing
        assert rank not in wait.missing
        if call.ordinal and call.root is None:
            assert wait.missing == {
                other
                for other in job[0][call.group]
                if call.ordinal > len(simulator._on(other, call.group))
                or call.ordinal
                > max(c.ordinal for c in simulator._on(other, call.group))
            }


# --- examples -------------------------------------------------------------------------


def stuck_in(drawing: str) -> Mapping[int, set[int]]:
    """Whom each stuck rank's first wait needs."""
    return {
        rank: set(waits[0].missing)
        for rank, waits in standstill(sketch(drawing)).waits.items()
    }


def test_two_groups_in_opposite_order_wait_in_a_circle() -> None:
    assert stuck_in("""
        group a | 0 1
        group b | 0 1
        rank 0 | barrier/a...
        rank 1 | barrier/b...
    """) == {0: {1}, 1: {0}}


def test_a_rank_that_computes_may_yet_come() -> None:
    assert stuck_in("rank 0 | barrier...\nrank 1 | .") == {}
    assert stuck_in("rank 0 | barrier...\nrank 1 | all_reduce(4)") == {}
    assert stuck_in("rank 0 | barrier...\nrank 1 | all_reduce(4)&...issued") == {}


@pytest.mark.parametrize("end", ["leave", "exit=0", "exit=137!", "exit=?"])
def test_a_rank_that_is_gone_will_not_come(end: str) -> None:
    assert stuck_in(f"rank 0 | barrier...\nrank 1 | {end}") == {0: {1}}


def test_a_rank_that_joined_again_may_come() -> None:
    drawing = "rank 0 | barrier...\nrank 1 | leave  start=2"
    assert stuck_in(drawing) == {}
    assert gone(sketch(drawing)) == set()


def test_a_rank_nobody_saw_may_come() -> None:
    assert stuck_in("rank 0 | barrier...\nrank 1 | ?") == {}


def test_who_waits_for_a_stuck_rank_is_stuck() -> None:
    assert stuck_in("""
        group a | 0 1
        group b | 1 2
        group c | 2 3
        rank 0 | barrier/a...
        rank 1 | barrier/b...
        rank 2 | barrier/c...
        rank 3 | exit=0
    """) == {0: {1}, 1: {2}, 2: {3}}


def test_who_waits_for_a_rank_that_can_go_on_is_not_stuck() -> None:
    assert (
        stuck_in("""
        group a | 0 1
        group b | 1 2
        rank 0 | barrier/a...
        rank 1 | barrier/b...
        rank 2 | .
    """)
        == {}
    )


@pytest.mark.parametrize("state", ["...", "...inside"])
def test_inside_and_waiting_are_both_blocked(state: str) -> None:
    assert stuck_in(f"rank 0 | barrier{state}\nrank 1 | exit=0") == {0: {1}}


@pytest.mark.parametrize("state", ["", "^", "&...issued"])
def test_a_call_that_ended_or_was_only_issued_blocks_nobody(state: str) -> None:
    assert stuck_in(f"rank 0 | barrier{state}\nrank 1 | exit=0") == {}


def test_a_refused_call_waits_for_itself_and_counts_for_nobody() -> None:
    assert stuck_in("rank 0 | all_reduce(4)...\nrank 1 | all_reduce(5)!") == {
        0: {1},
        1: {1},
    }


@pytest.mark.parametrize("first", ["complete", "late"])
def test_a_thread_goes_on_when_all_that_it_waits_for_has_come(first: str) -> None:
    """As in a function that a framework runs as a graph: several waits of one thread.

    The first of its calls has, or may yet get, what it needs; the second never will.
    """
    three = {"complete": "all_reduce(4)/a...", "late": "."}[first]
    assert stuck_in(f"""
        group a | 0 2
        group b | 0 1
        rank 0 | all_reduce(4)/a...  all_reduce(4)/b...
        rank 1 | exit=0
        rank 2 | {three}
    """) == {0: {1} if first == "complete" else {2}}


def test_a_thread_that_nothing_keeps_may_release_its_rank() -> None:
    assert (
        stuck_in("""
        group a | 0 2
        group b | 0 1
        rank 0 | all_reduce(4)/a...  all_reduce(4)/b...%2
        rank 1 | exit=0
        rank 2 | all_reduce(4)/a...
    """)
        == {}
    )


def test_a_thread_whose_calls_may_all_come_is_not_stuck() -> None:
    assert (
        stuck_in("""
        group a | 0 2
        group b | 0 1
        rank 0 | all_reduce(4)/a...  all_reduce(4)/b...
        rank 1 | .
        rank 2 | .
    """)
        == {}
    )


def test_a_call_that_everybody_made_is_not_waited_for_in_vain() -> None:
    assert stuck_in("rank 0 | barrier...\nrank 1 | barrier...") == {}


@pytest.mark.parametrize(
    ("zero", "one", "stuck"),
    [
        ("broadcast(4)&...issued", "exit=0", {}),
        ("exit=0", "broadcast(4)...", {1: {0}}),
        ("exit=0", "reduce(4)&...issued", {}),
        ("reduce(4)...", "exit=0", {0: {1}}),
        ("gather(4)...", "exit=0", {0: {1}}),
        ("exit=0", "scatter(4)...", {1: {0}}),
    ],
)
def test_a_root_waits_where_it_takes_and_others_where_it_gives(
    zero: str, one: str, stuck: dict[int, set[int]]
) -> None:
    assert stuck_in(f"rank 0 | {zero}\nrank 1 | {one}") == stuck


@pytest.mark.parametrize(
    "call", ["broadcast(4)", "scatter(4)", "reduce(4,root=1)", "gather(4,root=1)"]
)
def test_who_only_gives_and_is_seen_to_wait_waits_for_one_that_did_not_come(
    call: str,
) -> None:
    still = standstill(sketch(f"rank 0 | {call}...\nrank 1 | exit=0"))
    assert {rank: set(waits[0].missing) for rank, waits in still.waits.items()} == {
        0: {1}
    }
    assert still.by_send
    came = f"rank 0 | {call}...\nrank 1 | {call}...\nrank 2 | ."
    assert 0 not in stuck_in(came + "\nrank 3 | exit=0")  # rank 2 may be the one


def test_who_waits_for_the_root_may_wait_for_one_that_hands_it_on() -> None:
    """Data goes down a tree of ranks, and the root has come."""
    drawing = """
        rank 0 | broadcast(4)
        rank 1 | recv(4,peer=2)...
        rank 2 | broadcast(4)...
    """
    assert stuck_in(drawing) == {}  # rank 0 can still go on: nothing is proved
    drawing = """
        rank 0 | broadcast(4)  recv(4,peer=1)...
        rank 1 | recv(4,peer=2)...
        rank 2 | broadcast(4)...
    """
    assert stuck_in(drawing) == {0: {1}, 1: {2}, 2: {0, 1}}


def test_two_roots_that_wait_for_each_other_on_two_groups_are_a_circle() -> None:
    (found,) = divergences(
        sketch("""
        group a | 0 1
        group b | 0 1
        rank 0 | broadcast(4)/a@t:5...
        rank 1 | broadcast(4,root=1)/b@t:7...
        """)
    )
    assert found.why is Cause.CIRCLE


@pytest.mark.parametrize(
    ("zero", "one", "stuck"),
    [
        ("recv(4,peer=1)...", "recv(4,peer=0)...", {0: {1}, 1: {0}}),
        ("send(4,peer=1)...", "send(4,peer=0)...", {0: {1}, 1: {0}}),
        ("send(4,peer=1)...", "recv(4,peer=0)...", {}),
        ("send(4,peer=1)&...issued  recv(4,peer=1)...", "recv(4,peer=0)...", {}),
        ("send(4,peer=1,tag=1)...", "recv(4,peer=0,tag=2)...", {0: {1}, 1: {0}}),
        ("recv(4,peer=1)...", "exit=0", {0: {1}}),
        ("recv(4,peer=1)...", "send(4,peer=0)  exit=0", {}),
        ("recv(4,peer=1)  recv(4,peer=1)...", "send(4,peer=0)  exit=0", {0: {1}}),
        ("recv_any(4)...", "exit=0", {0: {1}}),
        ("recv_any(4)...", "send(4,peer=0)  exit=0", {}),
        ("recv_any(4)  recv_any(4)...", "send(4,peer=0)  exit=0", {0: {1}}),
        ("recv_any(4)...", "send(4,peer=0)...", {}),
    ],
)
def test_messages_wait_for_their_other_side(
    zero: str, one: str, stuck: dict[int, set[int]]
) -> None:
    assert stuck_in(f"rank 0 | {zero}\nrank 1 | {one}") == stuck


def test_from_any_source_one_that_can_go_on_is_enough() -> None:
    circle = "rank 0 | recv_any(4)...\nrank 1 | recv(4,peer=0)..."
    assert set(stuck_in(circle)) == {0, 1}
    assert stuck_in(circle + "\nrank 2 | .") == {}
    assert set(stuck_in(circle + "\nrank 2 | exit=0")) == {0, 1}


def inside(drawing: str, backend: str) -> Run:
    """A run whose ranks are inside the calls in which they are drawn to wait."""
    run = sketch(drawing)
    waiting = run.calls["state"] == State.WAITING
    run.calls["state"][waiting] = State.INSIDE
    put_on(backend, run)
    return run


@pytest.mark.parametrize(
    ("calls", "backend", "stuck"),
    [
        # As recorded on an H200 with NCCL 2.28.9, in the first exchange of a healthy
        # job: both set up the communicator of their pair.
        (("send(4,peer=1)+...", "send(4,peer=0)+..."), "nccl", False),
        (("send(4,peer=1)...", "send(4,peer=0)..."), "nccl", False),
        (("send(4,peer=1)+...", "send(4,peer=0)+..."), "gloo", False),
        (("send(4,peer=1)...", "send(4,peer=0)..."), "gloo", True),
        (("send(4,peer=1)+...", "exit=0"), "nccl", True),
        (("recv(4,peer=1)...", "barrier..."), "nccl", True),
    ],
)
def test_who_hands_messages_over_waits_until_the_other_does(
    calls: tuple[str, str], backend: str, stuck: bool
) -> None:
    lines = [f"rank {rank} | start=2  {call}" for rank, call in enumerate(calls)]
    assert bool(standstill(inside("\n".join(lines), backend)).waits) == stuck


def test_only_a_standstill_by_a_send_says_so() -> None:
    by_send = "rank 0 | send(4,peer=1)...\nrank 1 | send(4,peer=0)..."
    assert standstill(sketch(by_send)).by_send
    assert not standstill(sketch("rank 0 | barrier...\nrank 1 | exit=0")).by_send


def test_a_second_thread_that_is_free_may_yet_help() -> None:
    assert stuck_in("rank 0 | barrier/a%7  barrier...\nrank 1 | exit=0") == {}


def test_a_second_thread_that_is_over_cannot_help() -> None:
    drawing = "group a | 0 1\nrank 0 | barrier%7  over=7  barrier...\nrank 1 | exit=0"
    assert set(stuck_in(drawing)) == {0}


def test_a_main_thread_that_never_called_may_yet_help() -> None:
    assert stuck_in("rank 0 | barrier...%7\nrank 1 | exit=0") == {}


def test_a_rank_is_stuck_if_all_its_threads_are() -> None:
    run = sketch("""
        group a | 0 1
        rank 0 | barrier/a...%7  barrier...
        rank 1 | exit=0
    """)
    assert [len(waits) for waits in standstill(run).waits.values()] == [2]


def test_one_thread_that_can_go_on_keeps_its_rank_moving() -> None:
    assert (
        stuck_in("""
        group a | 0 2
        rank 0 | barrier/a...%7  barrier...
        rank 1 | exit=0
        rank 2 | .
    """)
        == {}
    )


def test_a_standstill_is_worked_out_once() -> None:
    run = sketch("rank 0 | barrier...\nrank 1 | exit=0")
    assert standstill(run) is standstill(run)
