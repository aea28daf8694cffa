"""Core files: recognised by content, whose they are, and their stacks."""

import gzip
import io
import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdoctor.postmortem.leavings import Leaving
from distdoctor.postmortem.recognising import gather
from distdoctor.postmortem.stacks import core_files
from distdoctor.postmortem.stacks.core_files import environment_in, is_core, read_core

STACK_AT, NAME = 0x7FFF0000, b"./python\0"


def made_core(words: list[bytes]) -> bytes:
    """A core without threads: notes with an auxiliary vector, and a stack."""
    stack = b"\0".join(words) + b"\0" + NAME
    name_at = STACK_AT + len(stack) - len(NAME)
    pairs = struct.pack("<4Q", 31, name_at, 0, 0)
    note = struct.pack("<III", 5, len(pairs), 6) + b"CORE\0\0\0\0" + pairs
    marks = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", marks, 4, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0
    )
    after = 64 + 2 * 56
    segments = struct.pack("<IIQQQQQQ", 4, 0, after, 0, 0, len(note), 0, 1)
    segments += struct.pack(
        "<IIQQQQQQ", 1, 6, after + len(note), STACK_AT, 0, len(stack), len(stack), 1
    )
    return header + segments + note + stack


CORE = made_core([b"python", b"train.py", b"", b"RANK=3", b"WORLD_SIZE=8"])


def test_the_environment_stands_before_the_name() -> None:
    assert is_core(CORE)
    assert environment_in(io.BytesIO(CORE)) == {"RANK": "3", "WORLD_SIZE": "8"}


@pytest.mark.parametrize(
    "head", [b"", b"\x7fELF", CORE[:16] + b"\x02\0" + CORE[18:], b"RANK=3" * 9]
)
def test_what_is_no_core_is_not_taken_for_one(head: bytes) -> None:
    assert not is_core(head)


@given(st.data())
def test_damaged_cores_are_told_as_such(data: st.DataObject) -> None:
    changed = bytearray(CORE)
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(changed)))
    try:
        found = environment_in(io.BytesIO(bytes(changed[:end])))
    except (ValueError, struct.error, OverflowError):
        return
    assert all(isinstance(value, str) for value in found.values())


def test_what_to_install_is_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_files, "_pystack", lambda: None)
    (tmp_path / "core.1").write_bytes(CORE)
    evidence = gather([str(tmp_path)])
    ((_, why),) = evidence.unreadable
    assert "pip install 'distdoctor[cores]'" in why
    assert not evidence.left_out


needs_pystack = pytest.mark.skipif(
    core_files._pystack() is None, reason="needs pystack"
)


@needs_pystack
def test_cores_that_cannot_be_read_are_listed(tmp_path: Path) -> None:
    (tmp_path / "core.1").write_bytes(CORE)
    (tmp_path / "core.2.gz").write_bytes(gzip.compress(CORE))
    evidence = gather([str(tmp_path)])
    assert len(evidence.unreadable) == 2
    assert "unpack it" in evidence.unreadable[1][1]


JOB = """
import sys, time

def load_shard(path):
    open(path, "w").close()
    while True:
        time.sleep(1)

load_shard(sys.argv[1])
"""


@needs_pystack
@pytest.mark.skipif(shutil.which("gcore") is None, reason="needs gdb")
def test_a_real_core_tells_rank_and_stack(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    ready = tmp_path / "ready"
    with subprocess.Popen(
        [sys.executable, "job.py", str(ready)],
        cwd=tmp_path,
        env={**os.environ, "RANK": "1", "WORLD_SIZE": "4"},
    ) as process:
        try:
            end = time.monotonic() + 60
            while not ready.exists():
                assert time.monotonic() < end
                time.sleep(0.05)
            command = ["gcore", "-o", str(tmp_path / "core"), str(process.pid)]
            done = subprocess.run(command, capture_output=True, check=False)
        finally:
            process.kill()
    core = tmp_path / f"core.{process.pid}"
    if done.returncode or not core.exists():
        pytest.skip("this machine lets nobody write a core")
    found = read_core(Leaving(str(core), core.stat().st_size))
    assert found.identity is not None
    assert (found.identity.rank, found.identity.world_size) == (1, 4)
    assert found.signal == ""
    assert found.stacks.main is not None
    assert "load_shard" in [line.function for line in found.stacks.main.lines]
    evidence = gather([str(core)])
    assert evidence.world_size == 4
    assert evidence.stacks[1][0].place.function == "load_shard"
