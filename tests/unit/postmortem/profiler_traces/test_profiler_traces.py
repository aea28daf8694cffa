"""Traces of torch.profiler: what is communication that nothing overlaps, and why."""

import gzip
import json
import re
from pathlib import Path

import pytest
from autopsies import report_on
from click.testing import CliRunner
from profiler_traces import BEGIN_US, STEP_US, Span, closed, trace

from distdoctor.cli import app
from distdoctor.errors import DistdoctorError
from distdoctor.postmortem import trace_blocks
from distdoctor.postmortem.profiler_traces import profiler_reader
from distdoctor.report.schema import Report

BACKWARD: list[Span] = [(0, 18_000)]
BEHIND: list[Span] = [(18_000, 6_000), (24_000, 5_800)]
DURING: list[Span] = [(4_000, 6_000), (12_500, 5_800)]


def write(folder: Path, **by_name: bytes) -> None:
    for name, content in by_name.items():
        (folder / f"{name}.pt.trace.json").write_bytes(content)


def said(report: Report) -> list[str]:
    return [one.summary for one in report.findings]


def unseen(report: Report) -> str:
    return " ".join(f"{gap.what}: {gap.why}" for gap in report.not_examined)


def test_calls_behind_backward_are_told(tmp_path: Path) -> None:
    write(tmp_path, a=trace(0, BEHIND, BACKWARD), b=trace(1, BEHIND, BACKWARD))
    report = report_on(tmp_path)
    (found,) = report.findings
    assert (found.code, found.severity, found.ranks) == ("DD542", "note", [])
    assert report.verdict == "unknown"
    assert "On ranks {0-1}, 39% of the time" in found.summary
    assert "11.8 of 30 ms, on average of 5 steps" in found.summary
    assert "0% of that is waiting" in found.summary


def test_calls_during_backward_are_not(tmp_path: Path) -> None:
    write(tmp_path, a=trace(0, DURING, BACKWARD), b=trace(1, DURING, BACKWARD))
    report = report_on(tmp_path)
    assert not report.findings
    assert "what ranks did beside communicating" in unseen(report)


@pytest.mark.parametrize(("busy", "share"), [(22_000, "88%"), (6_000, "0%")])
def test_a_late_rank_is_named_with_what_it_does_meanwhile(
    busy: int, share: str, tmp_path: Path
) -> None:
    """Clocks differ by seconds, and that changes nothing."""
    for rank in (0, 1, 2, 3):
        late = rank == 2
        calls = [(24_000, 500)] if late else [(8_000, 16_500)]
        computing = [(0, busy)] if late else [(0, 8_000)]
        content = trace(rank, calls, computing, ranks=4, begin_us=BEGIN_US + 7e6 * rank)
        write(tmp_path, **{f"r{rank}": content})
    (found,) = report_on(tmp_path).findings
    assert found.ranks == [2]
    assert "On ranks {0-1,3}, 55% of the time" in found.summary
    assert (
        "97% of that is waiting for rank 2, which came last to 5 of 5" in found.summary
    )
    assert f"computed on its device during {share}" in found.summary


def test_who_is_late_in_turns_is_not_named(tmp_path: Path) -> None:
    for rank in (0, 1):
        long, short = [(8_000, 16_500)], [(24_000, 500)]
        other = {at: short if at % 2 == rank else long for at in range(6)}
        write(tmp_path, **{f"r{rank}": trace(rank, [], other=other, steps=range(6))})
    assert not report_on(tmp_path).findings  # half of the steps have next to nothing


def test_one_slow_step_is_no_rule(tmp_path: Path) -> None:
    slow = {3: [(0.0, 29_990.0)] * 2}
    for rank in (0, 1):
        content = trace(rank, [(18_000, 5_000)], BACKWARD, other=slow)
        write(tmp_path, **{f"r{rank}": content})
    assert not report_on(tmp_path).findings


def test_without_the_trace_of_a_member_waiting_is_not_known(tmp_path: Path) -> None:
    write(tmp_path, a=trace(0, BEHIND, BACKWARD))
    report = report_on(tmp_path)
    (message,) = said(report)
    assert "is not known (of 2 members of group 0, 1 left a trace)" in message
    assert "rank 1: no trace of it was found" in unseen(report)


def test_traces_of_other_calls_are_not_matched(tmp_path: Path) -> None:
    other = trace(1, BEHIND, BACKWARD, op="broadcast")
    write(tmp_path, a=trace(0, BEHIND, BACKWARD), b=other)
    assert "do not hold the same calls of group 0" in said(report_on(tmp_path))[0]
    write(tmp_path, b=trace(1, BEHIND[:1], BACKWARD))
    assert "do not hold equally many calls" in said(report_on(tmp_path))[0]
    later = trace(1, BEHIND, BACKWARD, begin_us=BEGIN_US + 3.6e9)
    write(tmp_path, b=later)
    assert "are of different times" in said(report_on(tmp_path))[0]


def test_calls_that_need_not_wait_tell_of_no_waiting(tmp_path: Path) -> None:
    for rank in (0, 1):
        content = trace(rank, BEHIND, BACKWARD, op="broadcast")
        write(tmp_path, **{f"r{rank}": content})
    assert "calls that need not wait for all members" in said(report_on(tmp_path))[0]


def test_gloo_is_told_by_operators(tmp_path: Path) -> None:
    for rank, calls in enumerate(([(8_000.0, 16_500.0)], [(24_000.0, 500.0)])):
        content = trace(rank, calls, [(0, 8_000)], backend="gloo")
        write(tmp_path, **{f"r{rank}": content})
    (message,) = said(report_on(tmp_path))
    assert "On rank 0, 55% of the time is communication that no operator of" in message
    assert "rank 1 computed by torch's operators during 0% of the time" in message


def test_a_job_on_gpus_of_which_only_the_host_was_traced_is_unknown(
    tmp_path: Path,
) -> None:
    write(tmp_path, a=trace(0, []), b=trace(1, BEHIND, BACKWARD))
    report = report_on(tmp_path)
    assert "rank 0: its trace has no activity of a GPU" in unseen(report)
    write(tmp_path, a=trace(0, [], backend="gloo"))
    assert "rank 0: its trace has no communication in it" in unseen(report_on(tmp_path))


def test_a_trace_without_steps_is_cut_into_parts(tmp_path: Path) -> None:
    for rank in (0, 1):
        content = trace(rank, BEHIND, BACKWARD, steps=[-1] * 40)
        write(tmp_path, **{f"r{rank}": content})
    (message,) = said(report_on(tmp_path))
    assert "39% of the time" in message
    assert "on average of each of 5 parts of the trace" in message


def test_cycles_of_a_schedule_are_added_and_earlier_runs_are_not(
    tmp_path: Path,
) -> None:
    for rank in (0, 1):
        first = trace(rank, BEHIND, BACKWARD)
        after = BEGIN_US + 50 * STEP_US
        second = trace(rank, BEHIND, BACKWARD, steps=range(10, 14), begin_us=after)
        before = BEGIN_US - 900e6
        old = trace(rank, [(0, 29_000)], steps=range(2, 7), begin_us=before)
        names = {
            f"{n}{rank}": x for n, x in zip("abc", (first, second, old), strict=True)
        }
        write(tmp_path, **names)
    report = report_on(tmp_path)
    (message,) = said(report)
    assert "11.8 of 30 ms, on average of 9 steps" in message
    assert "0% of that is waiting" in message
    (remark,) = [one for one in report.remarks if "left out" in one]
    assert remark.count("a later trace of rank") == 2
    assert "c0.pt.trace.json" in remark


def test_calls_on_several_groups_are_matched_in_each(tmp_path: Path) -> None:
    """Rank 1 is late on its pair's group alone; ranks 2 and 3 do not belong to it."""
    for rank in range(4):
        top = json.loads(trace(rank, [(28_000, 500)], ranks=4))
        calls = [(2_000, 20_000)] if rank != 1 else [(21_500, 500)]
        pair = trace(rank, calls, ranks=2, group=f"pair {rank // 2}")
        top["traceEvents"] += json.loads(pair)["traceEvents"]
        (tmp_path / f"{rank}.json").write_text(json.dumps(top))
    (message,) = said(report_on(tmp_path))
    assert "On ranks {0,2-3}, 68% of the time" in message
    assert "32% of that is waiting for ranks that come later" in message


def test_groups_of_one_name_with_other_ranks_are_others(tmp_path: Path) -> None:
    """Of the pairs {0-1} and {2-3}, one member each has left a trace."""
    for rank in (0, 2):
        text = trace(rank, BEHIND, BACKWARD, ranks=2, group="1").decode()
        top = json.loads(text.replace("[0, 1]", str([rank, rank + 1])))
        top["distributedInfo"] |= {"rank": rank, "world_size": 4}
        (tmp_path / f"{rank}.json").write_text(json.dumps(top))
    (message,) = said(report_on(tmp_path))
    assert "is not known (of 2 members of group 1, 1 left a trace)" in message


def test_a_host_that_runs_far_ahead_of_its_device_is_judged_by_the_device(
    tmp_path: Path,
) -> None:
    """Its steps are over before the kernels that it began in them have run."""
    for rank in (0, 1):
        top = json.loads(trace(rank, BEHIND, BACKWARD))
        ahead = [one for one in top["traceEvents"] if "Step" in one["name"]]
        for n, step in enumerate(ahead):
            step |= {"ts": BEGIN_US + 2000 * n, "dur": 1999}
        (tmp_path / f"{rank}.json").write_text(json.dumps(top))
    (message,) = said(report_on(tmp_path))
    assert "On ranks {0-1}, 39% of the time" in message
    assert "each of 5 parts of the trace" in message


def test_a_trace_is_recognised_in_any_form(tmp_path: Path) -> None:
    """Packed, on one line, with its times at the end, and in the words of old torch."""
    first = trace(0, BEHIND, BACKWARD)
    top = json.loads(trace(1, BEHIND, BACKWARD))
    top["baseTimeNanoseconds"] = top.pop("baseTimeNanoseconds")
    for event in top["traceEvents"]:
        event["cat"] = {"kernel": "Kernel", "cpu_op": "Operator"}.get(
            event["cat"], event["cat"]
        )
    (tmp_path / "one.json.gz").write_bytes(gzip.compress(first))
    (tmp_path / "two.json").write_text(json.dumps(top))
    (message,) = said(report_on(tmp_path))
    assert "On ranks {0-1}, 39% of the time" in message
    assert "0% of that is waiting" in message


@pytest.mark.parametrize("size", [256, 1000, 4096])
def test_blocks_of_any_size_tell_the_same(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, a=trace(0, BEHIND, BACKWARD), b=trace(1, BEHIND, BACKWARD))
    before = said(report_on(tmp_path))
    monkeypatch.setattr(trace_blocks, "BLOCK_BYTES", size)
    assert said(report_on(tmp_path)) == before


def _refused(tmp_path: Path, content: bytes) -> str:
    write(tmp_path, a=content)
    result = CliRunner().invoke(app, ["examine", str(tmp_path / "a.pt.trace.json")])
    if isinstance(result.exception, DistdoctorError):
        return str(result.exception)
    assert result.exit_code == 4
    return re.sub(r"\s+", " ", result.output)


def test_a_trace_that_breaks_off_is_not_judged(tmp_path: Path) -> None:
    """Kernels may lack that ran while it communicated."""
    content = trace(0, BEHIND, BACKWARD)
    for size in (len(content) // 2, len(content) - 40):
        told = _refused(tmp_path, content[:size])
        assert "it breaks off: what ran later is not in it" in told
        assert "DD542" not in told
    packed = gzip.compress(content)
    (tmp_path / "x.json.gz").write_bytes(packed[: len(packed) // 2])
    report = report_on(tmp_path / "x.json.gz")
    assert "could not be read" in " ".join(report.remarks)


def test_a_damaged_trace_is_not_judged(tmp_path: Path) -> None:
    content = trace(0, BEHIND, BACKWARD).replace(b'"dur": 6000', b'"dur": "x"')
    assert "5 of its 20 events are damaged" in _refused(tmp_path, content)
    content = trace(0, BEHIND).replace(b'"schemaVersion": 1', b'"schemaVersion": {')
    assert "its head is damaged" in _refused(tmp_path, content)


def test_one_sentence_refuses_what_tells_of_no_job(
    tmp_path: Path,
) -> None:
    content = trace(0, BEHIND, distributedInfo=None)
    assert "it does not say of which rank it is" in _refused(tmp_path, content)
    assert "it is of a job of one rank" in _refused(tmp_path, trace(0, BEHIND, ranks=1))
    assert "is not a folder" in _refused(tmp_path, b'{"traceEvents": []}')


def test_a_rank_is_told_by_the_name_of_the_file_where_the_head_does_not(
    tmp_path: Path,
) -> None:
    for rank in (0, 1):
        content = trace(rank, BEHIND, BACKWARD, distributedInfo=None)
        (tmp_path / f"rank-{rank}.json").write_bytes(content)
    (message,) = said(report_on(tmp_path))
    assert "On ranks {0-1}" in message


def test_a_trace_with_more_than_is_kept_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiler_reader, "_MOST_INTERVALS", 1000)
    calls = [(2.0 * n, 1.0) for n in range(5000)]
    told = _refused(tmp_path, trace(0, calls, steps=[0]))
    assert "it holds more than 1,000 kernels and operators" in told


def test_an_empty_trace_is_one(tmp_path: Path) -> None:
    head = json.loads(trace(0, []))
    told = _refused(tmp_path, closed({**head, "traceEvents": None}, []))
    assert "no activity of a GPU" in told
