"""What NCCL's order would do: against a model that goes over all rules."""

from dataclasses import dataclass, replace

from drawn_backends import put_on
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distdoctor.analysis.causes import Cause
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.analysis.p2p.blocking_sends import standing
from distdoctor.catalogue import every_check
from distdoctor.examination.concluding import conclude
from distdoctor.examination.examining import examine
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Call, State, Tensor
from distdoctor.model.run import Run

RANKS = 3

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Step:
    """A call of a rank, and before which of its own calls it waits for its end."""

    op: str
    peer: int = -1
    batched: bool = False
    waited_at: int | None = None  # None: never


Programs = list[list[Step]]


@st.composite
def programs(choose: st.DrawFn) -> Programs:
    """Each message has both its sides and each barrier all its ranks, in any order."""
    steps: Programs = [[] for _ in range(RANKS)]
    ranks = st.permutations(range(RANKS))
    for sender, receiver, _ in choose(st.lists(ranks, max_size=6)):
        steps[sender].append(Step("send", receiver, choose(st.booleans())))
        steps[receiver].append(Step("recv", sender, choose(st.booleans())))
    barriers = choose(st.integers(0, 2))
    for rank, mine in enumerate(steps):
        mine += [Step("barrier")] * barriers
        order = choose(st.permutations(mine))
        ends = st.one_of(st.none(), st.integers(0, len(order)))
        steps[rank] = [
            replace(step, waited_at=at if at is None else max(at, n + 1))
            for n, step in enumerate(order)
            for at in [choose(ends)]
        ]
    return steps


def run_of(steps: Programs) -> Run:
    """The run of these programs, with clocks that tell when each wait ended."""
    run = Run.of_events(
        {
            rank: [
                Call(
                    rank=rank,
                    op=step.op,
                    peer=None if step.peer < 0 else step.peer,
                    tensors=() if step.op == "barrier" else (Tensor((4,)),),
                    batched=step.batched,
                    state=State.ISSUED if step.waited_at is None else State.DONE,
                )
                for step in mine
            ]
            for rank, mine in enumerate(steps)
        },
        members={"world": range(RANKS)},
    )
    for rank, mine in enumerate(steps):
        for n, (row, step) in enumerate(zip(run.rows_of(rank), mine, strict=True)):
            run.calls["enter_ns"][row] = 10 * n + 10
            if step.waited_at is not None:
                run.calls["complete_ns"][row] = 10 * step.waited_at + 5
    return run


def stuck(steps: Programs) -> set[int]:
    """The ranks that cannot end, by going over all rules until nothing changes."""
    calls = [(rank, n) for rank, mine in enumerate(steps) for n in range(len(mine))]
    at = [0] * RANKS
    done: set[tuple[int, int]] = set()

    def step(call: tuple[int, int]) -> Step:
        return steps[call[0]][call[1]]

    def nth(call: tuple[int, int]) -> int:
        mine = steps[call[0]][: call[1]]
        return sum((s.op, s.peer) == (step(call).op, step(call).peer) for s in mine)

    def over(rank: int) -> bool:
        return at[rank] == len(steps[rank]) and may_pass(rank)

    def may_pass(rank: int) -> bool:
        return all(
            (rank, n) in done
            for n, each in enumerate(steps[rank])
            if each.waited_at == at[rank]
        )

    def begun(call: tuple[int, int]) -> bool:
        rank, n = call
        if n >= at[rank]:
            return False
        earlier = [
            (rank, m)
            for m in range(n)
            if steps[rank][m].peer == step(call).peer and not steps[rank][m].batched
        ]
        free = step(call).batched or step(call).op == "barrier" or over(rank)
        return free or all(other in done for other in earlier)

    def partners(call: tuple[int, int]) -> list[tuple[int, int]]:
        mine = step(call)
        if mine.op == "barrier":
            same = [c for c in calls if step(c).op == "barrier" and nth(c) == nth(call)]
            return [c for c in same if c != call]
        op = "recv" if mine.op == "send" else "send"
        return [
            other
            for other in calls
            if other[0] == mine.peer
            and (step(other).op, step(other).peer) == (op, call[0])
            and nth(other) == nth(call)
        ]

    changed = True
    while changed:
        changed = False
        for rank in range(RANKS):
            if at[rank] < len(steps[rank]) and may_pass(rank):
                at[rank] += 1
                changed = True
        for call in calls:
            if call not in done and all(map(begun, [call, *partners(call)])):
                done.add(call)
                changed = True
    return {rank for rank in range(RANKS) if not over(rank)}


@unhurried
@given(programs())
def test_those_stand_still_who_cannot_go_on_by_any_rule(steps: Programs) -> None:
    held = standing(run_of(steps))
    assert set(held) == stuck(steps)
    assert all(hold.needs for hold in held.values())


@st.composite
def one_order(choose: st.DrawFn) -> Programs:
    """All ranks take part in one list of exchanges, each waited for at once."""
    steps: Programs = [[] for _ in range(RANKS)]

    def add(rank: int, new: list[Step]) -> None:
        end = len(steps[rank]) + len(new)
        steps[rank] += [replace(step, waited_at=end) for step in new]

    for kind in choose(st.lists(st.sampled_from(["message", "batch", "barrier"]))):
        a, b, _ = choose(st.permutations(range(RANKS)))
        if kind == "barrier":
            for rank in range(RANKS):
                add(rank, [Step("barrier")])
        elif kind == "message":
            add(a, [Step("send", b)])
            add(b, [Step("recv", a)])
        else:
            for rank, other in ((a, b), (b, a)):
                both = [Step("send", other, True), Step("recv", other, True)]
                add(rank, choose(st.permutations(both)))
    return steps


@unhurried
@given(one_order())
def test_an_order_common_to_all_ranks_is_well(steps: Programs) -> None:
    assert standing(run_of(steps)) == {}


def test_asynchronous_calls_of_a_pair_take_turns() -> None:
    run = sketch("""
        rank 0 | start=2  send(4,peer=1)@t:5&  recv(4,peer=1)@t:6  exit=0
        rank 1 | start=2  send(4,peer=0)@t:5&  recv(4,peer=0)@t:6  exit=0
    """)
    (found,) = divergences(run)
    assert (found.why, found.culprits) == (Cause.RENDEZVOUS, ())
    assert {call.op for call in found.calls.values()} == {"send"}
    assert conclude(run, examine(run, every_check())).verdict == "well"


def test_what_ran_on_nccl_or_in_threads_is_not_made_again() -> None:
    run = sketch("""
        rank 0 | start=2  send(4,peer=1)@t:5&  recv(4,peer=1)@t:6  exit=0
        rank 1 | start=2  send(4,peer=0)@t:5&  recv(4,peer=0)@t:6  exit=0
    """)
    put_on("nccl", run)
    assert divergences(run) == []
    run = sketch("""
        rank 0 | send(4,peer=1)&    recv(4,peer=1)  exit=0
        rank 1 | send(4,peer=0)&%7  recv(4,peer=0)  exit=0
    """)
    assert divergences(run) == []
    run = sketch("""
        rank 0 | send(4,peer=1)&  recv(4,peer=1)  recv_any(4,tag=1)  exit=0
        rank 1 | send(4,peer=0)&  recv(4,peer=0)  send(4,peer=0,tag=1)  exit=0
    """)
    assert divergences(run) == []
