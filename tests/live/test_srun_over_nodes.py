"""Ranks that Slurm starts on two hosts, each with its own daemons."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from node_jobs import LIMIT_S, Hosts, autopsy_of, our

TRAINING = """
import os, sys, time

os.environ["RANK"] = os.environ["SLURM_PROCID"]
os.environ["WORLD_SIZE"] = os.environ["SLURM_NTASKS"]
os.environ["LOCAL_RANK"] = os.environ["SLURM_LOCALID"]
os.environ["GLOO_SOCKET_IFNAME"] = f"wire{os.environ['SLURM_NODEID']}"
os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = sys.argv[1], "29533"

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(10):
    dist.all_reduce(torch.ones(4))
    if step == 3 and sys.argv[2] == "sick" and dist.get_rank() == 3:
        dist.barrier()
    time.sleep(0.02)
dist.destroy_process_group()
"""

SETTINGS = """
ClusterName=two
SlurmctldHost={names[0]}
AuthType=auth/munge
AuthInfo=socket={own}/munge/socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={own}/state
SlurmdSpoolDir={own}/spool
SlurmctldPidFile={own}/slurmctld.pid
SlurmdPidFile={own}/slurmd.pid
SlurmctldLogFile={own}/slurmctld.log
SlurmdLogFile={own}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName={names[0]} NodeAddr={addresses[0]} CPUs=2 State=UNKNOWN
NodeName={names[1]} NodeAddr={addresses[1]} CPUs=2 State=UNKNOWN
PartitionName=all Nodes={names[0]},{names[1]} Default=YES State=UP OverSubscribe=YES
"""

MUNGE = """
set -e
mkdir -p {own}/munge {own}/state {own}/spool
chmod 755 {own} {own}/munge
cp {key} {own}/munge/key
chmod 600 {own}/munge/key
cd {own}/munge
munged --force --key-file=$PWD/key --socket=$PWD/socket --pid-file=$PWD/pid \\
    --log-file=$PWD/log --seed-file=$PWD/seed
"""

PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "sinfo")


@pytest.fixture
def slurm(hosts: Hosts, tmp_path: Path) -> Iterator[dict[str, str]]:
    """What a program needs in its environment to ask Slurm, which runs on both."""
    if not all(map(shutil.which, PROGRAMS)):
        pytest.skip("no Slurm: apt install slurm-wlm munge")
    settings, key = tmp_path / "slurm.conf", tmp_path / "key"
    settings.write_text(
        SETTINGS.format(
            names=[host.name for host in hosts],
            addresses=[host.address for host in hosts],
            own=hosts[0].own,
        )
    )
    key.write_bytes(bytes(range(128)))
    variables = {"SLURM_CONF": str(settings)}
    for host in hosts:
        host.said("sh", "-c", MUNGE.format(own=host.own, key=key))
    daemons = [hosts[0].start(["slurmctld", "-D"], **variables)]
    time.sleep(1.0)
    daemons += [
        host.start(["slurmd", "-D", "-N", host.name], **variables) for host in hosts
    ]
    end = time.monotonic() + 30
    ask = ["env", f"SLURM_CONF={settings}", "sinfo", "-h", "-t", "idle", "-o", "%D"]
    while hosts[0].said(*ask).strip() != "2":
        if time.monotonic() > end:
            pytest.skip("Slurm does not come up here")
        time.sleep(0.2)
    yield variables
    for host in hosts:
        host.end_all()
    for daemon in daemons:
        with suppress(subprocess.TimeoutExpired):
            daemon.communicate(timeout=5)


@pytest.mark.parametrize("how", ["well", "sick"])
def test_a_job_of_slurm_is_told_as_on_one_machine(
    how: str, hosts: Hosts, slurm: dict[str, str], tmp_path: Path
) -> None:
    script, report = tmp_path / "training.py", tmp_path / "report.json"
    script.write_text(TRAINING)
    head = hosts[0].start(
        [
            *(*our("check"), "--format", "json", "--output", str(report)),
            *("--budget", "100", "--listen", hosts[0].wire, "--"),
            *("srun", "--nodes", "2", "--ntasks", "4", "--overcommit"),
            *(sys.executable, str(script), hosts[0].address, how),
        ],
        **slurm,
    )
    said, _ = head.communicate(timeout=LIMIT_S)
    told = json.loads(report.read_text())
    assert (head.returncode, told["verdict"]) == (int(how == "sick"), how), said
    assert told["world_size"] == 4
    assert [(one["code"], one["ranks"]) for one in told["findings"]] == (
        [("DD108", [3])] if how == "sick" else []
    )
    assert_nothing_is_left(hosts, said)


@pytest.mark.parametrize("how", ["well", "sick"])
def test_a_recorded_job_of_slurm_is_told_as_on_one_machine(
    how: str, hosts: Hosts, slurm: dict[str, str], tmp_path: Path
) -> None:
    script, record = tmp_path / "training.py", tmp_path / "record"
    script.write_text(TRAINING)
    head = hosts[0].start(
        [
            *(*our("record"), "--to", str(record), "--listen", hosts[0].wire, "--"),
            *("srun", "--nodes", "2", "--ntasks", "4", "--overcommit"),
            *(sys.executable, str(script), hosts[0].address, how),
        ],
        **slurm,
    )
    if how == "sick":  # it hangs until somebody ends it
        end = time.monotonic() + LIMIT_S
        while len([*record.glob("rank-*.journal")]) < 4 and time.monotonic() < end:
            time.sleep(0.1)
        time.sleep(12)
        assert hosts[0].kill_by_name("distdoctor record", signal.SIGTERM) == 1
    said, _ = head.communicate(timeout=LIMIT_S)
    told = autopsy_of(record)
    assert (told["verdict"], told["world_size"]) == (how, 4), said
    assert bool(head.returncode) == (how == "sick")
    assert [(one["code"], one["ranks"]) for one in told["findings"]] == (
        [("DD108", [3])] if how == "sick" else []
    )
    assert_nothing_is_left(hosts, said)


def assert_nothing_is_left(hosts: Hosts, said: str) -> None:
    for host in hosts:
        end = time.monotonic() + 8
        while True:
            ours = [one for one in host.processes() if "distdoctor" in one]
            folders = host.said("find", str(host.own), "-name", "distdoctor-*")
            if (ours, folders) == ([], "") or time.monotonic() > end:
                break
            time.sleep(0.2)
        assert (ours, folders) == ([], ""), said
