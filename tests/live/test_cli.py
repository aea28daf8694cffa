"""The command: what it says when a job goes wrong, and what it leaves behind."""

import json
import signal
import sys
import time
from pathlib import Path

import pytest
from command_box import DEADLINE_S, Box

HEAD = """
import os, signal, subprocess, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.ones(4)
dist.all_reduce(t)
print("READY", flush=True)
"""

NEVER_ENDS = """
while True:
    dist.all_reduce(t)
    time.sleep(0.05)
"""

NEVER_ENDS_TRAINING = """
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    dist.all_reduce(t)
"""


# --- jobs that cannot be examined ---


def test_a_script_that_never_starts_ranks_leaves_nothing_to_examine(box: Box) -> None:
    box.write("print('hello')\n")
    status, out, _ = box.run("check", "train.py", "--launcher", "python")
    assert status == 4
    assert out.startswith("hello\n")
    assert (
        "the script never called torch.distributed.init_process_group or hvd.init"
        in " ".join(out.split())
    )


def test_a_script_that_fails_before_it_starts_is_said_to(box: Box) -> None:
    box.write("import os\nopen('no-data.bin')\n")
    status, out, _ = box.run("check", "train.py")
    assert status == 4
    assert "FileNotFoundError" in out
    assert "before joining the others" in " ".join(out.split())


def test_a_port_that_the_job_itself_holds_is_said(box: Box, free_port: int) -> None:
    box.write(
        "import socket, sys, torch.distributed as dist\n"
        f"port = {free_port}\n"
        "dashboard = socket.create_server(('127.0.0.1', port))\n"
        "dist.init_process_group('gloo', init_method=f'tcp://127.0.0.1:{port}',\n"
        "    rank=0, world_size=1)\n"
    )
    status, out, _ = box.run("check", "--", sys.executable, "train.py")
    assert status == 1
    assert "DD612" in out
    assert "another process of the job has that port" in " ".join(out.split())


def test_two_checks_at_once_meet_each_their_own_and_commands_may_differ(
    box: Box, free_port: int
) -> None:
    """Both jobs name one port, of a machine that is not here, and rank 1 fails."""
    box.write(
        "import sys, time, torch, torch.distributed as dist\n"
        "rank = int(sys.argv[1])\n"
        f"at = 'tcp://10.255.255.1:{free_port}'\n"
        "dist.init_process_group('gloo', init_method=at, rank=rank, world_size=2)\n"
        "dist.all_reduce(torch.ones(4))\n"
        "time.sleep(5)\n"
        "print('done', sys.argv[2:])\n"
        "sys.exit(3 * rank)\n"
    )
    own = ["--", sys.executable, "train.py", "0", "a", ":::"]
    own += [sys.executable, "train.py", "1", "b"]
    options = ["--format", "json", "--output"]
    jobs = [box.start("check", *options, f"{n}.json", *own) for n in range(2)]
    for number, job in enumerate(jobs):
        out, _ = job.communicate(timeout=DEADLINE_S)
        report = json.loads((box.folder / f"{number}.json").read_text())
        assert "[command0]:done ['a']\n" in out
        assert "[command1]:done ['b']\n" in out
        assert report["run"]["exit_codes"] == {"0": 0, "1": 3}
        assert (report["run"]["exit_code"], report["verdict"]) == (3, "unknown")
        assert report["findings"] == []
        whats = [gap["what"] for gap in report["not_examined"]]
        assert f"the address 10.255.255.1:{free_port}" in whats


# --- jobs that end badly ---


def test_a_rank_killed_from_outside_is_named(box: Box) -> None:
    box.write(
        HEAD + "if rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "dist.all_reduce(t)\n"
    )
    options = ["--format", "json", "--output", "r.json"]
    status, out, err = box.run("check", "train.py", *options)
    report = json.loads((box.folder / "r.json").read_text())
    assert status == 1, out + err
    (finding,) = report["findings"]
    assert (finding["code"], finding["ranks"]) == ("DD202", [1])
    assert "signal 9" in finding["summary"]
    assert report["run"]["exit_codes"]["1"] == 137


def test_the_last_words_of_a_rank_are_passed_on(box: Box) -> None:
    box.write(
        HEAD + "if rank == 1:\n    raise LookupError('sample 7')\ndist.barrier()\n"
    )
    status, out, err = box.run("check", "train.py")
    assert status == 1
    assert "LookupError: sample 7" in err
    assert "DD202" in out


def test_a_job_that_ignores_sigterm_is_ended(box: Box) -> None:
    box.write(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        + HEAD
        + NEVER_ENDS_TRAINING
    )
    status, out, _ = box.run("check", "train.py", "--steps", "3")
    assert status == 0
    assert "ended by --steps" in " ".join(out.split())
    assert not box.records()


def test_daemons_of_the_job_are_ended(box: Box) -> None:
    box.write(
        HEAD + "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        os.execvp('sleep', ['sleep', '601'])\n"
        "    os._exit(0)\n"
        "dist.barrier()\ndist.destroy_process_group()\n"
    )
    begun = time.monotonic()
    status, out, err = box.run("check", "train.py")
    assert status == 0, out + err
    assert time.monotonic() - begun < 200


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name
)
def test_an_interruption_ends_everything(box: Box, number: signal.Signals) -> None:
    box.write(HEAD + NEVER_ENDS)
    status, out, err = box.interrupted(number, "check", "train.py")
    assert status == 128 + number, out + err
    assert "the run was interrupted" in " ".join(out.split())
    assert not box.marked()


def test_nothing_of_the_job_outlives_a_killed_doctor(box: Box) -> None:
    box.write(HEAD + NEVER_ENDS)
    process = box.start("check", "train.py")
    assert process.stdout is not None
    for line in process.stdout:
        if "READY" in line:
            break
    process.kill()
    process.communicate()
    end = time.monotonic() + 90
    while box.marked() and time.monotonic() < end:
        time.sleep(0.2)
    assert not box.marked()


# --- a run as it should be ---


def test_output_is_passed_on_with_its_rank_and_a_record_is_judged_again(
    box: Box,
) -> None:
    box.write(
        HEAD
        + "print('to stderr', sys.argv[1:], file=sys.stderr)\n"
        + NEVER_ENDS_TRAINING
    )
    status, out, err = box.run(
        *("check", "train.py", "--steps", "3", "--record", "kept"),
        *("--", "--lr", "0.1"),
    )
    assert status == 0, out + err
    assert "[rank0]:READY\n" in out
    assert "[rank1]:READY\n" in out
    assert "[rank0]:to stderr ['--lr', '0.1']\n" in err
    assert "ended by --steps" in " ".join(out.split())
    again, judged, _ = box.run("examine", "kept")
    assert again == 0
    assert judged.splitlines()[0] in out
    again, judged, _ = box.run("examine", "kept", "--format", "sarif")
    (invocation,) = json.loads(judged)["runs"][0]["invocations"]
    assert (again, invocation["properties"]["verdict"]) == (0, "well")
    assert set(box.temporary()) <= {"torchinductor_root"}  # torch's own cache


@pytest.mark.parametrize(
    ("form", "key", "value"),
    [("json", "schema", "distdoctor.report/1"), ("sarif", "version", "2.1.0")],
)
def test_a_report_for_machines_has_stdout_for_itself(
    box: Box, form: str, key: str, value: str
) -> None:
    box.write(HEAD + "dist.destroy_process_group()\n")
    status, out, err = box.run("check", "train.py", "--format", form)
    assert status == 0
    assert json.loads(out)[key] == value
    assert "[rank0]:READY" in err


def test_a_reader_that_goes_away_ends_the_job_and_nobody_is_sick(box: Box) -> None:
    box.write(HEAD + "while True:\n    dist.all_reduce(t)\n    print('x' * 5000)\n")
    process = box.start("check", "train.py", "--budget", "200")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    output = process.stderr.read()
    assert process.wait(DEADLINE_S) == 128 + signal.SIGPIPE, output
    process.stderr.close()
    assert "Traceback" not in output
    assert box.marked() == []


def test_a_full_disk_under_the_output_makes_nobody_sick(box: Box) -> None:
    box.write(
        HEAD + "for _ in range(9):\n    dist.all_reduce(t)\n    print('x' * 9999)"
    )
    with Path("/dev/full").open("w") as full:
        process = box.start("check", "train.py", stdout=full)
        assert process.stderr is not None
        output = process.stderr.read()
        assert process.wait(DEADLINE_S) == 2, output
        process.stderr.close()
    assert "standard output: No space left on device; verdict: well" in output
    assert box.marked() == []
