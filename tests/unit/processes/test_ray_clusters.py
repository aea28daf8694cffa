"""Clusters of Ray that were there before the job, whose workers nobody sees."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from distdoctor.examination.gaps import gaps_of
from distdoctor.journal.environment import FOLDER_VARIABLE
from distdoctor.journal.folder import read_clusters, used_ray
from distdoctor.model.drawing import sketch
from distdoctor.model.run import Run
from distdoctor.probes.processes import ray_clusters
from distdoctor.probes.recorder import RECORDER

ADDRESS = "10.0.0.1:6379"


@pytest.fixture(
    params=[("gcs_server", True), ("raylet", True), ("gcs_server", False)],
    ids=["ours", "ours on this machine", "another's"],
)
def head(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[bool]:
    """A process that looks as a part of a cluster; whether the job started it."""
    name, ours = request.param
    program = tmp_path / name
    program.symlink_to(sys.executable)
    tmp_path.chmod(0o700)
    mark = {FOLDER_VARIABLE: str(tmp_path) if ours else "/elsewhere"}
    waits = "print(flush=True); input()"
    command = [str(program), "-S", "-E", "-c", waits, f"--log_dir={tmp_path}/s1/logs"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=mark, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield ours
        process.kill()


def joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: object) -> object:
    """What `ray.init` gives to a program of the job that calls it."""
    monkeypatch.setitem(os.environ, FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(RECORDER, "folder", tmp_path)
    module = ModuleType("ray")
    module.__dict__["init"] = lambda *_: told
    ray_clusters.PROBE.imports["ray"](module)
    return module.__dict__["init"]("auto")


def test_only_a_cluster_that_the_job_did_not_start_is_told(
    head: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = {"session_dir": f"{tmp_path}/s1", "gcs_address": ADDRESS}
    context = SimpleNamespace(address_info=session)
    assert joined(tmp_path, monkeypatch, context) is context
    assert read_clusters(tmp_path) == (() if head else (ADDRESS,))
    assert used_ray(tmp_path)


def test_a_proxy_leads_to_a_cluster_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    joined(tmp_path, monkeypatch, SimpleNamespace())
    assert read_clusters(tmp_path) == ("ray://",)


def test_a_job_whose_workers_were_not_seen_is_not_said_to_have_trained_nothing() -> (
    None
):
    (gap,) = gaps_of(Run(world_size=0, exit_code=0, clusters=(ADDRESS,)), [])
    assert gap.hides
    assert ADDRESS in gap.why
    assert "RAY_ADDRESS=local" in gap.why
    assert "never called" not in gap.why


def test_groups_beside_the_one_that_is_watched_make_a_run_unknown() -> None:
    run = replace(sketch("rank 0 | start=1  exit=0"), groups_apart=2)
    gap = next(gap for gap in gaps_of(run, []) if "groups" in gap.what)
    assert gap.hides
    assert gap.what == "2 more groups of Ray's workers"
