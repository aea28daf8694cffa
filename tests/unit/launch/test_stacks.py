"""Stacks: what a rank is doing, told by py-spy or by the rank itself."""

import json
import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from distdoctor.journal.environment import STACK_SIGNAL_FROM_LAST
from distdoctor.journal.folder import StackFrame
from distdoctor.launch.stacks import (
    StackTaker,
    _is_standing,
    _stacks_of,
    _training,
    _users,
    catches,
)

STDLIB = sysconfig.get_paths()["stdlib"]

# --- what a rank writes itself --------------------------------------------------------

DUMP = """\
Thread 0x00007f1b2c3d4700 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f1b35a5c740 (most recent call first):
  File "/job/my model.py", line 12 in forward
  File "/job/train.py", line 40 in main
  File "/job/train.py", line 52 in <module>
"""

MAIN = [
    StackFrame("/job/my model.py", 12, "forward"),
    StackFrame("/job/train.py", 40, "main"),
    StackFrame("/job/train.py", 52, "<module>"),
]


def _last_thread(dump: str) -> list[StackFrame] | None:
    stacks = _stacks_of(dump)
    return stacks[0] if stacks else None


def test_all_threads_are_read_the_main_one_first() -> None:
    stacks = _stacks_of(DUMP)
    assert [stack[-1].function for stack in stacks] == ["<module>", "_bootstrap"]


LOCK = StackFrame("/job/save.py", 4, "save")
PYTHONS = StackFrame(f"{STDLIB}/threading.py", 450, "acquire")
QUEUES = StackFrame(f"{STDLIB}/queue.py", 171, "get")


def test_a_thread_stands_in_its_own_line_or_takes_a_lock() -> None:
    assert _is_standing([LOCK])
    assert _is_standing([PYTHONS, LOCK])
    assert not _is_standing([QUEUES, LOCK])
    assert not _is_standing([PYTHONS])
    assert not _is_standing([])


def test_a_main_thread_without_the_users_lines_is_no_rank() -> None:
    """A worker of Ray trains in another thread, and its first one serves Ray."""
    served = [StackFrame("/v/site-packages/ray/_private/worker.py", 9, "main_loop")]
    assert _training([served, [QUEUES], [QUEUES, *MAIN]]) == MAIN
    assert _training([MAIN, [LOCK]]) == MAIN
    assert _training([served, MAIN, [LOCK]]) == []  # which of them, nobody knows


def test_the_main_thread_stands_last() -> None:
    assert _last_thread(DUMP) == MAIN


def test_one_thread_is_the_main_thread() -> None:
    assert _last_thread(DUMP[DUMP.index("Current") :]) == MAIN


def test_of_several_dumps_the_last_counts() -> None:
    assert _last_thread(DUMP.replace("train", "old") + "\n" + DUMP) == MAIN


def test_a_deep_stack_that_was_cut_off_keeps_its_inner_frames() -> None:
    """Python writes a hundred frames and then three dots."""
    assert _last_thread(DUMP + "  ...\n") == MAIN


def test_a_frame_without_a_line_is_passed_over() -> None:
    unknown = '  File "/job/train.py", line ??? in generated\n'
    assert _last_thread(DUMP + unknown) == MAIN


def test_a_thread_that_collects_garbage_is_read_too() -> None:
    head, main = DUMP.rsplit("first):\n", 1)
    assert _last_thread(f"{head}first):\n  Garbage-collecting\n{main}") == MAIN


@pytest.mark.parametrize("dump", ["", "\n\n", "Thread 0x1 (most recent call first):\n"])
def test_no_frames_are_no_stack(dump: str) -> None:
    assert _last_thread(dump) is None


# --- what py-spy writes ---------------------------------------------------------------


def frame(name: str, line: int, /, **variables: str) -> dict[str, object]:
    return {
        "name": name,
        "filename": "/job/train.py",
        "short_filename": "train.py",
        "module": None,
        "line": line,
        "locals": [
            {"name": variable, "addr": 1, "arg": False, "repr": text}
            for variable, text in variables.items()
        ],
        "is_entry": True,
    }


def thread(number: int | None, *frames: dict[str, object]) -> dict[str, object]:
    return {
        "pid": 7,
        "thread_id": 139755,
        "thread_name": "MainThread",
        "os_thread_id": number,
        "active": True,
        "owns_gil": False,
        "frames": list(frames),
    }


def answering(output: str, status: int = 0) -> subprocess.Popen[bytes]:
    """A process that answers as py-spy might."""
    error = "Error: No such process" if status else ""
    answer = (
        f"import sys; sys.stdout.write({output!r}); sys.stderr.write({error!r}); "
        f"sys.exit({status})"
    )
    return subprocess.Popen(
        [sys.executable, "-S", "-c", answer],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def read(folder: Path, output: str, status: int = 0) -> list[StackFrame] | None:
    """What is read if py-spy, asked about process 7, answers this."""
    look = StackTaker(folder)._look_by_py_spy(7, answering(output, status))
    return None if look is None else look.threads[0]


@pytest.mark.parametrize("holds", [True, False])
def test_it_is_told_whether_the_main_thread_holds_the_interpreters_lock(
    tmp_path: Path, holds: bool
) -> None:
    threads = [thread(7, frame("main", 40)), thread(9, frame("load", 3))]
    threads[0]["owns_gil"], threads[1]["owns_gil"] = holds, not holds
    process = answering(json.dumps(threads))
    look = StackTaker(tmp_path)._look_by_py_spy(7, process)
    assert look is not None
    assert look.holds_gil == holds


def test_the_frames_of_the_main_thread_are_read(tmp_path: Path) -> None:
    threads = [
        thread(9, frame("_bootstrap", 3)),
        thread(7, frame("step", 12, i="4", loss="0.5", name="'3'"), frame("main", 40)),
    ]
    assert read(tmp_path, json.dumps(threads)) == [
        StackFrame("/job/train.py", 12, "step", {"i": 4}),
        StackFrame("/job/train.py", 40, "main"),
    ]


def test_a_thread_without_a_number_may_be_the_main_thread(tmp_path: Path) -> None:
    threads = [thread(None, frame("main", 40))]
    assert read(tmp_path, json.dumps(threads)) == [
        StackFrame("/job/train.py", 40, "main")
    ]


@pytest.mark.parametrize(
    "variable",
    [
        {"name": "i"},
        {"name": "i", "repr": None},
        {"name": "i", "repr": "<Tensor>"},
        {"repr": "3"},
    ],
)
def test_a_variable_that_cannot_be_read_is_left_out(
    tmp_path: Path, variable: dict[str, object]
) -> None:
    threads = [thread(7, frame("main", 40) | {"locals": [variable]})]
    frames = read(tmp_path, json.dumps(threads))
    assert frames is not None
    assert frames[0].integers == {}


def test_frames_may_have_no_variables(tmp_path: Path) -> None:
    threads = [thread(7, frame("main", 40) | {"locals": None})]
    assert read(tmp_path, json.dumps(threads)) == [
        StackFrame("/job/train.py", 40, "main")
    ]


@pytest.mark.parametrize(
    "output",
    [
        "",
        "[",
        "{}",
        "[]",
        json.dumps([thread(9)]),
        json.dumps([thread(7) | {"frames": None}]),
        json.dumps([thread(7, {"name": "main"})]),
        "null",
        '{"error": "no"}',
        "[3]",
    ],
)
def test_an_answer_that_makes_no_sense_is_no_stack(tmp_path: Path, output: str) -> None:
    assert read(tmp_path, output) is None


def test_a_failure_of_py_spy_is_no_stack(tmp_path: Path) -> None:
    assert read(tmp_path, json.dumps([thread(7, frame("main", 1))]), status=1) is None


@pytest.mark.parametrize(
    "file",
    [
        "/job/train.py",
        "train.py",
        "/home/user/distdoctor/train.py",
    ],
)
def test_frames_of_the_user_are_kept(file: str) -> None:
    one = StackFrame(file, 1, "f")
    assert list(_users([one])) == [one]


@pytest.mark.parametrize(
    "file",
    [
        f"{STDLIB}/threading.py",
        "/other/env/lib/python3.12/site-packages/torch/autograd/graph.py",
        "/usr/lib/python3/dist-packages/yaml/__init__.py",
        "<string>",
        "<frozen importlib._bootstrap>",
    ],
)
def test_frames_of_others_are_left_out(file: str) -> None:
    assert list(_users([StackFrame(file, 1, "f")])) == []


def test_a_process_that_offers_nothing_is_left_alone(tmp_path: Path) -> None:
    """No signal is sent to it: it would end."""
    taker = StackTaker(tmp_path)
    taker._py_spy = None
    assert taker.take([(0, os.getpid())], 1.0) == []


# --- who can be asked -----------------------------------------------------------------

HANDLES = """
import os, signal, sys
signal.signal(signal.SIGRTMAX - 2, lambda *_: None)
print(flush=True); sys.stdin.readline()
os.execvp("sh", ["sh", "-c", "echo; read line"])
"""


def test_a_process_that_became_another_program_is_not_asked() -> None:
    number = signal.SIGRTMAX - STACK_SIGNAL_FROM_LAST
    with subprocess.Popen(
        [sys.executable, "-S", "-c", HANDLES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        assert catches(process.pid, number)
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        assert not catches(process.pid, number)
        process.kill()


def test_a_process_that_is_gone_is_not_asked() -> None:
    assert not catches(2**22 + 1, signal.SIGRTMAX - STACK_SIGNAL_FROM_LAST)


@pytest.mark.parametrize("runpy", ["/usr/lib/python3.11/runpy.py", "<frozen runpy>"])
def test_who_runs_a_script_is_no_part_of_it(runpy: str) -> None:
    frames = [
        StackFrame("/home/me/train.py", 9, "step"),
        StackFrame("/home/me/train.py", 20, "<module>"),
        StackFrame(runpy, 88, "run_path"),
        StackFrame("/home/me/launcher.py", 5, "main"),
    ]
    assert list(_users(frames)) == frames[:2]
