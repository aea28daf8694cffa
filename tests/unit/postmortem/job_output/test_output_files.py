"""Output in the forms in which launchers, clusters and programs leave it."""

import bz2
import gzip
import io
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from autopsies import findings_in, report_on
from hypothesis import given
from hypothesis import strategies as st

from distdoctor.postmortem.job_evidence import Evidence
from distdoctor.postmortem.job_output.output_files import read, recognises
from distdoctor.postmortem.leavings import Leaving
from distdoctor.postmortem.recognising import gather

CULPRIT = """Traceback (most recent call last):
  File "/home/user/train.py", line 40, in <module>
    main()
  File "/home/user/data.py", line 7, in load
    return table["label"]
           ~~~~~^^^^^^^^^
KeyError: 'label'
"""

VICTIM = """Traceback (most recent call last):
  File "/home/user/train.py", line 40, in <module>
    main()
  File "/home/user/train.py", line 31, in main
    dist.all_reduce(loss)
  File "/usr/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", \
line 2806, in all_reduce
    work.wait()
RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed \
by peer [10.0.0.7]:4784
"""


def printed(rank: int, culprit: int = 2) -> list[str]:
    """What a rank prints: some steps, and its traceback."""
    steps = [f"step {n} loss {1 / (n + 1):.3f} error rate 0.{n}" for n in range(5)]
    return steps + (CULPRIT if rank == culprit else VICTIM).splitlines()


def interleaved(mark: Callable[[int], str], ranks: int = 4, seed: int = 0) -> list[str]:
    """The lines of all ranks, each with its mark, in some order that keeps each's."""
    left = {rank: printed(rank) for rank in range(ranks)}
    choose = random.Random(seed)
    lines = []
    while left:
        rank = choose.choice(sorted(left))
        lines.append(mark(rank) + left[rank].pop(0))
        if not left[rank]:
            del left[rank]
    return lines


MARKS: dict[str, Callable[[int], str]] = {
    "torch": "[rank{}]: ".format,
    "torchrun": "[default{}]:".format,
    "torchrun and torch": lambda rank: f"[default{rank}]:[rank{rank}]: ",
    "srun": "{}: ".format,
    "srun padded": "{:02}: ".format,
    "mpirun": "[1,{}]<stderr>:".format,
    "mpirun with time": "Thu May  7 10:39:20 2020[1,{}]<stderr>: ".format,
    "prterun": "[prterun-node1-77@1,{}]<stderr>: ".format,
    "mpich": "[{}] ".format,
    "horovodrun": "[{}]<stderr>:".format,
    "horovodrun with time": "Mon Oct 19 20:44:09 2020[{}]<stderr>:".format,
    "docker": lambda rank: f"2024-05-11T14:10:52.224123456Z [rank{rank}]: ",
    "container": lambda rank: f"2024-05-11T14:10:52.22Z stderr F [rank{rank}]: ",
    "kubectl": lambda rank: f"[pod/train-0/pytorch] [rank{rank}]: ",
    "colours": lambda rank: f"\x1b[36m[rank{rank}]: \x1b[0m",
    "torchrun in srun": lambda rank: f"0: [default{rank}]:[rank{rank}]: ",
    "torchrun's tee in srun": lambda rank: f"0: [default{rank}]:",
}


@pytest.mark.parametrize("launcher", MARKS)
def test_whoever_marks_the_lines_the_cause_is_found(
    launcher: str, tmp_path: Path
) -> None:
    lines = interleaved(MARKS[launcher])
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n")
    report = report_on(tmp_path)
    assert findings_in(report) == [("DD202", (2,))]
    assert report.findings[0].locations[0].line == 7


@given(st.integers(), st.sampled_from(sorted(MARKS)))
def test_in_whatever_order_the_lines_come(seed: int, launcher: str) -> None:
    hearing = Evidence()
    text = "\n".join(interleaved(MARKS[launcher], seed=seed))
    read([_InMemory(text.encode())], hearing)
    failures = {
        rank: [one.secondary for one in life if hasattr(one, "secondary")]
        for rank, life in hearing.life.items()
    }
    assert failures == {0: [True], 1: [True], 2: [False], 3: [True]}


class _InMemory(Leaving):
    """A file that is none."""

    def __init__(self, content: bytes, path: str = "job.log") -> None:
        super().__init__(path, len(content))
        object.__setattr__(self, "open", lambda: io.BytesIO(content))


NAMES: dict[str, Callable[[int], str]] = {
    "per rank": "rank_{}.log".format,
    "per rank, short": "rank{}.err".format,
    "array": "slurm-123_{}.out".format,
    "horovodrun": "rank.{}/stderr".format,
    "torchrun": "none_x/attempt_0/{}/stderr.log".format,
}


@pytest.mark.parametrize("naming", NAMES)
@pytest.mark.parametrize("packed", ["", "gz", "bz2"])
def test_a_file_for_each_rank(naming: str, packed: str, tmp_path: Path) -> None:
    for rank in range(4):
        path = tmp_path / NAMES[naming](rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = "\r\n".join(printed(rank)).encode() + b"\r\n"
        if packed:
            content = (
                gzip.compress(content) if packed == "gz" else bz2.compress(content)
            )
            path.with_name(f"{path.name}.{packed}").write_bytes(content)
        else:
            path.write_bytes(content)
    assert findings_in(report_on(tmp_path)) == [("DD202", (2,))]


def test_of_several_starts_the_last_counts(tmp_path: Path) -> None:
    for attempt, culprit in ((0, 1), (1, 0)):
        for rank in range(2):
            path = tmp_path / f"none_x/attempt_{attempt}/{rank}/stderr.log"
            path.parent.mkdir(parents=True)
            path.write_text("\n".join(printed(rank, culprit)))
    assert findings_in(report_on(tmp_path)) == [("DD202", (0,))]


def test_a_progress_bar_does_no_harm(tmp_path: Path) -> None:
    bar = "".join(f"\r{n:3}%|{'#' * n}" for n in range(100))
    lines = interleaved(MARKS["torch"])
    lines[3:3] = [bar]
    (tmp_path / "job.log").write_text("\n".join(lines))
    assert findings_in(report_on(tmp_path)) == [("DD202", (2,))]


def test_a_failure_after_much_output_is_found(tmp_path: Path) -> None:
    steps = "".join(f"[rank{n % 4}]: step {n}\n" for n in range(200_000))
    lines = interleaved(MARKS["torch"])
    (tmp_path / "job.log").write_text(steps + "\n".join(lines))
    assert findings_in(report_on(tmp_path)) == [("DD202", (2,))]


def test_an_exception_that_all_raise_is_told_and_is_no_disease(tmp_path: Path) -> None:
    text = "".join(
        f"[rank{rank}]: {line}\n" for rank in range(3) for line in CULPRIT.splitlines()
    )
    (tmp_path / "job.log").write_text(text)
    report = report_on(tmp_path)
    assert findings_in(report) == []
    assert [(one.error, one.ranks) for one in report.raised] == [
        ("KeyError", [0, 1, 2])
    ]


def test_what_was_logged_and_survived_is_not_told(tmp_path: Path) -> None:
    for rank in range(2):
        text = f"epoch 1\nERROR:root:a bad sample, skipped\n{CULPRIT}epoch 2\ndone\n"
        (tmp_path / f"rank{rank}.log").write_text(text)
    report = report_on(tmp_path)
    assert (findings_in(report), report.raised) == ([], [])


def test_a_clean_log_accuses_nobody(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("epoch 1 error 0.3 failed 0\ndone\n" * 1000)
    report = report_on(tmp_path)
    assert (report.verdict, report.findings, report.raised) == ("unknown", [], [])


# --- machines and their managers ---


def victims(*ranks: int) -> str:
    return "".join(
        f"{rank}: {line}\n" for rank in ranks for line in VICTIM.splitlines()
    )


def test_slurm_tells_of_a_task_that_was_killed_for_want_of_memory(
    tmp_path: Path,
) -> None:
    text = victims(0, 1, 2)
    text += "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the "
    text += "step tasks have been OOM Killed.\nsrun: error: n7: task 3: Out Of Memory\n"
    (tmp_path / "slurm-77.out").write_text(text)
    report = report_on(tmp_path)
    assert findings_in(report) == [("DD202", (3,))]
    assert "signal 9 (the kernel's out-of-memory killer" in report.findings[0].summary


def test_tasks_that_srun_ended_are_victims(tmp_path: Path) -> None:
    text = "srun: error: n1: task 1: Segmentation fault (core dumped)\n"
    text += "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
    text += "srun: error: n1: tasks 0,2-3: Killed\n"
    (tmp_path / "slurm-77.out").write_text(text)
    assert findings_in(report_on(tmp_path)) == [("DD202", (1,))]


def test_a_job_at_its_time_limit_is_not_sick(tmp_path: Path) -> None:
    text = "".join(f"{rank}: step {n}\n" for n in range(50) for rank in range(4))
    text += "slurmstepd: error: *** STEP 77.0 ON n1 CANCELLED AT 2024-05-11T14:10:52 "
    text += "DUE TO TIME LIMIT ***\nsrun: error: n1: tasks 0-3: Killed\n"
    (tmp_path / "slurm-77.out").write_text(text)
    report = report_on(tmp_path)
    assert (report.verdict, findings_in(report)) == ("unknown", [])
    assert any("time limit" in gap.why for gap in report.not_examined)


def test_a_job_whose_launcher_was_signalled_is_not_sick(tmp_path: Path) -> None:
    """As torch 2.11 tells it; ranks that live longer see connections close."""
    agent = "torch/distributed/elastic/"
    text = f"W1126 11:14:11.851000 1707 {agent}agent/server/api.py:739] Received 15 "
    text += "death signal, shutting down workers\n"
    for pid in (1742, 1743):
        text += f"W1126 11:14:11.852000 1707 {agent}multiprocessing/api.py:1012] "
        text += f"Sending process {pid} closing signal SIGTERM\n"
    (tmp_path / "job.out").write_text(text)
    for rank, pid in enumerate((1742, 1743)):
        log = f"vm:{pid}:{pid} [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n"
        log += f"vm:{pid}:{pid} [0] NCCL INFO ncclCommInitRankConfig comm 0xa{rank} "
        log += f"rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId "
        log += "0x1f7c30353b1e8a95 - Init COMPLETE\n"
        if rank:
            log += (
                f"[2026-11-26 11:14:11] vm:{pid}:1882 [0] misc/socket.cc:72 NCCL WARN "
            )
            log += "socketProgress: Connection closed by remote peer localhost<41874>\n"
            log += f"vm:{pid}:1882 [0] NCCL INFO misc/socket.cc:81 -> 6\n"
        (tmp_path / f"nccl.{pid}.log").write_text(log)
    report = report_on(tmp_path)
    assert (report.verdict, findings_in(report)) == ("unknown", [])
    assert any("it got signal 15" in gap.why for gap in report.not_examined)
    (tmp_path / "job.out").unlink()
    report = report_on(tmp_path)
    assert [code for code, _ in findings_in(report)] == ["DD605"]


def test_the_kernels_log_says_why_a_rank_was_killed(tmp_path: Path) -> None:
    torchrun = (
        "Failures:\n  <NO_OTHER_FAILURES>\n----------\n"
        "Root Cause (first observed failure):\n[0]:\n"
        "  time      : 2026-11-26_00:32:43\n  host      : n1\n"
        "  rank      : 5 (local_rank: 1)\n  exitcode  : -9 (pid: 24065)  (SIGKILL)\n"
        "  error_file: <N/A>\n"
        "  traceback : Signal 9 (SIGKILL) received by PID 24065\n===========\n"
    )
    marked = "".join(f"[rank{n}]: {x}\n" for n in (0, 1) for x in VICTIM.splitlines())
    (tmp_path / "job.out").write_text(marked + torchrun)
    (tmp_path / "dmesg.txt").write_text(
        "[12345.6] Out of memory: Killed process 24065 (python) total-vm:9kB\n"
        "[12346.6] NVRM: Xid (PCI:0000:3b:00): 79, pid=77, GPU has fallen off the bus\n"
    )
    report = report_on(tmp_path)
    assert findings_in(report) == [("DD202", (5,))]
    assert "out-of-memory" in report.findings[0].summary


def test_mpirun_tells_of_a_signal(tmp_path: Path) -> None:
    text = "".join(f"[1,0]<stderr>:{line}\n" for line in VICTIM.splitlines())
    text += "mpirun noticed that process rank 1 with PID 123 on node n1 exited on "
    text += "signal 11 (Segmentation fault).\n"
    (tmp_path / "job.err").write_text(text)
    assert findings_in(report_on(tmp_path)) == [("DD202", (1,))]


# --- watchdogs ---


def watchdog(rank: int, number: int, op: str = "ALLREDUCE", numel: int = 64) -> str:
    """What a rank of an NCCL group prints when its time is up."""
    mark = f"[rank{rank}]:[E1121 07:20:11.518566312 ProcessGroupNCCL.cpp:616] "
    return (
        f"{mark}[Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={number}, OpType={op}, NumelIn={numel}, NumelOut={numel}, "
        "Timeout(ms)=600000) ran for 600025 milliseconds before timing out.\n"
        f"{mark}[PG ID 0 PG GUID 0(default_pg) Rank {rank}] Exception (either an error "
        f"or timeout) detected by watchdog at work: {number}, last enqueued NCCL work: "
        f"{number + 2}, last completed NCCL work: {number - 1}.\n"
    )


@pytest.mark.parametrize(
    ("texts", "culprits"),
    [
        ([watchdog(rank, 31) for rank in (0, 1, 3)], (2,)),
        ([watchdog(rank, 31 - (rank == 1)) for rank in range(4)], (1,)),
        (
            [watchdog(n, 31, "BROADCAST" if n == 3 else "ALLREDUCE") for n in range(4)],
            (3,),
        ),
        ([watchdog(n, 31, numel=64 + (n == 0)) for n in range(4)], (0,)),
        ([watchdog(n, 31) for n in range(4)], ()),
    ],
)
def test_watchdogs_of_those_who_waited(
    texts: list[str], culprits: tuple[int, ...], tmp_path: Path
) -> None:
    (tmp_path / "job.log").write_text("".join(texts))
    assert findings_in(report_on(tmp_path)) == [("DD609", culprits)]


def test_a_rank_that_died_explains_the_watchdogs(tmp_path: Path) -> None:
    text = "".join(f"[rank1]: {line}\n" for line in CULPRIT.splitlines())
    text += watchdog(0, 31) + watchdog(2, 31)
    (tmp_path / "job.log").write_text(text)
    assert findings_in(report_on(tmp_path)) == [("DD202", (1,))]


def test_ranks_that_nccl_failed_are_not_blamed(tmp_path: Path) -> None:
    error = VICTIM.replace(
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] "
        "Connection closed by peer [10.0.0.7]:4784",
        "torch.distributed.DistBackendError: NCCL error in: "
        "ProcessGroupNCCL.cpp:1970, unhandled system error",
    )
    text = "".join(f"[rank0]: {line}\n" for line in error.splitlines())
    (tmp_path / "job.log").write_text(text + "[rank1]: step 1\n")
    assert findings_in(report_on(tmp_path)) == []


def test_whom_a_peer_cut_off_did_not_die_by_itself(tmp_path: Path) -> None:
    """The watchdog aborts a process whose peer is gone; the peer was killed."""
    error = (
        "NCCL error: remote process exited or there was a network error, NCCL version "
        "2.21.5"
    )
    text = "".join(
        f"[rank{rank}]:[E1121 07:20:11.518566312 ProcessGroupNCCL.cpp:1895] [PG ID 0 "
        f"PG GUID 0(default_pg) Rank {rank}] Process group watchdog thread terminated "
        f"with exception: {error}\n"
        for rank in (0, 2)
    )
    ends = (0, 6, "SIGABRT"), (2, 6, "SIGABRT"), (1, 9, "SIGKILL")
    text += "=" * 60 + "\ntrain.py FAILED\n" + "-" * 60 + "\nFailures:\n"
    text += "".join(
        f"[{rank}]:\n  time      : 2025-03-06_08:34:28\n  host      : node\n"
        f"  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : {-number} (pid: {20 + rank})\n  error_file: <N/A>\n"
        f"  traceback : Signal {number} ({name}) received by PID {20 + rank}\n"
        for rank, number, name in ends
    )
    text += "=" * 60 + "\n"
    (tmp_path / "job.log").write_text(text)
    assert findings_in(report_on(tmp_path)) == [("DD202", (1,))]


def test_a_device_that_failed_under_its_watchdog_is_the_cause(tmp_path: Path) -> None:
    """Of two hosts, the prefix of a template has a local rank, torch its rank."""
    why = (
        "[PG ID 0 PG GUID 0(default_pg) Rank 2] Process group watchdog thread "
        "terminated with exception: CUDA error: uncorrectable ECC error encountered"
    )
    failed = [
        f"[rank2]:[E1114 22:55:02.000000471 ProcessGroupNCCL.cpp:1896] {why}",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        f"  what():  {why}",
    ]
    (tmp_path / "b.log").write_text("".join(f"[default0]:{one}\n" for one in failed))
    waited = [
        f"[default{rank}]:{line}"
        for rank in (0, 1)
        for line in watchdog(rank, 31).splitlines()
    ]
    (tmp_path / "a.log").write_text("\n".join(waited) + "\n")
    report = report_on(tmp_path)
    assert findings_in(report) == [("DD202", (2,))]
    assert report.raised == []


def test_torchs_own_mark_is_seen_behind_that_of_a_template(tmp_path: Path) -> None:
    """Under a template, what torch's hook prints of an end has two marks."""
    lines = [f"[rank{rank}]:step {n}" for n in range(4) for rank in range(3)]
    lines += [f"[rank1]:[rank1]: {line}" for line in CULPRIT.splitlines()]
    lines += ["[rank1]:wandb: Waiting for W&B process to finish... (failed 1)."]
    for rank in (0, 2):
        lines += [f"[rank{rank}]:{one}" for one in watchdog(rank, 31).splitlines()]
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n")
    assert findings_in(report_on(tmp_path)) == [("DD202", (1,))]


# --- what comes from nowhere ---


def test_a_file_of_errors_is_read(tmp_path: Path) -> None:
    for rank, text in ((0, VICTIM), (1, CULPRIT)):
        path = tmp_path / f"none_x/attempt_0/{rank}/error.json"
        path.parent.mkdir(parents=True)
        last = text.splitlines()[-1]
        extra = {"py_callstack": text, "timestamp": "1"}
        content = {"message": {"message": last, "extraInfo": extra}}
        path.write_text(json.dumps(content))
    assert findings_in(report_on(tmp_path)) == [("DD202", (1,))]


@given(st.binary(max_size=3000))
def test_no_bytes_make_it_fail(content: bytes) -> None:
    recognises("job.log", content)
    read([_InMemory(content)], Evidence())
    read([_InMemory(content, "x/attempt_0/1/error.json")], Evidence())


PIECES = [
    *(line + "\n" for line in (CULPRIT + VICTIM).splitlines()),
    *(watchdog(n, 7) for n in range(3)),
    "[rank1]: ",
    "Failures:\n",
    "  rank      : 999999 (local_rank: 3)\n",
    "  exitcode  : -9 (pid: 3)\n",
    "=" * 20 + "\n",
    "srun: error: n1: tasks 0-99999: Killed\n",
    "-- Process 999999 terminated with the following error:\n",
    "Ranks 1, 99 failed to pass monitoredBarrier in 7 ms\n",
]


@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_no_order_of_pieces_makes_it_fail(pieces: list[str]) -> None:
    evidence = Evidence()
    read([_InMemory("".join(pieces).encode())], evidence)
    assert evidence.world_size <= 1_000_000


# --- other launchers ---


def test_horovodrun_tells_of_a_process_that_was_killed(tmp_path: Path) -> None:
    error = (
        "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down."
    )
    lines = [*VICTIM.splitlines()[:-1], error]
    text = "".join(f"[0]<stderr>:{line}\n" for line in lines)
    (tmp_path / "job.log").write_text(text + "Process 1 exit with status code 137.\n")
    assert findings_in(report_on(tmp_path)) == [("DD202", (1,))]


def test_horovods_inspector_names_who_did_not_come(tmp_path: Path) -> None:
    text = "[2026-11-26 00:01:02: E stall_inspector.cc:107] One or more tensors were "
    text += "submitted to be reduced by subset of ranks\nMissing ranks:\n"
    text += "1!: [allreduce.loss]\n0: step\n"
    (tmp_path / "job.log").write_text("[rank0]: step 1\n" + text)
    assert findings_in(report_on(tmp_path)) == [("DD609", (1,))]


def test_a_warning_of_the_inspector_is_no_failure(tmp_path: Path) -> None:
    text = "[rank0]: step 1\nMissing ranks:\n1: [allreduce.loss]\n[rank1]: step 1\n"
    (tmp_path / "job.log").write_text(text)
    assert findings_in(report_on(tmp_path)) == []


def test_deepspeeds_launcher_tells_how_a_rank_ended(tmp_path: Path) -> None:
    text = "".join(f"[rank0]: {line}\n" for line in VICTIM.splitlines())
    text += "[2024-05-11 14:10:52,224] [ERROR] [launch.py:321:sigkill_handler] "
    text += (
        "['python', '-u', 'train.py', '--local_rank=1'] exits with return code = -9\n"
    )
    (tmp_path / "job.log").write_text(text)
    assert findings_in(report_on(tmp_path)) == [("DD202", (1,))]


def test_what_failed_before_a_new_start_is_told(tmp_path: Path) -> None:
    agent = "E1126 00:36:07.8 26902 torch/distributed/elastic/multiprocessing/api.py:1]"
    failed = f"{agent} failed (exitcode: 1) local_rank: 1 (pid: %d) of binary: python\n"
    first = "".join(f"[rank1]: {line}\n" for line in CULPRIT.splitlines())
    second = "".join(f"[rank0]: {line}\n" for line in VICTIM.splitlines())
    text = first + failed % 11 + second + failed % 12
    (tmp_path / "job.log").write_text(text)
    report = report_on(tmp_path)
    assert any("rank 1 had raised KeyError" in remark for remark in report.remarks)


# --- who is no cause ---

TIMED_OUT = VICTIM.replace(
    VICTIM.splitlines()[-1].partition(": ")[2],
    "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv "
    "operation to complete",
)


def marked(rank: int, text: str) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


def test_who_lost_its_connection_to_one_that_gave_up_had_come(tmp_path: Path) -> None:
    text = marked(0, TIMED_OUT) + marked(1, VICTIM) + marked(3, TIMED_OUT)
    (tmp_path / "job.log").write_text(text + "[rank2]: step 1\n")
    assert findings_in(report_on(tmp_path)) == [("DD609", (2,))]


def test_a_job_that_was_interrupted_accuses_nobody(tmp_path: Path) -> None:
    interrupted = CULPRIT.replace("KeyError: 'label'", "KeyboardInterrupt")
    text = marked(1, interrupted) + marked(0, VICTIM)
    (tmp_path / "job.log").write_text(text)
    report = report_on(tmp_path)
    assert (report.verdict, findings_in(report)) == ("unknown", [])


def test_exceptions_that_python_ignored_accuse_nobody(tmp_path: Path) -> None:
    for rank in range(2):
        text = f"done\nException ignored in: <function Pool.__del__ at 0x7f>\n{CULPRIT}"
        (tmp_path / f"rank{rank}.log").write_text(text)
    report = report_on(tmp_path)
    assert (findings_in(report), report.raised) == ([], [])


def test_ranks_that_were_all_killed_are_told_and_not_blamed(tmp_path: Path) -> None:
    text = "0: step\n1: step\nslurmstepd: error: Detected 2 oom_kill events in "
    text += "StepId=7.0. Some of the step tasks have been OOM Killed.\n"
    text += "srun: error: n1: tasks 0-1: Out Of Memory\n"
    (tmp_path / "slurm-7.out").write_text(text)
    report = report_on(tmp_path)
    assert findings_in(report) == []
    assert "ended by signal 9: ranks {0-1}" in report.remarks


@pytest.mark.parametrize(
    "who",
    ["[PG ID 0 PG GUID 0(default_pg) Rank {}]", "[PG 0 (default_pg) Rank {}]"],
)
def test_ranks_that_another_told_to_dump_had_come(who: str, tmp_path: Path) -> None:
    """The first whose time is up tells the others, which then do not time out."""
    signal = (
        " Received a dump signal due to a collective timeout from this local rank and "
        "we will try our best to dump the debug info. Last enqueued NCCL work: {}, "
        "last completed NCCL work: 30."
    )
    text = watchdog(0, 31)
    for rank, enqueued in ((1, 33), (2, 30), (3, 31)):
        mark = f"[rank{rank}]:[E1121 07:20:11.5 ProcessGroupNCCL.cpp:1785] "
        text += mark + who.format(rank) + signal.format(enqueued) + "\n"
    (tmp_path / "job.log").write_text(text)
    assert findings_in(report_on(tmp_path)) == [("DD609", (2,))]


def test_a_large_text_is_read_for_what_its_end_says(tmp_path: Path) -> None:
    story = "Once upon a time there was a rank.\n" * 600_000
    (tmp_path / "story.txt").write_text(story)
    (tmp_path / "console.txt").write_text(
        story + "\n".join(interleaved(MARKS["torch"]))
    )
    evidence = gather([str(tmp_path)])
    assert [Path(one.path).name for one in evidence.sources] == ["console.txt"]
    assert [Path(path).name for path, _ in evidence.left_out] == ["story.txt"]


def test_a_fault_that_several_share_blames_no_rank(tmp_path: Path) -> None:
    """The launcher ended the third before it could raise the same."""
    text = marked(0, CULPRIT) + marked(1, CULPRIT)
    text += "W1126 00:33:57.0 11 torch/distributed/elastic/multiprocessing/api.py:1] "
    text += "Sending process 77 closing signal SIGTERM\n[rank2]: step 1\n"
    (tmp_path / "job.log").write_text(text)
    report = report_on(tmp_path)
    assert findings_in(report) == []
    assert [(one.error, one.ranks) for one in report.raised] == [("KeyError", [0, 1])]


def test_what_a_rank_raised_because_it_was_ended_is_no_cause(tmp_path: Path) -> None:
    ended = "RuntimeError: DataLoader worker (pid(s) 77) exited unexpectedly"
    echo = CULPRIT.replace("KeyError: 'label'", ended)
    text = marked(1, CULPRIT) + marked(0, echo) + marked(2, VICTIM)
    (tmp_path / "job.log").write_text(text)
    assert findings_in(report_on(tmp_path)) == [("DD202", (1,))]


def test_lines_are_named_from_where_the_reader_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = marked(1, CULPRIT.replace("/home/user", str(tmp_path))) + marked(0, VICTIM)
    Path("job.log").write_text(text)
    (finding,) = report_on(Path("job.log")).findings
    assert finding.locations[0].file == "data.py"
