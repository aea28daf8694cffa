"""The proof of a standstill: what it may be founded on while ranks come and go."""

import json
import os
import time
from pathlib import Path

import pytest

from distdoctor.journal.folder import Manifest
from distdoctor.journal.format import RecordKind, offset_of
from distdoctor.journal.layout import LOSSES_FILE
from distdoctor.journal.packed_texts import group_text
from distdoctor.journal.writer import JournalWriter
from distdoctor.launch.watchdog import Watchdog
from distdoctor.model.events import SETUP
from distdoctor.model.operations import CODE_OF, NO_REDUCE_OP
from distdoctor.model.stop_reasons import Stop

ME = os.getpid()
ANOTHER = os.getppid()  # a process that lives, too
NOBODY = 2**22 + 1  # above the largest number of a process


def begins(folder: Path, rank: int, pid: int) -> JournalWriter:
    """A rank of two that has a journal, and nothing in it."""
    writer = JournalWriter(folder, rank, 2, 64 * 1024)
    with writer.path.open("r+b") as file:
        file.seek(offset_of("pid"))
        file.write(pid.to_bytes(4, "little"))
    return writer


def joins(folder: Path, rank: int, pid: int) -> None:
    """A rank that waits for the other to join the job."""
    writer = begins(folder, rank, pid)
    group = writer.intern(group_text(SETUP, "init", 0, (0, 1)))
    code = CODE_OF["init_process_group"]
    site = writer.intern("/home/user/t.py\n3\n<module>")
    writer.put(
        RecordKind.ENTER,
        pid,
        1,
        1,
        group,
        0,
        code,
        NO_REDUCE_OP,
        0,
        site,
        writer.intern(""),
    )


@pytest.fixture
def watchdog(tmp_path: Path) -> Watchdog:
    """Over a job whose rank 0 waits for rank 1 to join."""
    manifest = Manifest(distdoctor="0", launch=[], directory=str(tmp_path), ranks=2)
    watchdog = Watchdog(tmp_path, manifest)
    joins(tmp_path, 0, ME)
    watchdog.census()
    while watchdog.progress.looks_without_news < 2:
        watchdog.update()
    assert watchdog.progress.is_suspicious()
    return watchdog


def proof(watchdog: Watchdog) -> str:
    """What is proved within as many looks as a standstill of this size needs."""
    for _ in range(100):
        watchdog.update()
        if proved := watchdog.proved():
            return proved
        time.sleep(0.004)
    return ""


def test_a_rank_that_ended_is_waited_for_in_vain(
    watchdog: Watchdog, tmp_path: Path
) -> None:
    begins(tmp_path, 1, NOBODY)
    assert proof(watchdog) == Stop.DEADLOCK


def test_a_rank_that_came_after_the_last_look_has_not_ended(
    watchdog: Watchdog, tmp_path: Path
) -> None:
    begins(tmp_path, 1, ANOTHER)
    assert proof(watchdog) == ""


def test_a_rank_that_comes_during_the_proof_has_not_ended(
    watchdog: Watchdog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    still = watchdog.alive

    def then_one_comes() -> list[int]:
        alive = still()
        if not any(tmp_path.glob("rank-1*")):
            begins(tmp_path, 1, ANOTHER)
        return alive

    monkeypatch.setattr(watchdog, "alive", then_one_comes)
    assert proof(watchdog) == ""


@pytest.mark.parametrize(
    ("closed", "waited_s", "rest", "proved"),
    [
        (True, 80, True, Stop.DEADLOCK),
        (True, 80, False, ""),  # who is at work may be found yet
        (True, 40, True, ""),  # a lost request to connect is sent again after 63 s
        (False, 80, True, ""),
    ],
)
def test_ranks_that_all_came_and_do_not_meet_are_not_waited_for(
    watchdog: Watchdog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    closed: bool,
    waited_s: int,
    rest: bool,
    proved: str,
) -> None:
    monkeypatch.setattr(watchdog._stillness, "all_rest", lambda _: rest)
    joins(tmp_path, 1, ANOTHER)
    watchdog.census()
    watchdog.manifest.closed = closed
    watchdog.update()
    for rank in watchdog.progress.ranks.values():
        rank.moved_ns -= waited_s * 1_000_000_000
    assert proof(watchdog) == proved


def test_probes_that_failed_are_remarked_on(watchdog: Watchdog, tmp_path: Path) -> None:
    losses = [{"pid": 5 + n, "rank": n, "why": "open: OSError(28)"} for n in (-1, 0, 1)]
    (tmp_path / LOSSES_FILE).write_text("\n".join(map(json.dumps, losses)))
    watchdog.conclude()
    (remark,) = watchdog.manifest.remarks
    assert "A probe of ranks {0-1} failed (open: OSError(28))" in remark
