"""Logs of NCCL in a record are evidence beside what our probes saw."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from distdoctor.analysis.nccl.log_diagnosis import diagnoses
from distdoctor.analysis.nccl.logged_job import job_of
from distdoctor.journal.folder import Manifest
from distdoctor.journal.format import offset_of
from distdoctor.journal.layout import NCCL_LOGS_FILE
from distdoctor.journal.recorded_nccl_logs import (
    nccl_logs,
    ranks_by_process,
    sizes_of_nccl_logs,
)
from distdoctor.journal.writer import JournalWriter
from distdoctor.model.observations.nccl import (
    Communicator,
    ComplaintKind,
    NcclComplaint,
    NcclProcess,
)
from distdoctor.model.run import Run
from distdoctor.model.stop_reasons import Stop
from distdoctor.postmortem import own_nccl_logs
from distdoctor.postmortem.own_nccl_logs import with_nccl_logs

BEGUN = (
    "node1:{pid}:{pid} [0] NCCL INFO ncclCommInitRank comm 0x{pid} rank {rank} nranks "
    "2 cudaDev 0 nvmlDev 0 busId c3000 commId 0x5 - Init START\n"
)
CLOSED = (
    "[2026-11-25 03:00:00] node1:{pid}:{pid} [0] misc/socket.cc:58 NCCL WARN socketPoll"
    "Connect: connection closed by remote peer node2<40000>\n"
    "node1:{pid}:{pid} [0] NCCL INFO misc/socket.cc:812 -> 6\n"
)
REFUSED = (
    "node1:{pid}:{pid} [0] misc/socket.cc:58 NCCL WARN [Service thread] Accept failed "
    "Resource temporarily unavailable\n"
)
PIDS = {11: 0, 22: 1}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A record of two ranks, one of which was told at the end that its peer is gone."""
    monkeypatch.setattr(own_nccl_logs, "ranks_by_process", lambda *_: PIDS)
    logs = tmp_path / "nccl"
    logs.mkdir()
    for pid, rank in PIDS.items():
        (logs / f"node1.{pid}.log").write_text(BEGUN.format(pid=pid, rank=rank))
    return tmp_path


def manifest(**how: object) -> Manifest:
    """How a job was started, and ended."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return Manifest(distdoctor="0", launch=[], directory="/", started=started, **how)  # type: ignore[arg-type]


def run_of_two() -> Run:
    """What our probes saw: two ranks that said nothing."""
    return Run(world_size=2, life={0: [], 1: []})


def test_ranks_get_what_their_processes_logged(folder: Path) -> None:
    run = with_nccl_logs(run_of_two(), folder, manifest(exit_code=1))
    for pid, rank in PIDS.items():
        (process,) = run.of(NcclProcess, rank)
        assert process.pid == pid
        assert run.of(Communicator, rank)
    assert "log" in run.evidence


def test_a_record_without_logs_is_what_it_was(tmp_path: Path) -> None:
    run = run_of_two()
    assert with_nccl_logs(run, tmp_path, manifest()) is run


def test_where_there_are_no_logs_nothing_that_reads_them_is_loaded() -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from distdoctor.journal.folder import Manifest\n"
        "from distdoctor.model.run import Run\n"
        "from distdoctor.postmortem.own_nccl_logs import with_nccl_logs\n"
        "manifest = Manifest(distdoctor='', launch=[], directory='')\n"
        "with_nccl_logs(Run(world_size=1), Path('no/such/folder'), manifest)\n"
        "assert not [name for name in sys.modules if 'postmortem.nccl_logs' in name]"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize("stopped", [Stop.DEADLOCK, Stop.STEPS])
def test_what_was_said_while_ranks_were_ended_is_no_evidence(
    stopped: Stop, folder: Path
) -> None:
    how = manifest(stopped=stopped)
    how.nccl_log_bytes = sizes_of_nccl_logs(folder, how)
    with (folder / "nccl" / "node1.11.log").open("a") as log:
        log.write(CLOSED.format(pid=11))
    run = with_nccl_logs(run_of_two(), folder, how)
    assert not run.has(NcclComplaint)
    # Who is ended while all goes well does not wait.
    assert run.has(Communicator) == (stopped is Stop.DEADLOCK)


def test_a_record_that_was_moved_tells_the_same(folder: Path) -> None:
    how = manifest(stopped=Stop.INTERRUPTED)
    how.nccl_log_bytes = sizes_of_nccl_logs(folder, how)
    for name in ("node1.11.log", "node1.33.log"):  # one began while ranks were ended
        with (folder / "nccl" / name).open("a") as log:
            log.write(CLOSED.format(pid=name.split(".")[1]))
    moved = folder.rename(folder.with_name("moved"))
    assert not with_nccl_logs(run_of_two(), moved, how).has(NcclComplaint)
    how.stopped = ""
    assert with_nccl_logs(run_of_two(), moved, how).has(NcclComplaint)


def test_programs_that_ranks_started_are_no_ranks(folder: Path) -> None:
    (folder / "nccl" / "node1.22.log").unlink()
    path = folder / "nccl" / "node1.33.log"
    begun = BEGUN.format(pid=33, rank=1).replace("commId 0x5", "commId 0x7")
    path.write_text(begun + CLOSED.format(pid=33))
    # Such a program finds our variables set, and notes them as the user's.
    (folder / NCCL_LOGS_FILE).write_text(json.dumps({"path": str(path)}))
    how = manifest(exit_code=1)
    assert len(nccl_logs(folder, how)) == 2
    run = with_nccl_logs(run_of_two(), folder, how)
    assert run.of(NcclProcess, 0)
    assert not run.of(NcclProcess, 1)
    assert not run.has(NcclComplaint)


def test_ranks_are_those_of_the_last_generation(tmp_path: Path) -> None:
    begun = [(11, 0, 3), (22, 1, 3), (33, 2, 3), (44, 0, 2), (55, 1, 2)]
    for pid, rank, size in begun:
        writer = JournalWriter(tmp_path, rank, size, 64 * 1024)
        with writer.path.open("r+b") as file:
            file.seek(offset_of("pid"))
            file.write(pid.to_bytes(4, "little"))
        writer.end()
    assert ranks_by_process(tmp_path, manifest(exit_code=1)) == {44: 0, 55: 1}


@pytest.mark.parametrize(
    ("how", "is_told"),
    [
        (manifest(exit_code=0), False),
        (manifest(stopped=Stop.STEPS), False),
        (manifest(exit_code=1), True),
        (manifest(stopped=Stop.INTERRUPTED), True),
        (manifest(stopped=Stop.STUCK), True),
    ],
    ids=["ended well", "by request", "failed", "interrupted", "stuck"],
)
def test_errors_did_no_harm_to_a_job_that_ended_well(
    how: Manifest, is_told: bool, folder: Path
) -> None:
    for pid, rank in PIDS.items():
        begun = BEGUN.format(pid=pid, rank=rank)
        text = begun + begun.replace("START", "COMPLETE") + REFUSED.format(pid=pid)
        (folder / "nccl" / f"node1.{pid}.log").write_text(text)
    how.nccl_log_bytes = sizes_of_nccl_logs(folder, how) if how.stopped else {}
    run = with_nccl_logs(run_of_two(), folder, how)
    assert run.has(NcclComplaint)
    assert bool(list(job_of(run).complaints(ComplaintKind.THREADS))) == is_told
    assert any(one.severity is None for one in diagnoses(run)) == is_told


@pytest.mark.parametrize("stopped", ["", Stop.DEADLOCK])
def test_ranks_of_other_machines_are_not_missed_in_the_logs_of_this_one(
    stopped: str, folder: Path
) -> None:
    for path in (folder / "nccl").glob("*.log"):
        text = path.read_text().replace("nranks 2", "nranks 4")
        done = "" if stopped else text.replace("START", "COMPLETE")
        path.write_text(text + done)
    unseen = dict.fromkeys((2, 3), "it ran on another machine")
    run = Run(world_size=4, life={0: [], 1: []}, unseen=unseen)
    how = manifest(stopped=stopped)
    how.nccl_log_bytes = sizes_of_nccl_logs(folder, how) if stopped else {}
    logged = with_nccl_logs(run, folder, how)
    assert logged.has(Communicator)
    assert not diagnoses(logged)
    # Of a job that nobody watched, such logs are all there is.
    assert diagnoses(replace(logged, evidence=("log",)))


def test_a_rank_is_known_by_its_process_before_it_says_its_rank(folder: Path) -> None:
    (folder / "nccl" / "node1.22.log").write_text(CLOSED.format(pid=22))
    run = with_nccl_logs(run_of_two(), folder, manifest(exit_code=1))
    assert run.of(NcclComplaint, 1)


def test_a_file_of_the_user_is_read_if_it_is_of_this_job(tmp_path: Path) -> None:
    paths = [tmp_path / "old.log", tmp_path / "new.log", tmp_path / "gone.log"]
    for path in paths[:2]:
        path.write_text(BEGUN.format(pid=11, rank=0))
    os.utime(paths[0], (1, 1))
    notes = [json.dumps({"path": str(path)}) for path in paths]
    (tmp_path / NCCL_LOGS_FILE).write_text("\n".join([*notes, '{"pa', "7"]))
    assert nccl_logs(tmp_path, manifest()) == {str(paths[1]): paths[1]}
