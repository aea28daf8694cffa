"""Calls behind a branch by rank, from drawings with their source."""

from dataclasses import replace
from inspect import cleandoc

from distdoctor.analysis.causes import Cause, Divergence
from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.analysis.sentences import finding, sentence
from distdoctor.model.drawing import sketch
from distdoctor.model.events import Place
from distdoctor.model.findings import Certainty
from distdoctor.model.run import Frame

REPORT = """
def mean_over_ranks(value):
    all_reduce(value)
def report(loss):
    if is_main():
        print(mean_over_ranks(loss))
def is_main():
    return get_rank() == 0
def main():
    for step in range(9):
        all_reduce(gradients)
        report(loss)
    barrier()
main()
"""


def divergence_of(source: str, drawing: str, *stacks: list[int]) -> Divergence:
    """The divergence of a drawing whose calls are from the lines of a source t.py.

    Args:
        source: Its text.
        drawing: The drawing.
        stacks: By rank, lines of its stack, innermost first.
    """
    run = sketch(drawing)
    frames = {
        rank: [Frame(Place("t.py", line, "f")) for line in lines]
        for rank, lines in enumerate(stacks)
    }
    run = replace(run, sources={"t.py": cleandoc(source)}, stacks=frames)
    (divergence,) = divergences(run)
    return divergence


def lines(divergence: Divergence) -> list[int]:
    return [location.place.line for location in divergence.elsewhere]


def test_of_two_ranks_the_one_alone_behind_a_guard_is_the_culprit() -> None:
    found = divergence_of(
        REPORT,
        """
        rank 0 | all_reduce(9)@t.py:10  all_reduce(1)@t.py:2...
        rank 1 | all_reduce(9)@t.py:10  all_reduce(9)@t.py:10!
        """,
    )
    assert (found.why, found.culprits, found.victims) == (Cause.SKIPPED, (0,), (1,))
    assert found.certainty is Certainty.LIKELY
    assert lines(found) == [4, 5, 2]
    way = "module:13 → main:11 → report:5 if is_main() → "
    assert way in sentence(found)
    assert "no majority" in sentence(found)


def test_a_stray_call_is_found_where_it_first_met_another() -> None:
    """Of one size, calls pair up one step apart, and the fault shows much later."""
    found = divergence_of(
        REPORT,
        """
        rank 0 | all_reduce(1)@t.py:10  all_reduce(1)@t.py:2   all_reduce(1)@t.py:10...
        rank 1 | all_reduce(1)@t.py:10  all_reduce(1)@t.py:10  barrier@t.py:12!
        """,
    )
    assert (found.why, found.culprits, found.ordinal) == (Cause.SKIPPED, (0,), 2)


def test_whom_a_guard_keeps_out_is_the_culprit_if_it_lets_most_through() -> None:
    source = """
    if get_rank() != 0:
        barrier()
    all_reduce(gradients)
    """
    found = divergence_of(
        source,
        """
        rank 0 | all_reduce(9)@t.py:3!
        rank 1 | barrier@t.py:2...
        """,
    )
    assert (found.why, found.culprits) == (Cause.SKIPPED, (0,))
    assert "skipped barrier" in sentence(found)


def test_with_a_majority_the_branch_is_named_all_the_same() -> None:
    source = """
    for step in range(4):
        if rank != 2:
            all_reduce(gradients)
        barrier()
    """
    found = divergence_of(
        source,
        """
        rank 0 | all_reduce(9)@t.py:3...
        rank 1 | all_reduce(9)@t.py:3...
        rank 2 | barrier@t.py:4!
        rank 3 | all_reduce(9)@t.py:3...
        """,
    )
    assert (found.why, found.culprits) == (Cause.SKIPPED, (2,))
    assert found.certainty is Certainty.PROVED
    assert lines(found) == [2, 3]


def test_who_ended_without_a_guarded_call_did_not_skip_it() -> None:
    source = """
    all_reduce(gradients)
    if rank == 0:
        save()
        barrier()
    """
    found = divergence_of(
        source,
        """
        rank 0 | all_reduce(9)@t.py:1  barrier@t.py:4...
        rank 1 | all_reduce(9)@t.py:1  exit=0
        """,
    )
    assert (found.why, found.culprits) == (Cause.SKIPPED, (0,))
    assert "finished without it" in sentence(found)


def test_a_model_run_behind_a_guard_is_told_as_a_forward_pass() -> None:
    source = """
    for step in range(4):
        model(x)
        if rank == 0:
            model(y)
    """
    found = divergence_of(
        source,
        """
        rank 0 | broadcast(8)@t.py:2  broadcast(8,by=ddp)@t.py:4  broadcast(8)@t.py:2...
        rank 1 | broadcast(8)@t.py:2  broadcast(8)@t.py:2         exit=0
        """,
    )
    assert (found.why, found.culprits) == (Cause.FORWARD, (0,))
    assert lines(found) == [3, 4]


def test_a_guard_with_a_counterpart_explains_nothing() -> None:
    """The second barrier is the part of those who did not come to the first."""
    source = """
    if rank != 0:
        barrier()
    load()
    if rank == 0:
        barrier()
    if cached:
        all_gather(sizes)
    all_reduce(gradients)
    """
    found = divergence_of(
        source,
        """
        rank 0 | barrier@t.py:5  all_gather(1)@t.py:7...
        rank 1 | barrier@t.py:2  all_reduce(9)@t.py:8!
        """,
    )
    assert "rank != 0" not in sentence(found)
    assert "rank == 0" not in sentence(found)


def test_a_counterpart_may_lie_in_a_helper() -> None:
    source = """
    def receive():
        broadcast(x)
    if rank == 0:
        broadcast(x)
    else:
        receive()
    if odd:
        barrier()
    all_reduce(gradients)
    """
    found = divergence_of(
        source,
        """
        rank 0 | broadcast(9)@t.py:4  barrier@t.py:8...
        rank 1 | broadcast(9)@t.py:2  all_reduce(9)@t.py:9!
        """,
    )
    assert found.ordinal == 2


def test_two_branches_of_one_test_with_different_calls_are_a_mismatch() -> None:
    source = """
    if rank == 0:
        reduce(x)
    else:
        all_reduce(x)
    """
    found = divergence_of(
        source,
        """
        rank 0 | reduce(9,root=0)@t.py:2...
        rank 1 | all_reduce(9)@t.py:4!
        """,
    )
    assert (found.why, found.culprits) == (Cause.OPERATION, (0,))
    assert (found.certainty, lines(found)) == (Certainty.LIKELY, [1])


def test_a_line_that_all_may_come_to_is_not_blamed_on_a_guard() -> None:
    """`sync` is called behind a guard and without one: which it was is not known."""
    source = """
    def sync():
        barrier()
    sync()
    if rank == 0:
        sync()
    all_reduce(x)
    """
    drawing = """
    rank 0 | barrier@t.py:2  all_reduce(9)@t.py:6  barrier@t.py:2...
    rank 1 | barrier@t.py:2  all_reduce(9)@t.py:6  all_reduce(9)@t.py:6!
    """
    assert "rank == 0" not in sentence(divergence_of(source, drawing))
    assert "rank == 0" in sentence(divergence_of(source, drawing, [2, 5], [6]))


BROKEN_OFF = """
def train():
    for gradient in gradients:
        all_reduce(gradient)
        if get_rank() == 1:
            {leaves}
    barrier()
train()
"""


def test_a_round_before_that_ended_the_loop_for_one_rank_is_told() -> None:
    found = divergence_of(
        BROKEN_OFF.format(leaves="break"),
        """
        rank 0 | all_reduce(9)@t.py:3  all_reduce(9)@t.py:3!
        rank 1 | all_reduce(9)@t.py:3  barrier@t.py:6...
        """,
    )
    assert (found.why, found.culprits) == (Cause.SKIPPED, (1,))
    assert lines(found)[:2] == [4, 5]


def test_who_left_a_loop_and_is_at_it_again_is_told_by_the_way_out() -> None:
    """All are at one line, with tensors of unlike sizes."""
    drawing = """
        rank 0 | all_reduce(9)@t.py:3  all_reduce(4)@t.py:3!
        rank 1 | all_reduce(9)@t.py:3  all_reduce(9)@t.py:3!
        rank 2 | all_reduce(9)@t.py:3  all_reduce(4)@t.py:3!
    """
    found = divergence_of(BROKEN_OFF.format(leaves="break"), drawing)
    assert (found.why, found.culprits) == (Cause.SKIPPED, (1,))
    assert found.certainty is Certainty.LIKELY
    assert lines(found)[:2] == [4, 5]
    for leaves in ("continue", "raise Odd", "count += 1"):
        assert (
            divergence_of(BROKEN_OFF.format(leaves=leaves), drawing).why is Cause.NUMEL
        )


def test_unlike_calls_of_the_two_branches_of_a_test_of_data_are_no_skipped_ones() -> (
    None
):
    source = """
    def exchange(rows):
        if rows.numel() <= limit:
            compact(rows)
        else:
            dense(rows)
    def compact(rows):
        all_gather(rows)
    def dense(rows):
        all_reduce(rows)
    for step in range(9):
        exchange(batch)
    """
    gather, reduce = (
        f"{op}(4)@t.py:{line}<t.py:{caller}<t.py:11"
        for op, line, caller in (("all_gather", 7, 3), ("all_reduce", 9, 5))
    )
    drawing = """
        rank 0 | {0}  {0}!
        rank 1 | {0}  {1}!
        rank 2 | {0}  {0}!
    """
    found = divergence_of(source, drawing.format(gather, reduce))
    assert (found.why, found.culprits, lines(found)) == (Cause.OPERATION, (1,), [2])
    assert found.certainty is Certainty.LIKELY
    counted = (
        source.replace("rows.numel() <= limit", "step % 2")
        .replace("exchange(batch)", "exchange(step)")
        .replace("def exchange(rows)", "def exchange(step, rows=0)")
    )
    assert 2 not in lines(divergence_of(counted, drawing.format(gather, reduce)))


def test_each_side_tells_its_way_to_its_call() -> None:
    """From where the ways part, at most three lines of it."""
    found = divergence_of(
        "pass\n",
        """
        rank 0 | all_reduce(9)@t.py:1<t.py:3<t.py:9  all_reduce(1)@u.py:2<t.py:4<t.py:9!
        rank 1 | all_reduce(9)@t.py:1<t.py:3<t.py:9  all_reduce(9)@t.py:1<t.py:3<t.py:9!
        rank 2 | all_reduce(9)@t.py:1<t.py:3<t.py:9  all_reduce(9)@t.py:1<t.py:3<t.py:9!
        """,
    )
    ways = [
        (str(one.place), one.ranks)
        for one in finding(found).locations
        if one.remark == "on the way to its call"
    ]
    assert ways == [("t.py:4", (0,)), ("t.py:3", (1,))]


def test_a_line_that_looks_up_what_it_calls_is_told_with_its_key() -> None:
    source = """
    class Batch:
        @property
        def layout(self):
            return "dense" if self.low == self.high else "ragged"
    def dense(loss):
        all_reduce(loss)
    def ragged(loss):
        all_gather(loss)
    TABLE = {"dense": dense, "ragged": ragged}
    for batch in batches:
        TABLE[batch.layout](loss)
    """
    reduce, gather = "all_reduce(2)@t.py:6<t.py:11", "all_gather(2)@t.py:8<t.py:11"
    drawing = f"""
        rank 0 | {reduce}  {reduce}!
        rank 1 | {reduce}  {gather}!
        rank 2 | {reduce}  {reduce}!
    """
    found = divergence_of(source, drawing)
    assert (found.why, found.culprits) == (Cause.OPERATION, (1,))
    assert lines(found)[:2] == [11, 4]
    plain = source.replace("TABLE[batch.layout](loss)", "dense(loss), ragged(loss)")
    assert 11 not in lines(divergence_of(plain, drawing))
