"""Dumps that look odd and are healthy, files that are none, and those of other runs."""

import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import recorder_oddities as odd
from recorder_dumps import (
    Simulation,
    Step,
    Style,
    all_reduce,
    changed,
    ddp,
    dumps,
    write,
)
from recorder_faults import report_of

from distdoctor.postmortem.evidence_run import run_of
from distdoctor.postmortem.recognising import gather

RECORDED = Path(__file__).parent / "gloo_3_ranks.tar.xz"


@pytest.mark.parametrize("as_json", [False, True], ids=["pickle", "json"])
@pytest.mark.parametrize(
    "make",
    [odd.uneven_all_gather, odd.rooted, odd.one_name, odd.late_in_the_ring],
    ids=lambda make: make.__name__,
)
def test_what_differs_by_right_is_no_fault(
    make: Callable[[], odd.Tops], as_json: bool, tmp_path: Path
) -> None:
    write(tmp_path, make(), Style(as_json=as_json))
    report = report_of(tmp_path)
    assert report["findings"] == []
    assert report["checks"]["crashed"] == []


def test_the_oldest_format_is_read(tmp_path: Path) -> None:
    write(tmp_path, odd.oldest_format(), Style())
    run = run_of(gather([str(tmp_path)]))
    assert run.world_size == 4
    assert {group.ranks for group in run.groups} == {(0, 1, 2, 3)}
    assert run.call(0).op == "all_reduce"


def test_real_dumps_of_gloo_are_read(tmp_path: Path) -> None:
    with tarfile.open(RECORDED) as archive:
        # Not every Python 3.11 takes it as an argument.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(tmp_path)
    for pattern in ("fr_rank_*", "json_rank_*"):
        files = sorted(map(str, tmp_path.glob(pattern)))
        run = run_of(gather(files))
        names = {group.name: group.ranks for group in run.groups}
        assert names["world"] == (0, 1, 2)
        assert (0, 1) in names.values()
        assert [run.call(row).op for row in run.rows_of(2)] == [
            *["all_reduce"] * 3,
            "broadcast",
            "barrier",
        ]
    place = run_of(gather([str(tmp_path / "fr_rank_2")])).call(0).place
    assert place is not None
    assert (Path(place.file).name, place.function) == ("realfr.py", "f")


def test_files_of_an_earlier_run_are_told_apart(tmp_path: Path) -> None:
    odd.with_stale(tmp_path)
    report = report_of(tmp_path)
    assert report["world_size"] == 6
    assert report["findings"] == []
    reported = {gap["what"] for gap in report["not_examined"]}
    assert {"a dump of rank 6", "a dump of rank 7"} <= reported


def test_damaged_and_hostile_files_are_named_and_nothing_is_run(tmp_path: Path) -> None:
    odd.damaged(tmp_path)
    report = report_of(tmp_path)
    assert not (tmp_path / "executed").exists()
    assert report["findings"] == []
    reported = {gap["what"] for gap in report["not_examined"]}
    assert {"rank 1", "rank 2", "rank 3", "rank 4"} <= reported


def test_a_rank_whose_dump_cannot_be_read_is_not_called_dead(tmp_path: Path) -> None:
    job = ddp(6, 6)
    write(tmp_path, dumps(job, Simulation(job, 1), Style()), Style())
    job.steps[2].insert(20, Step("stop"))
    write(tmp_path, dumps(job, Simulation(job, 1), Style()), Style())
    (tmp_path / f"{Style().prefix}2").write_bytes(b"\x80\x02]q\x00(")
    report = report_of(tmp_path)
    assert report["findings"] == []
    assert report["verdict"] == "unknown"


def test_a_rank_without_a_dump_that_others_wait_for_is_lost(tmp_path: Path) -> None:
    job = ddp(6, 6)
    job.steps[2].insert(20, Step("die"))
    write(tmp_path, dumps(job, Simulation(job, 1), Style()), Style())
    (finding,) = report_of(tmp_path)["findings"]
    assert (finding["code"], finding["ranks"]) == ("DD202", [2])
    assert finding["certainty"] == "likely"


def test_a_tie_shows_both_camps_and_names_none(tmp_path: Path) -> None:
    job = ddp(4, 6)
    for rank in (1, 3):
        changed(job, rank, 11, dtype="Half")
    write(tmp_path, dumps(job, Simulation(job, 1), Style()), Style())
    (finding,) = report_of(tmp_path)["findings"]
    assert (finding["code"], finding["ranks"]) == ("DD103", [])
    assert "ranks {0,2} with float32; ranks {1,3} with float16" in finding["summary"]


def test_a_call_left_out_is_told_at_its_line(tmp_path: Path) -> None:
    job = ddp(5, 8, logs=1)
    for steps in job.steps.values():
        steps[:] = [step for step in steps if step.op != "wait"]
    del job.steps[3][14]
    write(tmp_path, dumps(job, Simulation(job, 1), Style()), Style())
    (finding,) = report_of(tmp_path)["findings"]
    assert (finding["code"], finding["ranks"]) == ("DD108", [3])
    assert (finding["locations"][0]["file"], finding["locations"][0]["line"]) == (
        "/job/train.py",
        96,
    )


def test_names_of_other_libraries_are_known(tmp_path: Path) -> None:
    tops = odd.healthy(3)
    for rank, top in tops.items():
        for name in ("all_gather_single", "reduce_scatter_single", "barrier", "odd"):
            added = odd.entry(top, name)
            added["profiling_name"] = f"torchcomms:ncclx:{name}"
            if name == "odd" and rank == 1:
                added["profiling_name"] = "torchcomms:ncclx:odder"
    write(tmp_path, tops, Style())
    (finding,) = report_of(tmp_path)["findings"]
    assert (finding["code"], finding["ranks"]) == ("DD101", [1])


def test_a_dump_of_rank_in_no_group_is_not_taken(tmp_path: Path) -> None:
    write(tmp_path, odd.healthy(3), Style())
    (tmp_path / f"{Style().prefix}7").write_bytes(pickle.dumps(odd.healthy(3)[0], 2))
    report = report_of(tmp_path)
    assert report["world_size"] == 3
    assert any("rank 7" in remark for remark in report["remarks"])


def test_ranks_that_call_for_long_tell_that_another_is_stuck(tmp_path: Path) -> None:
    job = ddp(4, 6)
    job.groups["1"] = (0, 1, 3)
    job.steps[2].insert(14, Step("stop"))
    beat = all_reduce(1, group="1", line=("heartbeat", 9))
    for rank in (0, 1, 3):
        job.steps[rank][19:19] = [Step("idle", seconds=70.0), beat]
    write(tmp_path, dumps(job, Simulation(job, 1), Style()), Style())
    (finding,) = report_of(tmp_path)["findings"]
    assert (finding["code"], finding["ranks"]) == ("DD204", [2])


def test_two_dumps_of_one_ring_are_one(tmp_path: Path) -> None:
    write(tmp_path, odd.healthy(3), Style())
    write(tmp_path, odd.healthy(3), Style(as_json=True, prefix="as_json_rank_"))
    run = run_of(gather([str(tmp_path)]))
    assert run.set_aside == ()
    assert run.call(0).place is not None


def test_ranks_that_are_counted_on_each_host_are_given_to_nobody(
    tmp_path: Path,
) -> None:
    job = ddp(8, 6)
    job.steps[2].insert(20, Step("stop"))
    found = dumps(job, Simulation(job, 1), Style())
    for host in range(2):
        mine = {rank: found[4 * host + rank] for rank in range(4)}
        write(tmp_path, mine, Style(prefix=f"node{host}_rank_"))
    report = report_of(tmp_path)
    assert report["findings"] == []
    assert report["verdict"] == "unknown"
