"""What several looks at a job tell, and what they must not."""

from pathlib import Path

import pytest
from living_jobs import Acts, evidence, waits

from distdoctor.judging import Judgement, judge_run
from distdoctor.postmortem.evidence_run import manifest_of, run_of
from distdoctor.postmortem.living import rank_views
from distdoctor.postmortem.living.dump_taking import REFUSED


def judged(ranks: dict[int, Acts], **options: object) -> Judgement:
    seen = evidence(ranks, **options)  # type: ignore[arg-type]
    return judge_run(run_of(seen), manifest_of(seen, ["t.py"], "/job"))


def codes(judgement: Judgement) -> list[tuple[str, list[int]]]:
    return [(one.code, one.ranks) for one in judgement.report.findings]


STUCK = {
    "reading": Acts(stack=("load d.py:3", "step t.py:5"), call="read() of /data/x"),
    "spinning": Acts(stack=("spin t.py:3", "step t.py:5"), runs=True, cpu=2.9),
    "stopped": Acts(stack=("load d.py:3", "step t.py:5"), state="T"),
    "stopped in the call": Acts(stack=("all_reduce!", "step t.py:7"), state="T"),
    "in the kernel": Acts(stack=("load d.py:3", "step t.py:5"), state="D"),
    "polling": Acts(stack=("poll d.py:3", "step t.py:5"), runs=True, call="sleep()"),
    "at a lock": Acts(stack=("save d.py:3", "step t.py:5")),
}


@pytest.mark.parametrize("acts", STUCK.values(), ids=STUCK)
def test_a_rank_that_stands_while_others_wait_is_named(acts: Acts) -> None:
    found = judged({0: waits(), 1: acts, 2: waits(), 3: waits()})
    assert codes(found) == [("DD204", [1])]
    (one,) = found.report.findings
    assert one.certainty == "likely"
    assert "stack" in one.evidence
    assert found.report.processes[0].condition == "waiting"


NEVER = {
    "waiters that run come and go": {
        0: Acts(stack=("all_reduce!", "step t.py:7"), runs=True),
        1: Acts(stack=("work t.py:3",), runs=True, cpu=2.9),
    },
    "waiters whose variables change": {
        0: Acts(
            stack=("all_reduce!", "step t.py:7"), variables=[{"n": "1"}, {"n": "2"}]
        ),
        1: Acts(stack=("work t.py:3",), runs=True, cpu=2.9),
    },
    "a rank in other functions each time": {
        0: waits(),
        1: Acts(stack=(("a t.py:3",), ("b t.py:9",)), runs=True, cpu=2.9),
    },
    "a rank that reads": {
        0: waits(),
        1: Acts(stack=("load t.py:3",), runs=True, traffic=1 << 20),
    },
    "a rank that is woken by the network": {
        0: waits(),
        1: Acts(stack=("get t.py:3",), runs=True, wakes=3_000),
    },
    "messages on their way over a slow network": {
        0: Acts(("recv!", "f t.py:3"), [{"src": "1"}], traffic=1 << 20),
        1: Acts(("recv!", "f t.py:3"), [{"src": "0"}], traffic=1 << 20),
    },
    "all in one call": {0: waits(), 1: waits(), 2: waits()},
    "more ranks at work than waiting": {
        0: waits("barrier"),
        1: Acts(stack=("load d.py:3",)),
        2: Acts(stack=("load d.py:3",)),
    },
    "ranks in different calls": {0: waits(), 1: waits("barrier", "end t.py:9")},
    "nobody waits": {n: Acts(stack=("load d.py:3",)) for n in range(3)},
    "a thread wants the lock of a call that all stand in": {
        n: Acts(stack=("all_reduce!", "step t.py:7"), others=[("wait?", "f s.py:3")])
        for n in range(2)
    },
    "a thread wants a lock, and the others are late": {
        0: Acts(stack=("all_reduce!", "t t.py:7"), others=[("__enter__?", "f s.py:3")]),
        1: Acts(stack=("load d.py:3",)),
        2: Acts(stack=("load d.py:3",)),
    },
    "a lock of a call that all stand in": {
        n: Acts(stack=("all_reduce!", "t t.py:7"), others=[("__enter__?", "f s.py:3")])
        for n in range(2)
    },
}


@pytest.mark.parametrize("ranks", NEVER.values(), ids=NEVER)
def test_what_may_go_on_is_not_called_sick(ranks: dict[int, Acts]) -> None:
    found = judged(ranks)
    assert codes(found) == []
    assert found.report.verdict == "unknown"
    assert found.report.stacks


def test_a_short_look_accuses_nobody() -> None:
    found = judged({0: waits(), 1: STUCK["reading"]}, looks=3)
    assert codes(found) == []


@pytest.mark.parametrize(
    ("head", "found"),
    [("for n in xs", []), ("while True", [("DD204", [1])])],
)
def test_a_loop_that_comes_to_an_end_is_work(
    tmp_path: Path, head: str, found: list[tuple[str, list[int]]]
) -> None:
    (tmp_path / "t.py").write_text(f"def work(xs, n=0):\n    {head}:\n        n += 1\n")
    turns = Acts(
        stack=("work t.py:3",),
        runs=True,
        cpu=2.9,
        variables=[{"n": str(n)} for n in range(8)],
        root=str(tmp_path),
    )
    ranks = {0: waits(), 1: turns, 2: waits()}
    assert codes(judged(ranks, directory=str(tmp_path))) == found


def test_messages_in_a_circle_are_told() -> None:
    def receives(peer: int) -> Acts:
        return Acts(stack=("recv!", "f t.py:3"), variables=[{"src": str(peer)}])

    found = judged({0: receives(1), 1: receives(0), 2: receives(3), 3: receives(2)})
    assert [code for code, _ in codes(found)] == ["DD205", "DD205"]


def test_a_lock_held_across_a_call_is_told() -> None:
    trains = Acts(
        stack=("all_reduce!", "step t.py:7"), others=[("__enter__?", "save s.py:4")]
    )
    saves = Acts(
        stack=("__enter__?", "step t.py:6"), others=[("barrier!", "save s.py:6")]
    )
    assert codes(judged({0: trains, 1: saves})) == [("DD210", [])]


def test_a_refusal_is_said_with_its_cure() -> None:
    found = judged({0: waits(), 1: Acts(refused=REFUSED)})
    assert found.report.verdict == "unknown"
    stated = "\n".join(found.report.remarks)
    assert "the stacks of rank 1 may not be read" in stated
    assert "SYS_PTRACE" in stated
    assert any("ptrace" in one.why for one in found.report.not_examined)


def test_ranks_of_other_machines_are_told_as_not_seen() -> None:
    ranks = {rank: waits() for rank in range(8)}
    found = judged(ranks, world_size=16)
    assert codes(found) == []
    assert any("not on this machine" in one.why for one in found.report.not_examined)


def test_a_job_that_stands_still_says_so() -> None:
    found = judged({0: waits(), 1: waits("barrier", "end t.py:9")})
    why = next(one.why for one in found.report.not_examined if "ever go on" in one.what)
    assert "rank 0 in all_reduce at t.py:7" in why
    assert "rank 1 in barrier at t.py:9" in why


@pytest.mark.parametrize(
    ("status", "words"),
    [(137, "killed by signal 9"), (3, "left with exit status 3")],
)
def test_a_rank_that_ended_while_others_wait_is_the_cause(
    monkeypatch: pytest.MonkeyPatch, status: int, words: str
) -> None:
    monkeypatch.setattr(rank_views, "exit_status_of", lambda _pid: status)
    found = judged({0: waits(), 1: Acts(state="Z"), 2: waits()})
    assert codes(found) == [("DD202", [1])]
    assert words in found.report.findings[0].summary
    assert found.report.findings[0].certainty == "likely"


def test_a_rank_whose_end_is_not_known_is_not_called_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rank_views, "exit_status_of", lambda _pid: 0)
    assert codes(judged({0: waits(), 1: Acts(state="Z"), 2: waits()})) == []


def test_a_rank_of_this_machine_without_a_process_is_not_accused() -> None:
    found = judged({0: waits(), 2: waits()}, world_size=3)
    assert codes(found) == []
    (why,) = {one.why for one in found.report.not_examined if one.what == "rank 1"}
    assert why == "its process is not there any more, or never was"
