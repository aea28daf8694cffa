"""What Horovod prints: its stall inspector, refusals, and errors of a lost peer."""

from pathlib import Path

import pytest
from autopsies import findings_in, report_on
from horovod_leavings import RECORDED

from distdoctor.report.schema import Report


def _of(folder: Path, text: str) -> Report:
    (folder / "job.out").write_text(text)
    return report_on(folder)


RECORDINGS = {
    "mstall3": [("DD609", (2,))],  # without marks of a launcher
    "mnames2": [("DD609", ())],
    "mnamesshut2": [("DD609", ())],
    "mresolve2": [],
    "mid2": [],
    "shape": [("DD102", ())],
    "op": [("DD104", ())],
    "shapegoes": [],  # caught, and the job went on
    "dies": [("DD202", (1,))],
    "killed": [("DD202", (1,))],
}
"""By program, what is found in its output."""


@pytest.mark.parametrize("name", RECORDINGS)
def test_recorded_output(name: str, tmp_path: Path) -> None:
    report = _of(tmp_path, (RECORDED / f"{name}.out").read_text())
    assert findings_in(report) == RECORDINGS[name]


def test_the_inspector_tells_which_tensors(tmp_path: Path) -> None:
    (finding,) = _of(tmp_path, (RECORDED / "mnames2.out").read_text()).findings
    assert "rank 0 had not submitted allreduce.b" in finding.summary
    assert "rank 1 had not submitted allreduce.a" in finding.summary


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("data types: One rank had type float64, but another rank had float32.", 103),
        ("BROADCAST root ranks: One rank specified root rank 0, but another 1.", 105),
        ("operations: One rank did an allreduce, but another did an allgather.", 101),
        ("prescale and/or postscale factors: One rank sent factors (1, 2)", 104),
        ("ALLGATHER tensor shapes: One rank sent a tensor of rank 1, but", 102),
    ],
)
def test_a_refusal_is_told_in_the_words_of_horovod(
    words: str, code: int, tmp_path: Path
) -> None:
    text = (RECORDED / "shape.out").read_text()
    old = "ALLREDUCE tensor shapes: One rank sent a tensor of shape [4], but another "
    old += "rank sent a tensor of shape [3]."
    assert old in text
    (finding,) = _of(tmp_path, text.replace(old, words)).findings
    assert finding.code == f"DD{code}"
    assert words in finding.summary
    assert finding.ranks == []


def test_who_says_that_horovod_was_shut_down_is_never_named(tmp_path: Path) -> None:
    text = "[1,0]<stderr>:Traceback (most recent call last):\n"
    text += '[1,0]<stderr>:  File "/home/li/case.py", line 8, in red\n'
    text += "[1,0]<stderr>:{}[1,0]<stderr>:: Horovod has been shut down. This was\n"
    text += "Process 0 exit with status code 1.\n"
    for error in ("RuntimeError", "horovod.common.exceptions.HorovodInternalError"):
        report = _of(tmp_path, text.format(error))
        assert findings_in(report) == []


def test_most_that_did_not_come_are_not_named(tmp_path: Path) -> None:
    # Lists that are most of a file are not the output of tasks 1 and 2.
    warning = "Missing ranks:\n1: [allreduce.x]\n2: [allreduce.x, allreduce.y ...]\n"
    (finding,) = _of(tmp_path, 3 * warning).findings
    assert (finding.code, finding.ranks) == ("DD609", [])


def test_what_ends_the_job_is_no_sign_that_it_went_on(tmp_path: Path) -> None:
    warning = "[1,0]<stderr>:Missing ranks:\n[1,0]<stderr>:1: [allreduce.x]\n"
    end = "[1]<stderr>:Terminated\nProcess 1 exit with status code 143.\n"
    report = _of(tmp_path, "[1,1]<stdout>:step 1\n" + 3 * warning + end)
    assert findings_in(report) == [("DD609", (1,))]
