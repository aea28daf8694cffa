"""A job may close all descriptors, and open its own files by the same numbers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distdoctor.journal.environment import STACK_SIGNAL_FROM_LAST
from distdoctor.journal.notes import NotesWriter, notes_of
from distdoctor.journal.own_file import OwnFile
from distdoctor.launch.stacks import StackTaker
from distdoctor.model.events import Observation
from distdoctor.model.observations.data import Read
from distdoctor.probes.data.agreement import Agreement, Begun


def takes_its_number(own: OwnFile, path: Path) -> int:
    """Open another file by the number of ours."""
    number = own.number()
    os.close(number)
    theirs = os.open(path, os.O_RDWR | os.O_CREAT)
    if theirs != number:
        os.dup2(theirs, number)
        os.close(theirs)
    return number


@pytest.fixture
def users(tmp_path: Path) -> Path:
    return tmp_path / "users.csv"


def test_notes_go_on_in_their_own_file(tmp_path: Path, users: Path) -> None:
    writer = NotesWriter(tmp_path / "0.journal")
    notes: list[Observation] = [Read(number=1), Read(number=2), Read(number=3)]
    places = [writer.add(notes[0])]
    number = takes_its_number(writer._file, users)
    places += [writer.add(note) for note in notes[1:]]
    writer.close()
    assert users.read_bytes() == b""
    os.write(number, b"still open")
    os.close(number)
    assert users.read_bytes() == b"still open"
    data = notes_of(tmp_path / "0.journal").read_bytes()
    assert [data[begin : begin + size].count(b"{") for begin, size in places]
    assert sum(size for _, size in places) == len(data)


def test_closing_leaves_the_number_of_another_file(tmp_path: Path, users: Path) -> None:
    own = OwnFile(tmp_path / "ours", os.O_RDWR | os.O_CREAT)
    number = takes_its_number(own, users)
    own.close()
    os.write(number, b"x")
    os.close(number)
    assert users.read_bytes() == b"x"


@pytest.mark.parametrize("now", ["gone", "another", "a link", "a pipe"])
def test_a_file_that_is_not_ours_any_more_is_not_taken(
    tmp_path: Path, users: Path, now: str
) -> None:
    path = tmp_path / "ours"
    own = OwnFile(path, os.O_RDWR | os.O_CREAT)
    number = takes_its_number(own, users)
    os.link(path, tmp_path / "kept")  # else another file may get its inode
    path.unlink()
    if now == "another":
        path.write_bytes(b"")
    elif now == "a link":
        path.symlink_to(users)
    elif now == "a pipe":
        os.mkfifo(path)
    with pytest.raises(OSError, match=r"No such|another file|symbolic|regular"):
        own.number()
    os.close(number)


def test_ranks_agree_by_the_same_file(tmp_path: Path, users: Path) -> None:
    here, there = (Agreement(tmp_path / "loaders.log") for _ in range(2))
    here.begin("a", 0, Begun(9, 0))
    number = takes_its_number(here._file, users)
    there.begin("a", 1, Begun(7, 0))
    assert here.settle("a", 3, lambda begun: min(b.length or 0 for b in begun.values()))
    assert there.settle("a", 3, lambda _: 99) == 7
    here.close()
    there.close()
    os.close(number)
    assert users.read_bytes() == b""


OFFERS = """
import faulthandler, os, signal, sys, time
file = os.open(f"{sys.argv[1]}/{os.getpid()}.txt", os.O_WRONLY | os.O_CREAT)
faulthandler.register(int(sys.argv[3]), file)
if sys.argv[4] == "daemon":
    os.closerange(3, 64)
    assert os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT) == file
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["daemon", "plain"])
def test_no_stacks_are_asked_for_where_they_would_go_into_another_file(
    tmp_path: Path, users: Path, kind: str
) -> None:
    number = signal.SIGRTMAX - STACK_SIGNAL_FROM_LAST
    (tmp_path / "stacks").mkdir()
    arguments = [str(tmp_path / "stacks"), str(users), str(number), kind]
    process = subprocess.Popen(
        [sys.executable, "-c", OFFERS, *arguments], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        stacks = StackTaker(tmp_path)._signal_stacks(process.pid)
        time.sleep(0.1)
    finally:
        process.kill()
        process.communicate()
    assert bool(stacks) == (kind == "plain")
    assert not users.exists() or users.read_bytes() == b""
