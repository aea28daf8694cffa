"""Drawings: what is drawn is what is read, and a bad one is refused where it is bad."""

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distdoctor.errors import SketchError
from distdoctor.model.drawing import draw, sketch
from distdoctor.model.events import (
    ADDRESS_FAULTS,
    SETUP,
    STORE,
    WORLD,
    BadAddress,
    Batch,
    Busy,
    Call,
    Dead,
    Ended,
    Event,
    Failure,
    Left,
    Locked,
    Misplaced,
    Observation,
    Place,
    Quit,
    Shortened,
    Started,
    State,
    Stranded,
    Tensor,
    ThreadEnded,
    Touched,
    Unreduced,
    Wrapped,
)
from distdoctor.model.layers import LAYERS
from distdoctor.model.observations import KINDS
from distdoctor.model.observations.data import Read
from distdoctor.model.operations import OPERATIONS, REDUCE_OPS, Operation
from distdoctor.model.run import Run

Choose = st.DrawFn

# A busy machine is slow, and that is no fault of the code.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

places = st.builds(
    Place,
    st.sampled_from(["train.py", "src/loop.py", "a-b_c.d/x.py", "/abs/m.py"]),
    st.integers(1, 99_999),
)
maybe_places = st.none() | places
sizes = st.integers(0, 40)
tensors = st.builds(
    Tensor,
    st.lists(sizes, max_size=3).map(tuple),
    st.sampled_from(["float32", "int64", "bfloat16", "float8_e4m3fn", "bool"]),
)
names = st.sampled_from(["0.weight", "0.bias", "net.fc1.weight", "scale_2"])
groups = st.sampled_from([WORLD, SETUP, STORE, "tp", "dp_0", "7"])
keys = st.text(max_size=5)
ranks = st.integers(0, 20)

callers = st.lists(places, max_size=3).map(tuple)


@st.composite
def calls(choose: Choose, rank: int) -> Call:
    operation = choose(st.sampled_from(OPERATIONS))
    splits = st.tuples(
        st.lists(sizes, max_size=3).map(tuple), st.lists(sizes, max_size=3).map(tuple)
    )
    place = choose(maybe_places)
    return Call(
        rank=rank,
        op=operation.name,
        group=choose(groups),
        tensors=tuple(choose(st.lists(tensors, max_size=3))),
        reduce_op=choose(st.sampled_from(REDUCE_OPS)) if reduces(operation) else None,
        root=choose(ranks) if operation.is_rooted else None,
        peer=choose(st.none() | ranks) if operation.is_point_to_point else None,
        tag=choose(st.integers(0, 99)),
        splits=choose(splits) if "all_to_all" in operation.name else None,
        names=tuple(choose(st.lists(keys, max_size=3))) if operation.sets_up else (),
        asynchronous=choose(st.booleans()),
        batched=choose(st.booleans()),
        state=choose(st.sampled_from(State)),
        place=place,
        callers=() if place is None else choose(callers),
        thread=choose(st.integers(0, 5)),
        failing=choose(st.booleans()),
        layer=choose(st.sampled_from(LAYERS)),
        unused=choose(st.booleans()),
    )


def reduces(operation: Operation) -> bool:
    return "reduce" in operation.name


def endings(rank: int) -> st.SearchStrategy[Ended]:
    """A process that distdoctor ended did not run its exit handlers."""
    statuses = st.none() | st.integers(0, 255)
    how = st.sampled_from([(True, False), (False, False), (False, True)])
    return st.builds(
        lambda status, how, place: Ended(
            rank=rank, status=status, orderly=how[0], stopped=how[1], place=place
        ),
        statuses,
        how,
        maybe_places,
    )


whole = st.integers(-1, 2**64 - 1)
broken = st.floats(allow_nan=False, allow_infinity=False)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": whole,
    "float": broken,
    "str": st.text(max_size=5),
    "bool": st.booleans(),
    "tuple[int, ...]": st.lists(whole | st.integers(0, 9), max_size=6).map(tuple),
    "tuple[float, ...]": st.lists(broken, max_size=3).map(tuple),
    "tuple[str, ...]": st.lists(st.text(min_size=1, max_size=3)).map(tuple),
}


def observations(rank: int) -> st.SearchStrategy[Event]:
    every: list[st.SearchStrategy[Event]] = [
        st.builds(
            kind,
            rank=st.just(rank),
            place=maybe_places,
            **{
                field.name: VALUES[str(field.type)]
                for field in fields(kind)
                if field.name not in {"rank", "place"}
            },
        )
        for kind in KINDS
    ]
    return st.one_of(every)


LIFE: dict[type, Callable[[int], st.SearchStrategy[Event]]] = {
    Observation: observations,
    Dead: lambda rank: st.builds(
        Dead,
        rank=st.just(rank),
        seconds=st.integers(0, 999).map(float),
        place=maybe_places,
    ),
    Stranded: lambda rank: st.builds(
        Stranded,
        rank=st.just(rank),
        place=places,
        seconds=st.integers(0, 999).map(float),
    ),
    Locked: lambda rank: st.builds(
        Locked,
        rank=st.just(rank),
        place=places,
        seconds=st.integers(0, 999).map(float),
    ),
    Touched: lambda rank: st.builds(
        Touched,
        rank=st.just(rank),
        issued=maybe_places,
        stepped=st.booleans(),
        place=maybe_places,
    ),
    Call: calls,
    Started: lambda rank: st.builds(
        Started,
        rank=st.just(rank),
        world_size=st.integers(0, 99),
        joined=st.booleans(),
        backend=st.just(""),
        torch=st.just(""),
        device=st.just("cpu"),
        place=maybe_places,
    ),
    BadAddress: lambda rank: st.builds(
        BadAddress,
        rank=st.just(rank),
        fault=st.sampled_from(sorted(ADDRESS_FAULTS)),
        address=st.sampled_from(["localhost:12355", "10.1.1.20:22", "eth0"]),
        given=st.sampled_from(["", "127.0.0.1:29500"]),
        mended=st.booleans(),
        place=maybe_places,
    ),
    Wrapped: lambda rank: st.builds(
        Wrapped,
        rank=st.just(rank),
        how=st.sampled_from(["ddp", "fsdp"]),
        parameters=st.lists(names, max_size=3).map(tuple),
        ranks=st.lists(ranks, max_size=4).map(tuple),
        place=maybe_places,
    ),
    Unreduced: lambda rank: st.builds(
        Unreduced,
        rank=st.just(rank),
        parameters=st.lists(names, max_size=3).map(tuple),
        place=maybe_places,
    ),
    Misplaced: lambda rank: st.builds(
        Misplaced, rank=st.just(rank), device=st.just("meta"), place=maybe_places
    ),
    Shortened: lambda rank: st.builds(
        Shortened,
        rank=st.just(rank),
        kept=st.integers(2, 500),
        length=st.none() | st.integers(8, 10**6),
        place=maybe_places,
    ),
    Batch: lambda rank: st.builds(
        Batch,
        rank=st.just(rank),
        count=st.integers(0, 9999),
        ended=st.booleans(),
        place=maybe_places,
    ),
    Failure: lambda rank: st.builds(
        Failure,
        rank=st.just(rank),
        error=st.sampled_from(["KeyError", "RuntimeError", "DistBackendError"]),
        message=st.just(""),
        place=maybe_places,
        fatal=st.booleans(),
        secondary=st.booleans(),
    ),
    Left: lambda rank: st.builds(Left, rank=st.just(rank), place=maybe_places),
    Ended: endings,
    Quit: lambda rank: st.builds(
        Quit,
        rank=st.just(rank),
        how=st.sampled_from(["sys.exit", "exit", "os._exit"]),
        status=st.integers(0, 255),
        place=maybe_places,
    ),
    ThreadEnded: lambda rank: st.builds(
        ThreadEnded, rank=st.just(rank), thread=st.integers(0, 9999), place=st.none()
    ),
    Busy: lambda rank: st.builds(
        Busy,
        rank=st.just(rank),
        place=places,
        seconds=st.integers(0, 9999).map(lambda tenths: tenths / 10),
        looks=st.just(10),
        cpu=st.just(0.0),
    ),
}


@cache  # making the strategies takes longer than drawing from them
def journals(rank: int) -> st.SearchStrategy[list[Event] | None]:
    events = st.one_of([kind(rank) for kind in LIFE.values()])
    return st.none() | st.lists(events, max_size=5)


@st.composite
def runs(choose: Choose) -> Run:
    drawn = [choose(journals(rank)) for rank in range(choose(st.integers(1, 4)))]
    seen = {rank: events for rank, events in enumerate(drawn) if events is not None}
    unseen = [rank for rank, events in enumerate(drawn) if events is None]
    odd = st.dictionaries(groups, st.lists(st.integers(0, 3), min_size=1, unique=True))
    members = choose(st.just({}) | odd)
    why = dict.fromkeys(unseen, "the rank left no journal")
    closed, exit_code = choose(st.booleans()), choose(st.none() | st.integers(0, 255))
    return Run.of_events(seen, why, members, closed=closed, exit_code=exit_code)


def test_every_kind_of_event_is_drawn_here() -> None:
    assert set(LIFE) == set(get_args(Event))


@unhurried
@given(runs())
def test_sketch_undoes_draw(run: Run) -> None:
    assert sketch(draw(run)) == run


@unhurried
@given(runs())
def test_a_drawing_without_places_is_the_run_without_places(run: Run) -> None:
    bare = sketch(draw(run, places=False))
    assert draw(bare) == draw(run, places=False)
    assert not any(call.place for rank in bare.seen for call in calls_of(bare, rank))


def calls_of(run: Run, rank: int) -> list[Call]:
    return [event for event in run.events(rank) if isinstance(event, Call)]


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("barrier", State.DONE),
        ("barrier...", State.WAITING),
        ("barrier...inside", State.INSIDE),
        ("barrier&...issued", State.ISSUED),
        ("barrier!", State.REFUSED),
        ("barrier^", State.RAISED),
    ],
)
def test_the_ending_of_a_word_is_the_state_of_the_call(word: str, state: State) -> None:
    (call,) = calls_of(sketch(f"rank 0 | {word}"), 0)
    assert call.state is state


def test_an_observation_says_what_is_not_as_usual() -> None:
    text = "rank 0 | read(samples=0-3+7,steps=2,unfinished)@train.py:9"
    run = sketch(text)
    assert run.of(Read, 0) == [
        Read(
            rank=0,
            samples=(0, 1, 2, 3, 7),
            steps=2,
            unfinished=True,
            place=Place("train.py", 9),
        )
    ]
    assert draw(run) == text


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_all_fields_of_an_observation_can_be_left_out(kind: type[Observation]) -> None:
    observation = kind(rank=0)
    assert all(field.type in VALUES or field.name == "place" for field in fields(kind))
    assert not any(getattr(observation, f.name) is True for f in fields(kind))


def test_what_is_not_written_has_its_usual_value() -> None:
    (call,) = calls_of(sketch("rank 0 | all_reduce(4)"), 0)
    assert call == Call(
        rank=0, op="all_reduce", ordinal=1, tensors=(Tensor((4,)),), reduce_op="sum"
    )


def test_collectives_are_counted_by_group_and_messages_are_not() -> None:
    run = sketch("rank 0 | barrier  send(4,peer=1)  barrier/tp  barrier")
    assert [call.ordinal for call in calls_of(run, 0)] == [1, 0, 1, 2]


def test_columns_stand_below_each_other() -> None:
    run = sketch("rank 0 | all_reduce(4)  barrier\nrank 1 | barrier  barrier")
    assert draw(run) == (
        "rank 0 | all_reduce(4)  barrier\n"
        "rank 1 | barrier        barrier"
    )  # fmt: skip


def test_a_group_of_all_ranks_needs_no_line() -> None:
    text = "rank 0 | barrier\nrank 1 | barrier"
    assert draw(sketch("group world | 0 1\n" + text)) == text


def test_an_unseen_rank_has_the_reason_of_drawings() -> None:
    assert sketch("rank 0 | ?").unseen == {0: "the rank left no journal"}


@pytest.mark.parametrize(
    ("drawing", "complaint"),
    [
        ("rank 0 all_reduce", r"line 1: 'rank 0 all_reduce' is not of the form"),
        ("rank 0 | .\n\nrank 1 | .", r"line 2: '' is not of the form"),
        ("rank 0 | .\nrank 0 | .", r"line 2: 'rank 0' was drawn already"),
        ("rank 0 | ?\nrank 0 | .", r"line 2: 'rank 0' was drawn already"),
        ("rank 0 | .\nrank 1 | All-Reduce", r"line 2: 'All-Reduce' is no event"),
        ("rank 0 | barrier  all_reduc(4)", r"line 1: 'all_reduc\(4\)' is no event"),
        ("rank 0 | barrier ?", r"line 1: '\?' is no event"),
        ("rank 0 | barrier....", r"line 1: 'barrier\.\.\.\.' is no event"),
        ("rank 0 | broadcast(4,root=a)", r"line 1: .* is no event"),
        ("rank 0 | all_reduce(4,colour=red)", r"line 1: .* is no event"),
        ("rank 0 | exit=zero", r"line 1: 'exit=zero' is no event"),
        ("rank 0 | start", r"line 1: 'start' is no event"),
        ("rank 0 | busy=40", r"line 1: 'busy=40' is no event"),
        ("rank 0 | barrier=3", r"line 1: 'barrier=3' is no event"),
        ("rank 0 | read=3", r"line 1: 'read=3' is no event"),
        ("rank 0 | read(colour=3)", r"line 1: .* is no event"),
        ("rank 0 | read(steps)", r"line 1: .* is no event"),
        ("rank 0 | read(unfinished=1)", r"line 1: .* is no event"),
        ("rank 0 | read(samples=3-)", r"line 1: .* is no event"),
    ],
)
def test_a_bad_drawing_is_refused_where_it_is_bad(drawing: str, complaint: str) -> None:
    with pytest.raises(SketchError, match=complaint):
        sketch(drawing)


def test_an_error_names_line_and_word() -> None:
    with pytest.raises(SketchError) as caught:
        sketch("rank 0 | barrier\nrank 1 | barrier  what")
    assert (caught.value.line, caught.value.word) == (2, "what")


@pytest.mark.parametrize(
    "word",
    [
        "all_reduce(4,op=median)",
        "all_to_all_single(4,sent=1/3)",
        "all_to_all_single(4,received=1/3)",
    ],
)
def test_options_that_no_call_has_are_refused(word: str) -> None:
    with pytest.raises(SketchError) as caught:
        sketch(f"rank 0 | {word}")
    assert caught.value.word == word


def test_ranks_that_are_left_out_are_refused() -> None:
    with pytest.raises(SketchError):
        sketch("rank 0 | .\nrank 2 | .")


options = st.sampled_from(
    [
        *("4", "2x3:int64", "-", "4+2", "x", "op=max", "op=what", "root=1", "root="),
        *("peer=0", "peer=-1", "tag=7", "sent=1/3", "received=2/2", "size=3"),
    ]
)
doubtful_words = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(
            [
                *("barrier", "all_reduce", "broadcast", "all_to_all_single", "send"),
                *("start", "exit", "wrap", "group", "batches", "fail", "leave"),
                *("over", "busy", "what", "?", "."),
            ]
        ),
        st.sampled_from(["", "", "=", "=0", "=1+0", "=a:b", "=?"]),
        st.just("") | st.lists(options, max_size=3).map(lambda o: f"({','.join(o)})"),
        st.sampled_from(["", "", "/tp", "/"]),
        st.sampled_from(["", "", "@a.py:1", "@a.py"]),
        st.sampled_from(["", "", "&", "~", "&~"]),
        st.sampled_from(["", "...", "...inside", "issued", "!", "!!", "^", "%1"]),
    ),
)
doubtful_lines = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["rank 0 | ", "rank 1 | ", "rank 2 |", "group tp | 0 1 "]),
        st.lists(doubtful_words, max_size=3).map("  ".join),
    ),
)


@unhurried
@given(st.lists(doubtful_lines, max_size=3).map("\n".join))
def test_any_text_is_a_run_or_a_sketch_error(text: str) -> None:
    try:
        run = sketch(text)
    except SketchError:
        return
    assert sketch(draw(run)) == run


def test_a_line_may_be_continued_on_the_next() -> None:
    short = sketch("rank 0 | barrier\n       | exit=0\nrank 1 | ?")
    assert short == sketch("rank 0 | barrier  exit=0\nrank 1 | ?")


def test_nothing_is_continued_before_the_first_line() -> None:
    with pytest.raises(SketchError):
        sketch("| barrier")
