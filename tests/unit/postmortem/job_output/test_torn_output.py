"""Output of which parts are missing, or that says only indirectly who was at fault."""

from pathlib import Path

import pytest
from autopsies import findings_in, report_on

from distdoctor.report.schema import Report


def _of(folder: Path, text: str) -> Report:
    (folder / "job.log").write_text(text)
    return report_on(folder)


_PRINT = (
    "CollectiveFingerPrint(SequenceNumber={}, OpType={}, TensorShape=[{}], "
    "TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default)))"
)


def _mismatch(rank: int, other: int) -> str:
    calls = {0: (8, "BROADCAST", 1), 1: (8, "ALLREDUCE", 25), 2: (8, "ALLREDUCE", 25)}
    mine, theirs = (_PRINT.format(*calls[one]) for one in (rank, other))
    return (
        f"[rank{rank}]: RuntimeError: Detected mismatch between collectives on ranks. "
        f"Rank {rank} is running collective: {mine}, but Rank {other} is running "
        f"collective: {theirs}.Collectives differ in the following aspects: \n"
    )


def test_a_rank_whose_own_error_is_lost_is_told_by_the_others(tmp_path: Path) -> None:
    report = _of(tmp_path, _mismatch(1, 0) + _mismatch(2, 0))
    assert findings_in(report) == [("DD101", (0,))]


_OWN_FAULT = """\
[rank4]: Traceback (most recent call last):
[rank4]:   File "/llm/sft.py", line 388, in training_step
[rank4]:     loss = model(**batch).loss
[rank4]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.41 GiB.
"""
_PEERS_FAULT = (
    "[rank{}]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, "
    "remote process exited or there was a network error, NCCL version 2.23.4\n"
)
_SUMMARY = """\
Failures:
[1]:
  time      : 2025-12-02_01:58:50
  host      : a3
  rank      : {} (local_rank: 3)
  exitcode  : {} (pid: 88120)
  error_file: <N/A>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2025-12-02_01:58:50
  host      : a3
  rank      : {} (local_rank: 4)
  exitcode  : 1 (pid: 88121)
  error_file: <N/A>
============================================================
"""


def test_an_error_without_its_traceback_tells_victims(tmp_path: Path) -> None:
    text = _OWN_FAULT + _PEERS_FAULT.format(3) + _SUMMARY.format(3, 1, 4)
    assert findings_in(_of(tmp_path, text)) == [("DD202", (4,))]


def test_a_failing_status_beside_a_fault_is_no_cause(tmp_path: Path) -> None:
    report = _of(tmp_path, _OWN_FAULT + _SUMMARY.format(3, 1, 4))
    assert findings_in(report) == []
    assert [(one.error, one.ranks) for one in report.raised] == [
        ("OutOfMemoryError", [4])
    ]


def test_several_failing_statuses_tell_nothing(tmp_path: Path) -> None:
    text = (
        "W0101 00:00:00.000000 9 torch/distributed/elastic/multiprocessing/api.py:1] "
        "Sending process 77 closing signal SIGTERM\n"
    )
    report = _of(tmp_path, text + _SUMMARY.format(3, 1, 4))
    assert findings_in(report) == []


def test_a_monitored_barriers_line_names_who_did_not_come(tmp_path: Path) -> None:
    text = (
        "[rank0]:[E1202 ProcessGroupGloo.cpp:2810] [Rank 0]: Ranks 2, 3 failed to pass "
        "monitoredBarrier in 120000 ms\n"
    )
    (finding,) = _of(tmp_path, text).findings
    assert (finding.code, finding.ranks) == ("DD609", [2, 3])


_STALL = """\
[1,0]<stderr>:[2021-03-12 08:11:21.1: W horovod/common/stall_inspector.cc:107] One or \
more tensors were submitted to be reduced by subset of ranks and are waiting.
[1,0]<stderr>:Missing ranks:
[1,0]<stderr>:2: [allreduce.conv1.bias, allreduce.conv1.weight ...]
"""
_TRAINING = "".join(f"[1,{rank}]<stdout>:Epoch 1 loss 0.1\n" for rank in range(3))


def test_stalls_that_nothing_came_behind_name_who_is_missing(tmp_path: Path) -> None:
    report = _of(tmp_path, _TRAINING + 3 * _STALL)
    assert findings_in(report) == [("DD609", (2,))]


@pytest.mark.parametrize("text", [_TRAINING + _STALL, 3 * _STALL + _TRAINING])
def test_a_stall_that_may_be_over_accuses_nobody(text: str, tmp_path: Path) -> None:
    assert findings_in(_of(tmp_path, text)) == []


def test_an_exception_of_a_process_that_nobody_watched_is_shown(tmp_path: Path) -> None:
    text = """\
Process SpawnProcess-1:
Traceback (most recent call last):
  File "/usr/lib/python3.11/multiprocessing/process.py", line 314, in _bootstrap
    self.run()
  File "/home/li/exp/train.py", line 9, in worker
    out = net(x)
RuntimeError: mat1 and mat2 shapes cannot be multiplied
finished
"""
    report = _of(tmp_path, text)
    assert report.verdict == "unknown"
    assert [one.error for one in report.raised] == ["RuntimeError"]


def test_what_slurm_ended_for_want_of_memory_is_the_cause(tmp_path: Path) -> None:
    text = "".join(f"{rank}: step 7\n" for rank in range(8) for _ in range(3))
    text += """\
slurmstepd: error: Detected 1 oom_kill event in StepId=5.0. Some were killed.
srun: error: cn042: task 5: Out Of Memory
srun: Terminating StepId=5.0
slurmstepd: error: *** STEP 5.0 ON cn041 CANCELLED AT 2024-09-03T02:19:44 ***
"""
    assert findings_in(_of(tmp_path, text)) == [("DD202", (5,))]


def test_a_crash_in_native_code_is_the_cause_of_what_others_waited_for(
    tmp_path: Path,
) -> None:
    text = """\
[3] Fatal Python error: Segmentation fault
[3]
[3] Current thread 0x00007f1c2a7fc700 (most recent call first):
[3]   File "/w/train.py", line 133 in step
[0] [rank0]:[E1011 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective \
operation timeout: WorkNCCL(SeqNum=210, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, \
Timeout(ms)=600000) ran for 600041 milliseconds before timing out.
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   EXIT CODE: 139
"""
    (finding,) = _of(tmp_path, text).findings
    assert (finding.code, finding.ranks) == ("DD202", [3])


def test_a_store_that_nobody_finds_is_joining_without_its_outer_lines(
    tmp_path: Path,
) -> None:
    text = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/w/pretrain.py", line 60, in <module>
[rank0]:   File "/usr/lib/dist-packages/torch/distributed/rendezvous.py", line 1, \
in _create_c10d_store
[rank0]: torch.distributed.DistStoreError: Timed out after 601 seconds waiting for \
clients. 2/4 clients joined.
"""
    (finding,) = _of(tmp_path, text).findings
    assert finding.code == "DD206"


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: bad record, skipped",
        "UserWarning: the queue is nearly empty",
        "nn.Linear: 12 parameters",
    ],
)
def test_a_line_like_an_error_by_itself_ends_no_rank(line: str, tmp_path: Path) -> None:
    # Another rank's end has the file read at all.
    text = f"[rank0]: {line}\n" + _OWN_FAULT
    assert findings_in(_of(tmp_path, text)) == [("DD202", (4,))]


def test_lists_of_numbers_behind_a_stall_that_passed_are_no_stall(
    tmp_path: Path,
) -> None:
    numbers = "[1,0]<stderr>:3: [0.12, 0.3]\n" * 3
    assert findings_in(_of(tmp_path, _STALL + _TRAINING + numbers)) == []


def test_a_log_with_lists_goes_on_behind_a_stall(tmp_path: Path) -> None:
    text = 3 * _STALL + "[1,0]<stderr>:INFO: [step 5]\n"
    assert findings_in(_of(tmp_path, text)) == []
