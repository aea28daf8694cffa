"""Kills by the kernel for want of memory."""

from dataclasses import replace
from pathlib import Path

import pytest

from distdoctor.analysis.divergence.cascade import divergences
from distdoctor.analysis.sentences import sentence
from distdoctor.launch.oom_kills import OutOfMemoryKills
from distdoctor.model.drawing import sketch

EVENTS = "low 0\nhigh 0\nmax 12\noom 1\noom_kill {}\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
VMSTAT = "nr_free_pages 5\noom_kill {}\npswpin 3\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    (folder / "self").mkdir(parents=True)
    (folder / "vmstat").write_text(VMSTAT.format(3))
    return folder


def mounted(proc: Path, kind: str, options: str, group: str) -> Path:
    at = proc.parent / "cgroup"
    at.mkdir()
    (proc / "self" / "mounts").write_text(f"x {at} {kind} {options} 0 0\n")
    (proc / "self" / "cgroup").write_text(group + "\n")
    return at


def test_kills_in_the_control_group_of_version_2(proc: Path) -> None:
    at = mounted(proc, "cgroup2", "rw", "0::/job/step")
    (at / "job" / "step").mkdir(parents=True)
    events = at / "job" / "step" / "memory.events"
    events.write_text(EVENTS.format(4))
    kills = OutOfMemoryKills(proc)
    assert (kills.count(), kills.is_of_group) == (0, True)
    events.write_text(EVENTS.format(6))
    assert kills.count() == 2


def test_kills_in_a_container_of_version_1(proc: Path) -> None:
    at = mounted(proc, "cgroup", "rw,memory", "4:cpu:/x\n5:memory:/docker/0a1b\n0::/")
    control = at / "memory.oom_control"  # the mount is the group
    control.write_text(CONTROL.format(0))
    kills = OutOfMemoryKills(proc)
    control.write_text(CONTROL.format(1))
    assert (kills.count(), kills.is_of_group) == (1, True)


def test_kills_on_the_machine_where_no_group_counts(proc: Path) -> None:
    mounted(proc, "cgroup2", "rw", "0::/")
    kills = OutOfMemoryKills(proc)
    (proc / "vmstat").write_text(VMSTAT.format(4))
    assert (kills.count(), kills.is_of_group) == (1, False)


@pytest.mark.parametrize("vmstat", [None, "", "oom_kill\n", "oom_kill many\n", "\0"])
def test_a_kernel_that_does_not_tell(tmp_path: Path, vmstat: str | None) -> None:
    if vmstat is not None:
        (tmp_path / "vmstat").write_text(vmstat)
    kills = OutOfMemoryKills(tmp_path)
    assert (kills.count(), kills.file) == (0, None)


def test_the_story_of_a_killed_rank_tells_it() -> None:
    run = sketch(
        "rank 0 | all_reduce(4)  all_reduce(4)...\nrank 1 | all_reduce(4)  exit=137!"
    )
    (divergence,) = divergences(replace(run, starved="the kernel struck"))
    assert (
        "rank 1 was killed by signal 9 (the kernel struck)"
        in sentence(divergence).lower()
    )
    other = sketch(
        "rank 0 | all_reduce(4)  all_reduce(4)...\nrank 1 | all_reduce(4)  exit=139!"
    )
    (divergence,) = divergences(replace(other, starved="the kernel struck"))
    assert "struck" not in sentence(divergence)
