"""Ray Train over two hosts: the same verdicts as on one, and nothing left on either."""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launchers import skip_without
from node_jobs import LOST_S, START_S, CommandsCheck, Hosts, wait_for_ranks
from programs import FIXTURES, program
from real_runs import findings_of, is_near, named_lines
from two_hosts import Host, two_hosts

PATIENTS = ["ray_reports_on_one", "ray_model_not_prepared"]

OWN_RAY = 'ray.init("local", num_cpus=RANKS + 1, include_dashboard=False)'

ENDLESS = """
import sys, time
import ray, torch
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def train(settings):
    if settings["how"] == "parts":
        if dist.get_rank() == 1:
            dist.all_reduce(torch.ones(3))  # 11
        else:
            dist.broadcast(torch.ones(3), 0)  # 13
    while True:
        dist.all_reduce(torch.ones(4))
        time.sleep(0.05)

ray.init("auto")
how, folder = sys.argv[1:]
scaling, run = ScalingConfig(num_workers=2), RunConfig(storage_path=folder)
TorchTrainer(
    train, train_loop_config={"how": how}, scaling_config=scaling, run_config=run
).fit()
"""

ENDED_S = 60.0


@pytest.fixture(scope="module")
def hosts(hosts: Hosts) -> Iterator[Hosts]:
    """Two hosts whose folders for temporary files have names as short as Ray needs."""
    assert hosts
    skip_without("ray.train")
    with (
        tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp") as folder,
        two_hosts(Path(folder)) as pair,
    ):
        yield pair


def started(hosts: Hosts, folder: Path, *script: str) -> tuple[list[str], list[str]]:
    """Commands: one leads a cluster and runs a script, the other one adds a host.

    Each has one processor, so that each gets one of two workers.
    """
    a, b = hosts
    ray = str(Path(sys.executable).with_name("ray"))
    own = "--num-cpus 1 --disable-usage-stats"
    lead = f"{ray} start --head --node-ip-address {a.address} --port 6379 {own}"
    words = " ".join([sys.executable, *script])
    job = f"{lead} --include-dashboard=false && TMPDIR={folder} exec {words}"
    add = f"{ray} start --address {a.address}:6379 --node-ip-address {b.address} {own}"
    return ["sh", "-c", job], [*add.split(), "--block"]


def checked(
    hosts: Hosts, folder: Path, *script: str, budget: int = 200
) -> CommandsCheck:
    commands = started(hosts, folder, *script)
    options = ["--budget", str(budget), "--record", str(folder / "record")]
    return CommandsCheck(hosts, folder, commands, options, RAY_AUTH_MODE="disabled")


def patient_of_cluster(name: str, folder: Path) -> Path:
    """A patient that joins the cluster, where it would start a Ray of its own."""
    text = (FIXTURES / "systems" / f"{name}.py").read_text()
    assert OWN_RAY in text
    path = folder / f"{name}.py"
    path.write_text(text.replace(OWN_RAY, 'ray.init("auto")'))
    return path


def nothing_of_ray(host: Host) -> bool:
    return not host.said("find", str(host.own), "-name", "session*")


def test_a_well_job_is_well_and_both_sides_end_well(
    clean: Hosts, tmp_path: Path
) -> None:
    path = patient_of_cluster("ray_reports_on_one", tmp_path)
    check = checked(clean, tmp_path, str(path), "well")
    status, report, said = check.outcome()
    assert (status, report["verdict"], report["world_size"]) == (0, "well", 2), said
    assert check.joined.returncode == 0, said
    assert "the job is done" in said
    assert all(map(nothing_of_ray, clean))


@pytest.mark.parametrize("name", PATIENTS)
def test_a_sick_patient_is_told_as_on_one_machine(
    name: str, clean: Hosts, tmp_path: Path
) -> None:
    path = patient_of_cluster(name, tmp_path)
    known = program(path)
    status, report, said = checked(clean, tmp_path, str(path), "sick").outcome()
    (finding,) = findings_of(report, asked=known.code)
    assert (status, finding["code"]) == (1, known.code), said
    assert finding["ranks"] == list(known.culprits)
    assert is_near(named_lines(finding), known.lines_of(known.code))
    assert all(map(nothing_of_ray, clean))


def endless(folder: Path, how: str) -> list[str]:
    path = folder / "endless.py"
    path.write_text(ENDLESS)
    return [str(path), how, str(folder)]


def test_workers_that_part_are_told_when_the_budget_ends(
    clean: Hosts, tmp_path: Path
) -> None:
    script = endless(tmp_path, "parts")
    status, report, said = checked(clean, tmp_path, *script, budget=40).outcome(
        ENDED_S * 2
    )
    (finding,) = findings_of(report, asked="DD101")
    assert (status, finding["code"]) == (1, "DD101"), said
    assert is_near(named_lines(finding), (11, 13))


@pytest.fixture
def trains(clean: Hosts, tmp_path: Path) -> Iterator[CommandsCheck]:
    """A job whose two workers train without end, and do so already."""
    check = checked(clean, tmp_path, *endless(tmp_path, "on"))
    wait_for_ranks(tmp_path / "record", 2)
    yield check
    check.close()


def gaps(report: dict[str, Any]) -> str:
    return json.dumps(report["not_examined"])


def test_a_host_whose_raylet_is_killed_is_not_well(
    trains: CommandsCheck, clean: Hosts
) -> None:
    assert clean[1].kill_by_name("raylet/raylet", of_module=False) == 1
    status, report, said = trains.outcome(ENDED_S)
    assert status == {"unknown": 4, "sick": 1}[report["verdict"]], said
    assert all(map(nothing_of_ray, clean))


def test_a_host_whose_join_is_killed_is_told_as_lost(
    trains: CommandsCheck, clean: Hosts
) -> None:
    assert clean[1].kill_by_name("distdoctor join") == 1
    status, report, said = trains.outcome(LOST_S + ENDED_S)
    assert status == {"unknown": 4, "sick": 1}[report["verdict"]], said
    assert "its node hostb was lost" in gaps(report), said
    assert all(map(nothing_of_ray, clean))


def test_of_a_host_that_did_not_join_it_is_said_how_it_would(
    clean: Hosts, tmp_path: Path
) -> None:
    path = patient_of_cluster("ray_reports_on_one", tmp_path)
    commands = started(clean, tmp_path, str(path), "well")
    alone = clean[1].start(
        ["sh", "-c", f"sleep 5; exec {' '.join(commands[1])}"], RAY_AUTH_MODE="disabled"
    )
    report = tmp_path / "report.json"
    check = [sys.executable, "-m", "distdoctor", "check", "--budget", "90"]
    head = clean[0].start(
        [*check, "--format", "json", "--output", str(report), "--", *commands[0]],
        RAY_AUTH_MODE="disabled",
    )
    try:
        said, _ = head.communicate(timeout=START_S)
    finally:
        head.kill()
        clean[1].end_all()
        alone.communicate()
    told = json.loads(report.read_text())
    assert told["verdict"] == "unknown", said
    assert "distdoctor join" in gaps(told)
