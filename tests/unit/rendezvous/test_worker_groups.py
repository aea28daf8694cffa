"""Groups of Ray's workers: one at a time is watched."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from distdoctor.journal.folder import read_groups_apart
from distdoctor.probes.recorder import RECORDER, Recorder
from distdoctor.probes.rendezvous import worker_groups

FIRST, SECOND = "10.0.0.1:1111", "10.0.0.1:2222"

JOINS = """
import sys
from distdoctor.probes.rendezvous.worker_groups import is_apart
print(is_apart(sys.argv[1]), flush=True)
input()
"""


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Callable[[str], tuple[bool, Callable[[], None]]]]:
    """Has a worker join a group: whether it is left alone, and what ends it."""
    tmp_path.chmod(0o700)
    variables = {"DISTDOCTOR_RUN": str(tmp_path), "RAY_RAYLET_PID": "7"}
    running: list[subprocess.Popen[bytes]] = []

    def joined(address: str) -> tuple[bool, Callable[[], None]]:
        process = subprocess.Popen(
            [sys.executable, "-c", JOINS, address],
            env=os.environ | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        running.append(process)
        assert process.stdout is not None
        answer = process.stdout.readline().strip()

        def end() -> None:
            process.kill()
            process.wait()

        return {b"True": True, b"False": False}[answer], end

    yield joined
    for process in running:
        process.kill()
        process.communicate()


def test_a_group_beside_another_is_left_alone_to_its_end(
    join: Callable[[str], tuple[bool, Callable[[], None]]], tmp_path: Path
) -> None:
    watched = [join(FIRST), join(FIRST)]
    assert [apart for apart, _ in watched] == [False, False]
    assert join(SECOND)[0]
    for _, end in watched:
        end()
    assert join(SECOND)[0]  # half of it would look as if a rank were missing
    assert read_groups_apart(tmp_path) == 1


def test_one_group_after_the_other_is_watched(
    join: Callable[[str], tuple[bool, Callable[[], None]]], tmp_path: Path
) -> None:
    apart, end = join(FIRST)
    assert not apart
    end()
    assert not join(SECOND)[0]
    assert read_groups_apart(tmp_path) == 0


def test_ranks_that_ray_did_not_start_are_no_such_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_RAYLET_PID", raising=False)
    monkeypatch.setattr(RECORDER, "folder", tmp_path)
    assert not worker_groups.is_apart(FIRST)
    assert not list(tmp_path.iterdir())


def test_who_is_left_alone_has_no_journal(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.folder, recorder.apart = tmp_path, True
    assert recorder.open(0, 2) is None
    recorder.failure(ValueError(), None, fatal=True)
    assert not list(tmp_path.iterdir())
