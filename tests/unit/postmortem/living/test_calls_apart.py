"""Ranks of a living job in different collectives: when that is told, and when not."""

import pytest
from living_jobs import Acts, called, evidence, waits

from distdoctor.judging import Judgement, judge_run
from distdoctor.postmortem.evidence_run import manifest_of, run_of

TENSOR = "(<Tensor at 0x7f9bd831c6e0>)"
GROUP = "<torch._C._distributed_c10d.ProcessGroup at 0x7ff9600828f0>"


def judged(ranks: dict[int, Acts], **options: object) -> Judgement:
    seen = evidence(ranks, **options)  # type: ignore[arg-type]
    return judge_run(run_of(seen), manifest_of(seen, ["t.py"], "/job"))


def reduces(**more: object) -> Acts:
    return called("all_reduce", "step t.py:10", TENSOR, **more)  # type: ignore[arg-type]


def meets(**more: object) -> Acts:
    return called("barrier", "end t.py:20", **more)  # type: ignore[arg-type]


def test_two_ranks_apart_are_told_and_nobody_is_named() -> None:
    (one,) = judged({0: reduces(), 1: meets()}).report.findings
    assert (one.code, one.ranks, one.certainty) == ("DD101", [], "likely")
    assert "rank 0 in all_reduce; rank 1 in barrier" in one.summary
    assert {(at.file, at.line) for at in one.locations} == {("t.py", 10), ("t.py", 20)}
    assert one.evidence == ["stack"]


def test_of_many_the_fewer_are_named() -> None:
    ranks = {0: reduces(), 1: reduces(), 2: meets(), 3: reduces()}
    (one,) = judged(ranks).report.findings
    assert (one.code, one.ranks, one.certainty) == ("DD101", [2], "likely")


NOT_PROVED = {
    "a group was passed by name": {
        0: reduces(kwargs=f"{{'group': {GROUP}}}"),
        1: meets(),
    },
    "a group was passed by place": {
        0: called("all_reduce", "step t.py:10", f"{TENSOR[:-1]}, 0, {GROUP})"),
        1: meets(),
    },
    "what was passed was cut": {
        0: called("all_gather", "step t.py:10", "([<Tensor at 0x7f>, <Tens...)"),
        1: meets(),
    },
    "no variables are known": {0: waits(), 1: waits("barrier", "end t.py:9")},
    "one of them runs, as it waits anew": {0: reduces(runs=True), 1: meets()},
    "a message is on its way": {0: reduces(traffic=1 << 20), 1: meets()},
    "threads of one of them compute": {0: reduces(cpu=2.9), 1: meets()},
    "another thread of one is in a call": {
        0: reduces(others=[("barrier!", "save s.py:6")]),
        1: meets(),
    },
    "a rank is late": {0: reduces(), 1: meets(), 2: Acts(("load d.py:3",))},
    "a rank is at work": {
        0: reduces(),
        1: meets(),
        2: Acts(("work t.py:3",), runs=True, cpu=2.9, traffic=1 << 20),
    },
    "one waits for a message": {
        0: reduces(),
        1: Acts(stack=("recv!", "f t.py:3"), variables=[{"src": "0"}]),
    },
    "all are in one operation": {0: reduces(), 1: called("all_reduce", "b t.py:9")},
    "one sets up a group": {
        0: reduces(),
        1: Acts(stack=("barrier!", "new_group!", "f t.py:9")),
    },
}


@pytest.mark.parametrize("ranks", NOT_PROVED.values(), ids=NOT_PROVED)
def test_what_is_not_proved_is_not_called_a_mismatch(ranks: dict[int, Acts]) -> None:
    found = judged(ranks).report
    assert "DD101" not in [one.code for one in found.findings]


def test_a_short_look_tells_nothing() -> None:
    assert judged({0: reduces(), 1: meets()}, looks=3).report.findings == []


def test_a_rank_on_another_machine_may_be_the_one_that_is_late() -> None:
    assert judged({0: reduces(), 1: meets()}, world_size=3).report.findings == []
    assert judged({0: reduces(), 1: meets()}, spawned=True).report.findings == []


def test_a_rank_that_is_late_is_told_and_no_mismatch() -> None:
    ranks = {0: reduces(), 1: meets(), 2: Acts(("load d.py:3",))}
    found = judged(ranks).report.findings
    assert [(one.code, one.ranks) for one in found] == [("DD204", [2])]


def test_what_stacks_suggest_and_do_not_prove_is_said() -> None:
    found = judged({0: waits(), 1: waits("barrier", "end t.py:9")}).report
    assert found.verdict == "unknown"
    (said,) = [one for one in found.remarks if "different collectives" in one]
    assert "rank 0 in all_reduce at t.py:7; rank 1 in barrier at t.py:9" in said
    assert "TORCH_FR_BUFFER_SIZE" in said
