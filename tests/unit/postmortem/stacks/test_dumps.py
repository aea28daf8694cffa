"""What tools write of stacks, read."""

import faulthandler
import json
import tempfile
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stack_dumps import faulthandler_text, py_spy_json, py_spy_text

from distdoctor.postmortem.stacks import (
    debugger_dumps,
    dump_files,
    faulthandler_dumps,
    py_spy_dumps,
)
from distdoctor.postmortem.stacks.thread_stacks import StackLine, is_library, users

GDB = """\
Thread 2 (Thread 0x7f22ba0006c0 (LWP 412) "pt_gloo"):
#0  0x00007f23c4c3f117 in epoll_wait () from /lib/x86_64-linux-gnu/libc.so.6
Thread 1 (Thread 0x7f23c4b8f740 (LWP 400) "python"):
#0  0x00007f23c4bf4117 in ?? () from /lib/x86_64-linux-gnu/libc.so.6
#1  0x00007f23c4bf6a41 in pthread_cond_wait () from /lib/x86_64-linux-gnu/libc.so.6
#2  0x00007f22c4bf6a41 in c10d::Work::wait (this=0x1, timeout=...) at Work.cpp:12
Traceback (most recent call first):
  File "/opt/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", \
line 3252, in all_reduce
  File "/home/me/job/train.py", line 31, in train_step
  File "/home/me/job/train.py", line 70, in <module>
"""

PYSTACK = """\
Traceback for thread 412 (pt_gloo) [] (most recent call last):
    (C) File "???", line 0, in epoll_wait (/lib/libc.so.6)

Traceback for thread 400 (python) [Has the GIL] (most recent call last):
    (Python) File "/home/me/job/train.py", line 70, in <module>
        main()
    (Python) File "/home/me/job/train.py", line 31, in train_step
"""


def test_a_dump_of_py_spy_is_read_as_text_and_as_json() -> None:
    (text,) = py_spy_dumps.of_text(py_spy_text(3, stuck=True).splitlines())
    (data,) = py_spy_dumps.of_json(py_spy_json(3, stuck=True))
    assert text.pid == data.pid == 4_003
    assert text.command == "python -u train.py --epochs 3"
    assert len(text.threads) == 3
    assert text.main is not None
    assert data.main is not None
    inner = StackLine("data/shards.py", 12, "read_shard")
    assert text.main.lines[0] == inner
    assert data.main.lines[0].file.endswith(inner.file)
    assert data.main.variable(2, "step") == "17"


def test_local_variables_of_a_text_belong_to_their_line() -> None:
    text = (
        'Thread 7 (active+gil): "MainThread"\n'
        "    recv (torch/distributed/distributed_c10d.py:2799)\n"
        "        Arguments:\n"
        "            src: 1\n"
        "        Locals:\n"
        "            work: <Work at 0x7f>\n"
        "    step (train.py:3)\n"
    )
    (found,) = py_spy_dumps.of_text(text.splitlines())
    (thread,) = found.threads
    assert thread.holds_gil
    assert thread.variable(0, "src") == "1"
    assert thread.variable(1, "src") == ""


def test_faulthandler_puts_the_main_thread_last() -> None:
    (found,) = faulthandler_dumps.of_text(faulthandler_text(stuck=True).splitlines())
    assert found.main is not None
    assert found.main.lines[0].function == "read_shard"
    assert len(found.others) == 1


def test_faulthandler_itself_is_understood() -> None:
    done = threading.Event()
    helper = threading.Thread(target=done.wait)
    helper.start()
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        done.set()
        helper.join()
        file.seek(0)
        text = file.read().decode()
    (found,) = faulthandler_dumps.of_text(text.splitlines())
    assert found.main is not None
    assert any("is_understood" in line.function for line in found.main.lines)


def test_a_second_dump_of_one_process_is_its_own() -> None:
    text = faulthandler_text() + faulthandler_text(stuck=True)
    first, second = faulthandler_dumps.of_text(text.splitlines())
    assert first.main != second.main


@pytest.mark.parametrize("text", [GDB, PYSTACK], ids=["gdb", "pystack"])
def test_debuggers_stacks_are_read(text: str) -> None:
    assert debugger_dumps.is_debugger_text(text)
    (found,) = debugger_dumps.of_text(text.splitlines())
    assert found.main is not None
    assert found.main.thread_id == 400
    functions = [line.function for _, line in users(found.main.lines)]
    assert functions == ["train_step", "<module>"]


@pytest.mark.parametrize(
    ("file", "library"),
    [
        ("/opt/env/lib/python3.11/site-packages/torch/nn/modules/module.py", True),
        ("/usr/lib/python3.11/threading.py", True),
        ("torch/distributed/distributed_c10d.py", True),
        ("threading.py", True),
        ("<frozen runpy>", True),
        ("/lib/x86_64-linux-gnu/libc.so.6", True),
        ("train.py", False),
        ("data/shards.py", False),
        ("/home/me/job/train.py", False),
    ],
)
def test_the_users_files_are_told_from_libraries(file: str, library: bool) -> None:
    assert is_library(file) == library


@pytest.mark.parametrize(
    "text",
    [
        py_spy_text(0),
        py_spy_json(0),
        faulthandler_text(),
        GDB,
        PYSTACK,
        "[rank3]:" + py_spy_text(3).replace("\n", "\n[rank3]:"),
        json.dumps(
            [{"rank": 0, "pid": 3, "seconds": 1.0, "taken_by": "py-spy", "frames": []}]
        ),
    ],
    ids=["py-spy", "json", "faulthandler", "gdb", "pystack", "prefixed", "ours"],
)
def test_a_file_of_stacks_is_recognised(text: str) -> None:
    assert dump_files.recognises("x", text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "epoch 1 loss 0.3\n" * 30 + py_spy_text(0),
        "[1, 2]",
        '[{"rank": 1}]',
        "Thread started\nProcess group ready\n",
    ],
)
def test_another_file_is_not(text: str) -> None:
    assert not dump_files.recognises("x", text.encode())


@given(st.binary(max_size=400), st.integers(0, 3))
def test_nothing_in_a_dump_makes_reading_fail(junk: bytes, kind: int) -> None:
    whole = (py_spy_text(0), py_spy_json(0), faulthandler_text(), GDB)[kind].encode()
    data = whole[: len(junk)] + junk + whole[len(junk) :]
    dump_files.recognises("x", data)
    text = data.decode(errors="replace")
    py_spy_dumps.of_json(data)
    for parse in (py_spy_dumps, faulthandler_dumps, debugger_dumps):
        for found in parse.of_text(text.splitlines()):
            assert found.threads


@given(st.text(alphabet="# 0x(){}atinfrom:/-_\"'", max_size=3_000))
def test_no_line_takes_long(line: str) -> None:
    for parse in (py_spy_dumps, faulthandler_dumps, debugger_dumps):
        parse.of_text([line, "Thread 1 (idle): " + line, "#0 " + line])
