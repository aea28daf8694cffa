"""The charts of the page: what they show follows from the run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from html_pages import full_report, full_run, report_of

from distdoctor.model.drawing import sketch
from distdoctor.model.events import Place
from distdoctor.model.outside_view import StackBranch
from distdoctor.model.run import Run
from distdoctor.report.html.call_maps import (
    ABSENT,
    ISSUED,
    MADE,
    MOST_ROWS,
    ODD,
    SPLIT,
    STOPPED,
    UNSEEN,
    WAITS,
    CallMap,
    call_maps,
)
from distdoctor.report.html.environment_tables import environment_tables
from distdoctor.report.html.finding_cards import finding_card
from distdoctor.report.html.nccl_picture import NcclPicture, nccl_picture
from distdoctor.report.html.parting_chains import parting_chain
from distdoctor.report.html.sample_charts import sample_charts
from distdoctor.report.html.stack_outline import StackOutline, stack_outline
from distdoctor.report.html.swim_lanes import NO_CALLS, NO_TIMES, SwimLanes, swim_lanes
from distdoctor.report.html.wait_pictures import (
    NO_CALLS_SEEN,
    NOBODY,
    NOT_KNOWN,
    WaitPicture,
    wait_picture,
)
from distdoctor.report.html.weight_charts import weight_charts


def maps_of(drawing: str) -> list[CallMap]:
    run = sketch(drawing)
    return call_maps(run, report_of(run))


def codes(*numbers: int) -> str:
    return "".join(map(str, numbers))


# --- ranks and collectives -----------------------------------------------------------


def test_a_rank_that_calls_something_else_is_the_odd_one() -> None:
    (found,) = maps_of("""
        rank 0 | barrier  all_reduce(4)@t.py:7!
        rank 1 | barrier  all_reduce(4)@t.py:7!
        rank 2 | barrier  barrier@t.py:9...
    """)
    assert found.cells == (codes(MADE, STOPPED),) * 2 + (codes(MADE, ODD),)
    assert [row.mark for row in found.rows] == ["victim", "victim", "culprit"]
    assert "call 2: all_reduce(4 float32) on ranks {0-1}; barrier on rank 2" in (
        found.summary
    )
    text = found.texts[found.told[2][1]]
    assert text == "barrier at t.py:9, waits in it"


def test_of_two_ranks_that_differ_neither_is_the_odd_one() -> None:
    (found,) = maps_of("rank 0 | all_reduce(4)...\nrank 1 | all_reduce(8)!")
    assert found.cells == (codes(SPLIT), codes(SPLIT))


def test_who_waits_who_is_missing_and_who_was_not_seen_are_told_apart() -> None:
    (found,) = maps_of("""
        rank 0 | barrier  barrier...
        rank 1 | barrier  exit=0
        rank 2 | ?
        rank 3 | barrier  all_reduce(4)&
    """)
    assert found.cells[0] == codes(MADE, max(WAITS, SPLIT))
    assert found.cells[1] == codes(MADE, ABSENT)
    assert found.cells[2] == codes(UNSEEN, UNSEEN)


def test_a_call_that_nobody_waited_for_is_not_said_to_be_over() -> None:
    (found,) = maps_of(
        "rank 0 | all_reduce(4)&...issued\nrank 1 | all_reduce(4)&...issued"
    )
    assert found.cells == (codes(ISSUED),) * 2


def test_many_ranks_share_rows_and_the_odd_one_keeps_its_own() -> None:
    lines = [f"rank {n} | barrier@t.py:1  barrier@t.py:2..." for n in range(100)]
    lines[41] = "rank 41 | barrier@t.py:1  exit=1"
    (found,) = maps_of("\n".join(lines))
    assert [row.label for row in found.rows] == [
        *("ranks {0-40}", "rank 41", "ranks {42-99}")
    ]
    assert found.cells[1] == codes(MADE, ABSENT)


def test_ranks_that_all_differ_are_folded_to_a_bounded_number_of_rows() -> None:
    lines = [f"rank {n} | {'barrier ' * (1 + n % 2)}" for n in range(300)]
    (found,) = maps_of("\n".join(lines))
    assert len(found.rows) == MOST_ROWS
    assert sorted(rank for row in found.rows for rank in row.ranks) == list(range(300))
    assert {row[-1] for row in found.cells} == {codes(ABSENT)}


def test_a_fault_among_many_calls_is_not_lost_in_its_column() -> None:
    def line(odd: int) -> str:
        calls = ["barrier"] * 2_000
        if odd:
            calls[odd] = "all_reduce(4)"
        return "  ".join(calls)

    lines = [f"rank {n} | {line(777 if n == 1 else 0)}" for n in range(3)]
    (found,) = maps_of("\n".join(lines))
    assert len(found.columns) == 120
    at = next(n for n, (a, b) in enumerate(found.columns) if a <= 778 <= b)
    assert found.cells[1][at] == codes(ODD)
    assert found.cells[1].count(codes(ODD)) == 1
    assert set(found.cells[0]) == {codes(MADE)}
    assert found.columns[-48:] == tuple((n, n) for n in range(1953, 2001))


def test_the_group_of_a_finding_comes_first() -> None:
    found = maps_of("""
        group ab | 0 1
        group cd | 2 3
        rank 0 | barrier/ab  barrier/ab  barrier/ab
        rank 1 | barrier/ab  barrier/ab  barrier/ab
        rank 2 | barrier/cd  all_reduce(4)/cd...
        rank 3 | barrier/cd  all_reduce(8)/cd!
    """)
    assert [one.group for one in found] == ["cd", "ab"]


# --- who waits for whom --------------------------------------------------------------


def picture_of(drawing: str) -> WaitPicture:
    return picture_of_run(sketch(drawing))


def picture_of_run(run: Run) -> WaitPicture:
    found = wait_picture(run, report_of(run))
    assert isinstance(found, WaitPicture)
    return found


def test_a_circle_is_drawn_as_one() -> None:
    found = picture_of("""
        group ab | 0 1
        group bc | 1 2
        group ca | 0 2
        rank 0 | all_reduce(4)/ab@t.py:7...
        rank 1 | all_reduce(4)/bc@t.py:7...
        rank 2 | all_reduce(4)/ca@t.py:7...
    """)
    assert {(one.begin, one.end) for one in found.edges} == {(0, 1), (1, 2), (2, 0)}
    assert found.rows[0] == ("rank 0", "all_reduce 1 on ab", "t.py:7", "rank 1")


def test_ranks_that_wait_alike_are_one_node_and_the_dead_another() -> None:
    found = picture_of("""
        rank 0 | barrier...
        rank 1 | barrier...
        rank 2 | fail=KeyError@d.py:3  exit=1
        nobody else
    """)
    assert [(one.ranks, one.kind) for one in found.nodes] == [
        ((0, 1), "waits"),
        ((2,), "gone"),
    ]
    assert [(one.begin, one.end, one.how) for one in found.edges] == [(0, 1, "all")]


def test_a_stopped_call_points_to_those_who_make_another() -> None:
    found = picture_of("""
        rank 0 | all_reduce(4)!
        rank 1 | all_reduce(4)!
        rank 2 | barrier...
    """)
    assert {(one.begin, one.end, one.how) for one in found.edges} == {
        (0, 1, "unmet"),
        (1, 0, "all"),
    }
    assert found.rows[0][3].startswith("nobody, stopped by distdoctor: rank 2 makes")


@pytest.mark.parametrize(
    ("drawing", "sentence"),
    [
        ("rank 0 | barrier\nrank 1 | barrier", NOBODY),
        ("rank 0 | barrier...\nrank 1 | ?", NOT_KNOWN),
        ("rank 0 | exit=0\nrank 1 | exit=0", NO_CALLS_SEEN),
    ],
)
def test_without_waits_a_sentence_says_so(drawing: str, sentence: str) -> None:
    run = sketch(drawing)
    assert wait_picture(run, report_of(run)) == sentence


def test_a_picture_says_for_ever_only_where_all_was_seen() -> None:
    run = sketch("rank 0 | barrier...\nrank 1 | fail=KeyError@d.py:3  exit=1")
    assert picture_of_run(run).lead.startswith("These ranks can never go on")
    for part in (replace(run, partial={1: "cut"}), replace(run, faltered={0})):
        assert "does not prove" in picture_of_run(part).lead


# --- time ----------------------------------------------------------------------------


def lanes_of(run: Run) -> SwimLanes:
    found = swim_lanes(run, report_of(run))
    assert isinstance(found, SwimLanes)
    return found


def test_a_lane_has_its_calls_and_who_waits_goes_on_to_the_edge() -> None:
    found = lanes_of(
        sketch("""
        rank 0 | barrier+100ms  barrier...+400ms
        rank 1 | barrier+100ms  exit=1
        nobody else
        """)
    )
    first, second = found.lanes
    assert [box.kind for box in first.boxes] == ["open", "waits"]
    assert first.boxes[-1].x + first.boxes[-1].width == pytest.approx(found.width)
    assert len(second.boxes) == 1
    assert first.boxes[-1].title.endswith("at 0.300 s, waits in it at the end")


def test_many_ranks_have_few_lanes_and_those_at_fault_are_among_them() -> None:
    lines = [f"rank {n} | barrier+100ms  barrier...+200ms" for n in range(200)]
    lines[77] = "rank 77 | barrier+100ms  fail=KeyError@d.py:3  exit=1"
    found = lanes_of(sketch("\n".join([*lines, "nobody else"])))
    assert [(lane.label, lane.mark) for lane in found.lanes] == [
        ("rank 0", "victim"),
        ("rank 77", "culprit"),
    ]
    assert found.lanes[0].stands_for == "ranks {0-76,78-199}"
    assert found.left_out == 0


def test_without_times_or_calls_there_are_no_lanes() -> None:
    run = sketch("rank 0 | barrier\nrank 1 | barrier")
    assert swim_lanes(run, report_of(run)) == NO_TIMES
    run = sketch("rank 0 | exit=0")
    assert swim_lanes(run, report_of(run)) == NO_CALLS


# --- samples and weights -------------------------------------------------------------


def test_samples_that_several_read_or_none_are_counted() -> None:
    found = sample_charts(
        sketch("""
        rank 0 | wrap=ddp:a  held(names=x,rows=7)
               | read(samples=0-3,length=8,steps=2)@t.py:9
        rank 1 | wrap=ddp:a  held(names=x,rows=7)
               | read(samples=2-5,length=8,steps=2)@t.py:9
        """)
    )
    assert not isinstance(found, str)
    (chart,), more = found
    assert more == 0
    assert chart.summary == (
        "Of 8 samples, 4 were read by one rank, 2 by several, 2 by none of these ranks."
    )
    assert [strip.label for strip in chart.strips] == ["rank 0", "rank 1", "together"]
    kinds = dict(chart.strips[-1].shapes)
    wide = chart.width // 8
    assert kinds["twice"].startswith(f"M{2 * wide} ")
    assert kinds["never"].startswith(f"M{6 * wide} ")


def test_a_dataset_of_any_size_takes_little() -> None:
    length = 9 * 10**18
    found = sample_charts(
        sketch(f"""
        rank 0 | wrap=ddp:a  read(samples=0+{length // 2},length={length})@t.py:9
        rank 1 | wrap=ddp:a  read(samples=1+2,length={length})@t.py:9
        """)
    )
    assert not isinstance(found, str)
    assert "Of 9,000,000,000,000,000,000 samples, 4 were read" in found[0][0].summary


def test_copies_that_part_are_told_from_the_step_on() -> None:
    begin = (
        "wrap=ddp:a trained(names=w+v,numels=6+2,wrapped)@t.py:4 weights(prints=1+1)"
    )
    trail = "trail(before=1-3,gradients=5-7,after=2-4)"
    found = weight_charts(
        sketch(f"""
        rank 0 | {begin} weights(step=1,prints=1+1) weights(step=2,prints=2+5) {trail}
        rank 1 | {begin} weights(step=1,prints=1+1) weights(step=2,prints=9+5) {trail}
        """)
    )
    assert not isinstance(found, str)
    (chart,), _ = found
    assert [(look.step, look.differing) for look in chart.looks] == [
        (0, 0),
        (1, 0),
        (2, 1),
    ]
    assert chart.looks[-1].names == "w"
    assert "first before step 2: 1 of 2 parameters (w)" in chart.summary
    assert [kind for kind, _ in chart.trail] == ["same"]


def test_ranks_that_are_no_copies_of_each_other_have_no_chart() -> None:
    begin = "trained(names=w,numels=6)@t.py:4  weights(prints={})@t.py:5"
    drawing = f"rank 0 | {begin.format(1)}\nrank 1 | {begin.format(2)}"
    assert isinstance(weight_charts(sketch(drawing)), str)


# --- stacks, NCCL, environment -------------------------------------------------------


def test_stacks_are_an_outline_with_ranges_of_ranks() -> None:
    run = full_run()
    found = stack_outline(run)
    assert isinstance(found, StackOutline)
    (top,) = found.nodes
    assert (top.ranks, top.share) == ("ranks {0-1}", 100)
    assert [one.doing for one in top.inner] == [
        (("rank 0", "all_reduce"),),
        (("rank 1", "barrier"),),
    ]


def test_stacks_that_are_deep_beyond_all_bounds_end_somewhere() -> None:
    branch = StackBranch("t.py", 1, "f", (0, 1), True)
    for _ in range(500):
        other = StackBranch("t.py", 2, "g", (1,), True)
        branch = StackBranch("t.py", 1, "f", (0, 1), True, (branch, other))
    found = stack_outline(
        replace(sketch("rank 0 | ?\nrank 1 | ?"), stack_tree=(branch,))
    )
    assert isinstance(found, StackOutline)
    assert found.left_out


def test_hosts_have_their_gpus_and_communicators_their_members() -> None:
    run = full_run()
    found = nccl_picture(run, full_report(run))
    assert isinstance(found, NcclPicture)
    assert [(one.name, one.gpus[0].label) for one in found.hosts] == [
        ("a", "GPU 1"),
        ("b", "GPU 0"),
    ]
    assert found.communicators[0][:3] == ("world", "2", "{0-1}")


def test_settings_in_which_ranks_differ_come_first_with_their_ranks() -> None:
    run = full_run()
    tables = environment_tables(run, full_report(run))
    (version,) = [one for one in tables.software if one.differs]
    assert version.name == "torch"
    assert version.values == (("2.13", "rank 0"), ("2.12", "rank 1"))


def test_a_secret_in_a_variable_is_masked_by_its_name() -> None:
    run = sketch(
        "rank 0 | start=1 variables(settings=WANDB_API_KEY=0123456789abcdef) exit=0"
    )
    (found,) = environment_tables(run, report_of(run)).variables
    assert "0123456789abcdef" not in str(found)


# --- cards ---------------------------------------------------------------------------


def test_a_card_has_the_marked_line_and_what_ranks_called_last() -> None:
    run = replace(
        sketch("""
        rank 0 | barrier@t.py:5  all_reduce(4)@t.py:7!
        rank 1 | barrier@t.py:5  all_reduce(4)@t.py:7!
        rank 2 | barrier@t.py:5  barrier@t.py:9...
        """),
        sources={"t.py": "\n".join(f"line_{n}()" for n in range(1, 20))},
    )
    (finding,) = report_of(run).findings
    card = finding_card(finding, run)
    marked = [x.text for one in card.excerpts for x in one.lines if x.is_marked]
    assert "line_7()" in marked
    assert [(row.ranks, row.mark) for row in card.calls] == [
        ("ranks {0-1}", "victim"),
        ("rank 2", "culprit"),
    ]
    assert [call.text for call in card.calls[1].calls][:2] == ["1 barrier", "2 barrier"]
    assert card.calls[1].calls[1].state == "waits"


def test_the_chain_has_the_common_way_and_where_it_parts() -> None:
    run = sketch("""
        rank 0 | all_reduce(4)@t.py:7!
        rank 1 | all_reduce(4)@t.py:7!
        rank 2 | barrier@t.py:9...
    """)
    (finding,) = report_of(run).findings
    way = (Place("t.py", 3, "step"), Place("t.py", 1, "main"))
    calls = run.calls.copy()
    calls["callers"] = 1
    chain = parting_chain(finding, replace(run, calls=calls, callers=[(), way]))
    assert chain is not None
    assert chain.common == ("main:1 (t.py)", "step:3 (t.py)")
    assert sorted((one.ranks, one.mark) for one in chain.sides) == [
        ("rank 2", "culprit"),
        ("ranks {0-1}", "victim"),
    ]
