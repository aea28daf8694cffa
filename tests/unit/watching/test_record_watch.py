"""What a look at a record tells: of ranks, of waits, of the end."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from written_records import WrittenRank, manifest, written

from distdoctor.errors import RecordUnreadable
from distdoctor.journal import folder as record
from distdoctor.journal.format import RecordKind
from distdoctor.journal.layout import EXITS_FILE, LOCK_FILE
from distdoctor.journal.packed_texts import group_text
from distdoctor.journal.record_lock import RecordLock
from distdoctor.model.operations import IN_BACKWARD
from distdoctor.watching import standing_proof, waits_now
from distdoctor.watching.plain_snapshot import as_plain
from distdoctor.watching.record_watch import RecordWatch
from distdoctor.watching.running_records import RunningRecord
from distdoctor.watching.snapshot import JobState, RankDoing, Snapshot
from distdoctor.watching.wait_tree import wait_lines


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lasts at all is told."""
    monkeypatch.setattr(waits_now, "LONG_ENOUGH_S", 0.0)
    monkeypatch.setattr(standing_proof, "_QUIET_S", 0.0)


def watch(folder: Path) -> RecordWatch:
    """A watch of a record that this process writes."""
    me = RunningRecord(folder, os.getpid(), "check", _started_s())
    return RecordWatch(folder, me)


def _started_s() -> float:
    from distdoctor.watching.process_glance import glance_at

    return glance_at(os.getpid()).started_s


def doing(snapshot: Snapshot) -> list[str]:
    return [one.doing.value for one in snapshot.ranks]


def test_a_rank_that_does_not_come_is_waited_for(tmp_path: Path) -> None:
    ranks = written(tmp_path, 4)
    for one in ranks:
        one.call()
    for one in ranks[:2] + ranks[3:]:
        one.call(until="waiting", line=9)
    seen = watch(tmp_path).look()
    assert doing(seen) == ["waiting", "waiting", "own code", "waiting"]
    assert [(one.ranks, one.on) for one in seen.waits] == [([0, 1, 3], [2])]
    assert seen.waits[0].call.ordinal == 2
    assert seen.waits[0].call.group == "world"
    assert seen.ranks[0].call is not None
    assert seen.ranks[0].call.place == "train.py:9"
    assert seen.proof is None
    assert seen.job.alive == 4
    first, second = wait_lines(seen)
    assert first.startswith("rank 2: in its own code for ")
    assert second.startswith("└─ ranks {0-1,3} wait in all_reduce (call 2 on world)")


def test_waits_of_less_than_half_a_second_are_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits_now, "LONG_ENOUGH_S", 100.0)
    for one in written(tmp_path, 2)[:1]:
        one.call(until="waiting")
    assert watch(tmp_path).look().waits == []


def test_a_circle_is_proved(tmp_path: Path) -> None:
    ranks = written(tmp_path, 2)
    first, second = (group_text(name, name, 0, (0, 1)) for name in "ab")
    ranks[0].call(until="waiting", group=first)
    ranks[1].call(until="waiting", group=second)
    watched = watch(tmp_path)
    seen = watched.look()
    assert seen.proof is not None
    assert seen.proof.ranks == [0, 1]
    assert {(*one.ranks, *one.on) for one in seen.waits} == {(0, 1), (1, 0)}
    assert wait_lines(seen)[0] == "proved: ranks {0-1} can never go on"
    ranks[1].writer.mark(RecordKind.WOKE, os.getpid(), 1)
    assert watched.look().proof is None  # it went on: nothing is proved any more


def test_nothing_is_proved_while_a_rank_is_in_its_own_code(tmp_path: Path) -> None:
    ranks = written(tmp_path, 2)
    ranks[0].call(until="waiting")
    ranks[1].call("barrier", group=group_text("1", "b", 0, (1,)))
    assert watch(tmp_path).look().proof is None


def test_nothing_is_proved_of_a_journal_that_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing_proof, "_MOST_BYTES", 10)
    ranks = written(tmp_path, 2)
    ranks[0].call(until="waiting", group=group_text("a", "a", 0, (0, 1)))
    ranks[1].call(until="waiting", group=group_text("b", "b", 0, (0, 1)))
    seen = watch(tmp_path).look()
    assert seen.proof is None
    assert standing_proof.TOO_LARGE in seen.remarks


def test_a_rank_that_has_not_come_may_come(tmp_path: Path) -> None:
    rank = written(tmp_path, 1, closed=False)[0]
    record.write(tmp_path, record.MANIFEST, manifest(ranks=2))
    rank.call(until="waiting", group=group_text("0", "default_pg", 0, (0, 1)))
    seen = watch(tmp_path).look()
    assert doing(seen) == ["waiting", "unheard"]
    assert seen.proof is None
    assert seen.ranks[1].detail == "it has not joined yet"


def test_ranks_in_unlike_calls_of_one_number_are_told(tmp_path: Path) -> None:
    ranks = written(tmp_path, 3)
    for one in ranks[:2]:
        one.call("all_reduce", "waiting")
    ranks[2].call("barrier", "waiting")
    waits = watch(tmp_path).look().waits
    assert {(tuple(one.ranks), tuple(one.unlike)) for one in waits} == {
        ((0, 1), (2,)),
        ((2,), (0, 1)),
    }
    assert not any(one.on for one in waits)


def test_a_root_is_waited_for_alone(tmp_path: Path) -> None:
    ranks = written(tmp_path, 4)
    ranks[1].call("broadcast", "waiting", peer=0)
    ranks[2].call("broadcast", "waiting", peer=0)
    (wait,) = watch(tmp_path).look().waits
    assert (wait.ranks, wait.on, wait.any_of) == ([1, 2], [0], False)


def test_who_gives_to_a_root_waits_for_one_of_the_others(tmp_path: Path) -> None:
    ranks = written(tmp_path, 3)
    ranks[1].call("reduce", "waiting", peer=0)
    (wait,) = watch(tmp_path).look().waits
    assert (wait.on, wait.any_of) == ([0, 2], True)


def test_a_message_is_waited_for_at_its_peer(tmp_path: Path) -> None:
    ranks = written(tmp_path, 2)
    ranks[1].call("recv", "waiting", peer=0)
    (wait,) = watch(tmp_path).look().waits
    assert (wait.ranks, wait.on, wait.call.op) == ([1], [0], "recv")


def test_who_may_have_come_is_not_named(tmp_path: Path) -> None:
    """Of a rank whose records were passed over it is not known what it called."""
    ranks = written(tmp_path, 3)
    other = group_text("1", "tp", 0, (0, 1, 2))
    for _ in range(1000):
        ranks[1].call()
    ranks[0].call("barrier", "waiting", group=other)
    (wait,) = watch(tmp_path).look().waits
    assert (wait.ranks, wait.on) == ([0], [2])


def test_gradients_are_waited_for_at_the_end_of_backward(tmp_path: Path) -> None:
    ranks = written(tmp_path, 2)
    for one in ranks:
        one.call(until="issued", flags=IN_BACKWARD)
        one.backward(ended=True)
    ranks[0].call(until="issued", flags=IN_BACKWARD)
    ranks[0].backward()
    seen = watch(tmp_path).look()
    assert doing(seen) == ["in backward", "own code"]
    assert [(one.ranks, one.on) for one in seen.waits] == [([0], [1])]


def test_a_refused_call_is_told(tmp_path: Path) -> None:
    ranks = written(tmp_path, 2)
    ranks[0].call(until="refused")
    seen = watch(tmp_path).look()
    assert seen.ranks[0].doing is RankDoing.REFUSED


def test_a_rank_waits_only_if_all_its_threads_do(tmp_path: Path) -> None:
    ranks = written(tmp_path, 2)
    ranks[0].call(until="waiting", thread=11)
    ranks[0].call(until="done", thread=12)
    seen = watch(tmp_path).look()
    assert seen.ranks[0].doing is RankDoing.OWN_CODE
    assert seen.ranks[0].detail == "another thread of it is in a call"


def test_calls_by_name_keep_nobody(tmp_path: Path) -> None:
    ranks = written(tmp_path, 2)
    ranks[0].call(until="entered", group=group_text("horovod", "", 0, (0, 1)))
    seen = watch(tmp_path).look()
    assert seen.ranks[0].doing is RankDoing.OWN_CODE
    assert seen.waits == []


def test_a_rank_that_left_has_left(tmp_path: Path) -> None:
    ranks = written(tmp_path, 2)
    ranks[0].call()
    ranks[0].leave()
    assert watch(tmp_path).look().ranks[0].doing is RankDoing.LEFT


DEAD = 1 << 21  # no process has this number


def _as_dead(rank: WrittenRank, pid: int = DEAD, *, in_order: bool = False) -> None:
    """Its process has ended."""
    from distdoctor.journal.format import offset_of

    if in_order:
        rank.writer.end()
    with rank.writer.path.open("r+b") as file:
        os.pwrite(file.fileno(), pid.to_bytes(4, "little"), offset_of("pid"))


@pytest.mark.parametrize(
    ("status", "in_order", "told"),
    [
        (-9, False, (RankDoing.DIED, "signal 9")),
        (3, True, (RankDoing.DIED, "status 3")),
        (0, True, (RankDoing.ENDED, "")),
        (None, True, (RankDoing.ENDED, "")),
        (None, False, (RankDoing.DIED, "without a word")),
    ],
)
def test_how_a_rank_ended_is_told(
    tmp_path: Path,
    status: int | None,
    in_order: bool,
    told: tuple[RankDoing, str],
) -> None:
    ranks = written(tmp_path, 2)
    ranks[0].call()
    _as_dead(ranks[0], in_order=in_order)
    if status is not None:
        line = json.dumps({"pid": DEAD, "status": status})
        (tmp_path / EXITS_FILE).write_text(line + "\n")
    seen = watch(tmp_path).look()
    assert (seen.ranks[0].doing, seen.ranks[0].detail) == told
    assert seen.ranks[0].memory_bytes is None
    assert seen.job.alive == 1


def test_a_job_that_is_over_tells_its_verdict(tmp_path: Path) -> None:
    ranks = written(tmp_path, 1, stopped="deadlock", alive=[DEAD], verdict="sick")
    ranks[0].call(until="waiting")
    _as_dead(ranks[0])
    seen = RecordWatch(tmp_path).look()
    assert seen.job.state is JobState.OVER
    assert seen.ranks[0].detail == "by distdoctor"
    text = as_plain(seen)
    assert "a deadlock is proved · verdict: sick" in text
    assert f"distdoctor examine {tmp_path}" in text
    assert seen.waits == []


def test_an_interrupted_recording_was_not_ended_by_distdoctor(tmp_path: Path) -> None:
    ranks = written(
        tmp_path, 1, stopped="interrupted", alive=[DEAD], recorded=True, closed=True
    )
    _as_dead(ranks[0])
    seen = RecordWatch(tmp_path).look()
    assert seen.ranks[0].detail == "interrupted"
    assert "distdoctor autopsy" in as_plain(seen)


def test_a_record_whose_distdoctor_was_killed_is_broken_off(tmp_path: Path) -> None:
    ranks = written(tmp_path, 1)
    ranks[0].call()
    lock = RecordLock(tmp_path)
    os.close(lock._file)
    seen = RecordWatch(tmp_path).look()
    assert seen.job.state is JobState.BROKEN_OFF
    assert "; ranks live on" in seen.remarks[0]


def test_a_record_that_is_removed_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "record"
    ranks = written(folder, 1)
    ranks[0].call()
    watched = watch(folder)
    watched.look()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    seen = watched.look()
    assert seen.job.state is JobState.REMOVED
    assert seen.job.name == "train.py"
    assert "is gone" in seen.remarks[0]
    assert as_plain(seen)


def test_a_job_that_has_not_begun_is_waited_for(tmp_path: Path) -> None:
    watched = watch(tmp_path)  # not even a manifest
    assert watched.look().job.state is JobState.STARTING
    written(tmp_path, 2)[0].call()
    seen = watched.look()
    assert seen.job.state is JobState.RUNNING
    assert len(seen.ranks) == 2


def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordUnreadable, match=r"holds no run\.json"):
        RecordWatch(tmp_path)


def test_of_restarted_ranks_the_newest_are_shown(tmp_path: Path) -> None:
    for one in written(tmp_path, 2):
        one.call(until="waiting")
        _as_dead(one, DEAD + one.rank, in_order=True)
    time.sleep(0.01)
    for rank in range(2):
        WrittenRank(tmp_path, rank, 2).call()
    seen = watch(tmp_path).look()
    assert doing(seen) == ["own code", "own code"]
    assert seen.job.run == 2
    assert "start 2 of the ranks" in as_plain(seen)


def test_a_further_run_is_followed(tmp_path: Path) -> None:
    written(tmp_path, 2)[0].call()
    watched = watch(tmp_path)
    assert doing(watched.look())[0] == "own code"
    written(tmp_path / "second", 2)[0].call("barrier", "waiting")
    seen = watched.look()
    assert doing(seen)[0] == "waiting"
    assert seen.job.folder == str(tmp_path)


def test_simulated_ranks_wait_for_nobody(tmp_path: Path) -> None:
    ranks = written(tmp_path, 2)
    ranks[0].call(until="waiting")
    simulated = [record.Simulated(rank=0)]
    record.write(tmp_path, record.MANIFEST, manifest(ranks=2, simulated=simulated))
    seen = watch(tmp_path).look()
    assert seen.waits == []
    assert "simulated" in seen.remarks[0]


def test_a_record_of_another_machine_tells_no_times(tmp_path: Path) -> None:
    ranks = written(tmp_path, 2)
    ranks[0].call(until="waiting")
    told = {"host": "another-machine", "boot": "x"}
    (tmp_path / LOCK_FILE).write_text(json.dumps(told))
    seen = RecordWatch(tmp_path).look()
    assert [one.since_s for one in seen.ranks] == [None, None]
    assert seen.ranks[0].memory_bytes is None
    assert seen.waits == []
    assert "another machine" in seen.remarks[0]


def test_pace_and_memory_are_told(tmp_path: Path) -> None:
    (rank,) = written(tmp_path, 1)
    watched = watch(tmp_path)
    assert watched.look().ranks[0].calls_per_s is None
    time.sleep(0.05)
    for _ in range(10):
        rank.call()
    rank.writer.step()
    (seen,) = watched.look().ranks
    assert seen.calls == 10
    assert seen.calls_per_s is not None
    assert 20 < seen.calls_per_s <= 200
    assert seen.steps == 1
    assert seen.steps_per_s
    assert (seen.memory_bytes or 0) > 1 << 20
    assert seen.pid == os.getpid()


def test_last_calls_are_told_in_lines(tmp_path: Path) -> None:
    (rank,) = written(tmp_path, 1)
    rank.call("barrier", line=3)
    rank.call("all_reduce", "waiting", line=4)
    watched = watch(tmp_path)
    watched.look()
    first, second = watched.last_calls(0)
    assert first.split()[3:] == ["1", "barrier", "world", "done", "train.py:3"]
    assert second.split()[3:] == ["2", "all_reduce", "world", "waiting", "train.py:4"]
    assert watched.last_calls(7) == []


def _all_of(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path)] = status.st_mode, status.st_mtime_ns, data
    return found


@pytest.mark.parametrize("until", ["done", "waiting"])
def test_a_look_changes_nothing_in_the_record(tmp_path: Path, until: str) -> None:
    for one in written(tmp_path, 2):
        one.call(until=until)
    lock = RecordLock(tmp_path)
    before = _all_of(tmp_path)
    watched = watch(tmp_path)
    for _ in range(3):
        as_plain(watched.look())
        watched.last_calls(0)
    assert _all_of(tmp_path) == before
    lock.release()


def test_a_look_takes_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    ranks = written(tmp_path, 2)
    ranks[0].call(until="waiting")

    def refuse(*_: object) -> None:
        raise AssertionError("it locks")

    for name in ("flock", "lockf"):
        monkeypatch.setattr(fcntl, name, refuse)
    RecordWatch(tmp_path).look()


HOSTILE = "/job/\x1b[31m[red]x[/] [link=http://e.vil]y\u202e\n.py"


def test_what_a_job_names_is_harmless_in_plain_text(tmp_path: Path) -> None:
    ranks = written(tmp_path, 2)
    record.write(
        tmp_path, record.MANIFEST, manifest(ranks=2, script=HOSTILE, verdict=HOSTILE)
    )
    group = group_text("1", HOSTILE, 0, (0, 1))
    ranks[0].call(until="waiting", file=HOSTILE, group=group)
    text = as_plain(watch(tmp_path).look())
    assert all(c.isprintable() or c == "\n" for c in text)
    assert "[red]" in text


def test_a_fault_of_one_journal_is_told_and_others_are_shown(tmp_path: Path) -> None:
    ranks = written(tmp_path, 3)
    ranks[0].call()
    ranks[1].writer.path.write_bytes(b"no journal" * 1000)
    seen = watch(tmp_path).look()
    assert doing(seen) == ["own code", "unheard", "own code"]
    assert "journals that cannot be read: 1" in seen.remarks[0]


@pytest.mark.parametrize(
    "break_it",
    [
        lambda path: path.write_text("{"),
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b"\0" * 100),
    ],
)
def test_a_manifest_that_is_damaged_meanwhile_is_taken_as_it_was(
    tmp_path: Path, break_it: Callable[[Path], object]
) -> None:
    written(tmp_path, 2)[0].call()
    watched = watch(tmp_path)
    watched.look()
    break_it(tmp_path / record.MANIFEST)
    assert watched.look().job.name == "train.py"
