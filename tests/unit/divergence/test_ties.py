"""Ties that a loop decides: by its head, or because one side has left it."""

from dataclasses import replace
from inspect import cleandoc

import pytest

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.analysis.divergence.ties import left_by_one_side
from distdoctor.analysis.sentences import sentence
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Place
from distdoctor.model.findings import Certainty
from distdoctor.model.run import Frame

LOOP = cleandoc("""
    def train():
        for batch in {head}:
            all_reduce(batch)
    train()
    barrier()
""")

ROUNDS = """
    rank 0 | all_reduce(4)@t.py:3  all_reduce(4)@t.py:3  all_reduce(4)@t.py:3...
    rank 1 | all_reduce(4)@t.py:3  all_reduce(4)@t.py:3  barrier@t.py:5!
"""


def divergence_of(
    source: str, drawing: str, stacks: dict[int, list[tuple[int, str]]] | None = None
) -> Divergence:
    """The divergence of a drawing; stacks are lines and functions, innermost first."""
    run = sketch(drawing)
    frames = {
        rank: [Frame(Place("t.py", line, function)) for line, function in stack]
        for rank, stack in (stacks or {}).items()
    }
    run = replace(run, sources={"t.py": source}, stacks=frames)
    (divergence,) = divergences(run)
    return divergence


STACKS = {0: [(3, "train"), (4, "<module>")], 1: [(5, "<module>")]}


@pytest.mark.parametrize(
    ("head", "culprit"),
    [
        ("range(2 + (dist.get_rank() == 0))", 0),
        ("[*loader, *list(loader)[: dist.get_rank() == 0]]", 0),
        ("range(3 - (dist.get_rank() == 1))", 1),
        ("range(3 - dist.get_rank())", 1),  # each has its own: nobody is singled out
        ("loader", 1),
    ],
)
def test_of_two_the_one_is_blamed_whom_the_head_singles_out(
    head: str, culprit: int
) -> None:
    found = divergence_of(LOOP.format(head=head), ROUNDS, STACKS)
    assert found.culprits == (culprit,)
    assert {found.culprits[0], *found.victims} == {0, 1}
    if culprit == 0:
        assert found.certainty is Certainty.LIKELY
        assert found.elsewhere[0].place.line == 2
        assert "With no majority" in sentence(found)


def test_a_majority_needs_no_head() -> None:
    drawing = (
        ROUNDS
        + "    rank 2 | all_reduce(4)@t.py:3  all_reduce(4)@t.py:3  barrier@t.py:5!"
    )
    source = LOOP.format(head="range(2 + (dist.get_rank() == 0))")
    assert divergence_of(source, drawing, STACKS).culprits == (0,)


CALLED_BOTH_WAYS = """
    rank 0 | barrier@t.py:5  all_reduce(4)@t.py:3  all_reduce(4)@t.py:3...
    rank 1 | barrier@t.py:5  all_reduce(4)@t.py:3  barrier@t.py:5!
"""

TWO_PARTS = cleandoc("""
    def train():
        for batch in loader:
            all_reduce(batch)
    def save():
        barrier()
    save()
    train()
    save()
""")


def left(source: str, stacks: dict[int, list[Frame]]) -> Divergence:
    """What is told of a tie, where nothing but stacks and source is known."""
    run = sketch(CALLED_BOTH_WAYS)
    (tie,) = divergences(run)
    assert (tie.why, tie.culprits) == (Cause.OPERATION, ())
    return left_by_one_side(replace(run, sources={"t.py": source}, stacks=stacks), tie)


def frame(line: int, function: str, epoch: int | None = None) -> Frame:
    return Frame(
        Place("t.py", line, function), {} if epoch is None else {"epoch": epoch}
    )


IN_THE_LOOP = [frame(3, "train"), frame(7, "<module>")]


def test_who_is_behind_a_loop_has_left_it() -> None:
    stacks = {0: IN_THE_LOOP, 1: [frame(5, "save"), frame(8, "<module>")]}
    found = left(TWO_PARTS, stacks)
    assert (found.why, found.culprits, found.victims) == (Cause.SKIPPED, (1,), (0,))
    assert found.certainty is Certainty.LIKELY
    assert [one.place.line for one in found.elsewhere] == [2]
    broken = TWO_PARTS.replace("all_reduce(batch)", "all_reduce(batch); break")
    assert [one.place.line for one in left(broken, stacks).elsewhere] == [3, 2]


@pytest.mark.parametrize(
    "stacks",
    [
        {},
        {0: IN_THE_LOOP},
        {0: IN_THE_LOOP, 1: [frame(5, "save"), frame(6, "<module>")]},  # before it
    ],
)
def test_who_may_not_be_behind_it_is_not_blamed(stacks: dict[int, list[Frame]]) -> None:
    assert left(TWO_PARTS, stacks).culprits == ()


def test_a_call_that_is_not_made_in_each_round_blames_nobody() -> None:
    source = TWO_PARTS.replace("all_reduce(batch)", "if batch.ok(): all_reduce(batch)")
    stacks = {0: IN_THE_LOOP, 1: [frame(5, "save"), frame(8, "<module>")]}
    assert left(source, stacks).culprits == ()


IN_EPOCHS = cleandoc("""
    def train():
        for batch in loader:
            all_reduce(batch)
    def save():
        barrier()
    for epoch in range(9):
        train()
        save()
""")


@pytest.mark.parametrize(("theirs", "culprits"), [(1, (1,)), (0, ()), (None, ())])
def test_within_a_loop_of_both_they_must_be_in_one_round(
    theirs: int | None, culprits: tuple[int, ...]
) -> None:
    stacks = {
        0: [frame(3, "train"), frame(7, "<module>", 1)],
        1: [frame(5, "save"), frame(8, "<module>", theirs)],
    }
    assert left(IN_EPOCHS, stacks).culprits == culprits


MOST_SAVE = """
    rank 0 | barrier@t.py:5  all_reduce(4)@t.py:3  barrier@t.py:5!
    rank 1 | barrier@t.py:5  all_reduce(4)@t.py:3  barrier@t.py:5!
    rank 2 | barrier@t.py:5  all_reduce(4)@t.py:3  all_reduce(4)@t.py:3...
"""


@pytest.mark.parametrize(
    ("theirs", "why"), [(1, Cause.UNEVEN), (2, Cause.SKIPPED), (None, Cause.SKIPPED)]
)
def test_who_has_one_more_round_did_not_skip_what_is_behind_the_loop(
    theirs: int | None, why: Cause
) -> None:
    saving = [frame(5, "save"), frame(8, "<module>", 1)]
    stacks = {
        0: saving,
        1: saving,
        2: [frame(3, "train"), frame(7, "<module>", theirs)],
    }
    run = replace(sketch(MOST_SAVE), sources={"t.py": IN_EPOCHS}, stacks=stacks)
    (found,) = divergences(run)
    assert (found.why, found.culprits, found.victims) == (why, (2,), (0, 1))
    if why is Cause.UNEVEN:
        assert "one more round of the loop at t.py:2" in sentence(found)


DEALT_OUT = cleandoc("""
    def train(items):
        for batch in items:
            all_reduce(batch)
    def save():
        barrier()
    for epoch in range(9):
        train([one for one in read()[dist.get_rank() :: 3] if keep(one)])
        save()
""")


@pytest.mark.parametrize("alone", [2, 0], ids=["one more", "one less"])
def test_who_has_another_number_of_rounds_learns_where_its_items_come_from(
    alone: int,
) -> None:
    saving = [frame(5, "save"), frame(8, "<module>", 1)]
    training = [frame(3, "train"), frame(7, "<module>", 1)]
    drawing = """
        rank 0 | barrier@t.py:5  all_reduce(4)@t.py:3  {0}
        rank 1 | barrier@t.py:5  all_reduce(4)@t.py:3  {1}
        rank 2 | barrier@t.py:5  all_reduce(4)@t.py:3  {2}
    """
    ends = ["barrier@t.py:5!", "all_reduce(4)@t.py:3..."]
    inside = [(rank == alone) == (alone == 2) for rank in range(3)]
    run = replace(
        sketch(drawing.format(*(ends[one] for one in inside))),
        sources={"t.py": DEALT_OUT},
        stacks={rank: training if inside[rank] else saving for rank in range(3)},
    )
    (found,) = divergences(run)
    assert (found.why, found.culprits) == (Cause.UNEVEN, (alone,))
    (dealt,) = [one for one in found.elsewhere if "share" in one.remark]
    assert (dealt.place.line, dealt.ranks) == (7, (alone,))


LEFT_BY_ONE = """
    def train():
        for x in shares(get_rank()):
            try:
                y = load(x)
            except KeyError:
                continue
            all_reduce(y)
        all_reduce(total)
    for epoch in range(3):
        train()
"""


def test_one_of_three_that_has_left_a_loop_is_told_so_and_not_by_its_size() -> None:
    run = replace(
        sketch("""
        rank 0 | all_reduce(8)@t.py:7...
        rank 1 | all_reduce(2)@t.py:8...
        rank 2 | all_reduce(8)@t.py:7...
        """),
        sources={"t.py": cleandoc(LEFT_BY_ONE)},
        stacks={
            rank: (
                Frame(Place("t.py", 8 if rank == 1 else 7, "train")),
                Frame(Place("t.py", 10, "<module>"), {"epoch": 0}),
            )
            for rank in range(3)
        },
    )
    calls = {rank: run.call(run.rows_of(rank)[0]) for rank in range(3)}
    unlike = Divergence(Cause.NUMEL, run.groups[0], 1, calls, (1,), (0, 2))
    found = left_by_one_side(run, unlike)
    assert (found.why, found.culprits) == (Cause.SKIPPED, (1,))
    assert {2, 5} <= {line.place.line for line in found.elsewhere}


BROKEN_OFF = """
    def train():
        for _ in range(2):
            for _ in range(9):
                broadcast(buffers)
                if get_rank() == {rank}:
                    break
            score()
    def score():
        barrier()
    train()
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_break_for_one_rank_has_let_it_out_of_its_loop(rank: int) -> None:
    run = replace(
        sketch("""
        rank 0 | barrier@t.py:9...
        rank 1 | broadcast(4)@t.py:4...
        """),
        sources={"t.py": cleandoc(BROKEN_OFF.format(rank=rank))},
        stacks={
            0: (
                Frame(Place("t.py", 9, "score")),
                Frame(Place("t.py", 7, "train"), {"_": 0}),
            ),
            1: (Frame(Place("t.py", 4, "train"), {"_": 1}),),
        },
    )
    (found,) = divergences(run)
    remarks = {line.remark for line in found.elsewhere}
    assert ("leaves by break" in remarks) is (rank == 0)
    assert rank or found.culprits == (0,)


STAGES = cleandoc("""
    def warm_up():
        for batch in loader:
            all_reduce(batch)
    def tune():
        barrier()
    for stage in {stages}:
        stage()
""")


@pytest.mark.parametrize(
    ("stages", "culprits"),
    [
        ("(warm_up, tune)", (1,)),
        ("enumerate([warm_up, tune])", (1,)),
        ("(tune, warm_up)", ()),
        ("(warm_up, tune, warm_up)", ()),
        ("plan()", ()),
    ],
)
def test_of_a_loop_over_functions_their_order_tells_who_is_further(
    stages: str, culprits: tuple[int, ...]
) -> None:
    stacks = {
        0: [frame(3, "warm_up"), frame(7, "<module>")],
        1: [frame(5, "tune"), frame(7, "<module>")],
    }
    assert left(STAGES.format(stages=stages), stacks).culprits == culprits


TWO_LOOPS = cleandoc("""
    def train():
        for batch in loader:
            all_reduce(batch)
    def save():
        for shard in shards:
            barrier()
    train()
    save()
""")


def test_who_is_further_may_be_in_a_loop_of_its_own_by_now() -> None:
    stacks = {
        0: [frame(3, "train"), frame(7, "<module>")],
        1: [frame(6, "save"), frame(8, "<module>")],
    }
    assert left(TWO_LOOPS, stacks).culprits == (1,)
    before = {0: stacks[0], 1: [frame(6, "save"), frame(7, "<module>")]}
    assert left(TWO_LOOPS, before).culprits == ()


AFTER_EPOCHS = cleandoc("""
    def main():
        for epoch in range(3):
            all_reduce(epoch)
        barrier()
    main()
""")


def test_who_has_come_through_the_round_of_the_others_left_out_its_call() -> None:
    stacks = {
        0: [frame(3, "main", 0), frame(5, "<module>")],
        1: [frame(4, "main", 2), frame(5, "<module>")],
    }
    found = left(AFTER_EPOCHS, stacks)
    assert found.culprits == (1,)
    assert "has come through that round of the loop at t.py:2" in sentence(found)


def test_ranks_that_their_own_data_let_out_are_told_by_the_jump() -> None:
    source = TWO_PARTS.replace(
        "all_reduce(batch)", "all_reduce(batch); loss = torch.rand(()).item()"
    ).replace("\ndef save", "\n        if loss < 0.1: break\ndef save")
    moved = MOST_SAVE.replace("t.py:5", "t.py:6")
    stacks = {
        0: [frame(6, "save"), frame(9, "<module>")],
        1: [frame(6, "save"), frame(9, "<module>")],
        2: [frame(3, "train"), frame(8, "<module>")],
    }
    run = replace(sketch(moved), sources={"t.py": source}, stacks=stacks)
    (found,) = divergences(run)
    assert (found.why, found.culprits) == (Cause.SKIPPED, (2,))
    assert "left by `if loss < 0.1: break`" in sentence(found)


CIRCLE = """
    group pair | 0 1
    rank 0 | barrier@t.py:5  all_reduce(4)/pair@t.py:3...
    rank 1 | barrier@t.py:5  barrier@t.py:5...
"""


def test_a_circle_may_be_the_end_of_a_loop_that_one_side_has_left() -> None:
    stacks = {0: IN_THE_LOOP, 1: [frame(5, "save"), frame(8, "<module>")]}
    run = sketch(CIRCLE)
    (found,) = divergences(replace(run, sources={"t.py": TWO_PARTS}, stacks=stacks))
    assert (found.why, found.culprits) == (Cause.SKIPPED, (1,))
    (found,) = divergences(run)
    assert (found.why, found.culprits) == (Cause.CIRCLE, ())
