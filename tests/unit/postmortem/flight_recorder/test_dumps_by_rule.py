"""Jobs with one fault, or none, as flight recorders see them: what autopsy says."""

import random
from pathlib import Path

import pytest
from recorder_dumps import JOBS, Simulation, Style, dumps, write
from recorder_faults import FAULTS, STYLES, Fault, cases, miss, report_of

from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.postmortem.evidence_run import run_of
from distdoctor.postmortem.recognising import gather


@pytest.mark.parametrize("seed", [100, 101])
def test_each_fault_in_some_job_is_told_as_what_it_is(
    seed: int, tmp_path: Path
) -> None:
    wrong = [
        (name, why)
        for case, path, name in cases(seed, tmp_path)
        if (why := miss(case, report_of(path)))
    ]
    assert wrong == []


@pytest.mark.parametrize("style", STYLES, ids=str)
def test_a_running_job_is_never_accused(style: Style, tmp_path: Path) -> None:
    if style.backend == "gloo":
        pytest.skip("gloo records no messages")
    for n, make in enumerate(JOBS.values()):
        job = make(6, 9)
        done = Simulation(job, n, rounds=8 + 3 * n)
        write(tmp_path / str(n), dumps(job, done, style, at_once=True), style)
        report = report_of(tmp_path / str(n))
        assert [one["code"] for one in report["findings"]] == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_order_of_files_means_nothing(fault: Fault, tmp_path: Path) -> None:
    job = JOBS["ddp"](6, 8)
    if fault(job, random.Random(7)) is None:
        pytest.skip("this job cannot have it")
    write(tmp_path, dumps(job, Simulation(job, 7), Style()), Style())
    files = sorted(map(str, tmp_path.iterdir()))
    assert (
        _findings(files) == _findings(files[::-1]) == _findings(files[3:] + files[:3])
    )


def _findings(files: list[str]) -> list[tuple[str, tuple[int, ...], str]]:
    run = run_of(gather(files))
    return [(str(one.why), one.culprits, str(one.ordinal)) for one in divergences(run)]
