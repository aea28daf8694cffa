"""A Slurm of one node on the loopback interface, for as long as a test needs it.

It has no authentication and leaves nothing behind: `slurmctld` and `slurmd` are started
here, with all they write in a temporary folder. Source: Slurm 22.05, slurm.conf(5).
"""

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST_START_S = 30.0
LONGEST_END_S = 20.0

_SETTINGS = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
FirstJobId={first}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
SwitchType=switch/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
NodeName={host} NodeAddr=127.0.0.1 CPUs=8
PartitionName=all Nodes={host} Default=YES State=UP
"""
"""The node has more processors than it may be, so that all ranks find a place."""


_JOBS = 20  # of one cluster, at the most


@contextmanager
def cluster() -> Iterator[None]:
    """A cluster that `srun` finds by SLURM_CONF.

    Raises:
        RuntimeError: Its node was not there in time.
    """
    before = os.environ.get("SLURM_CONF")
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    for name in ("state", "spool"):
        (folder / name).mkdir()
    controller, node = _free_ports()
    settings = folder / "slurm.conf"
    settings.write_text(
        _SETTINGS.format(
            host=socket.gethostname(),
            user=getpass.getuser(),
            controller=controller,
            node=node,
            # Jobs meet at ports of their numbers, and there may be another cluster.
            first=_JOBS * controller,
            folder=folder,
        )
    )
    os.environ["SLURM_CONF"] = str(settings)
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for name in ("slurmctld", "slurmd"):
            with (folder / f"{name}.log").open("wb") as log:
                daemons.append(subprocess.Popen([name, "-D"], stdout=log, stderr=log))
        _wait_for_node(folder)
        yield
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            try:
                daemon.wait(LONGEST_END_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        del os.environ["SLURM_CONF"]
        if before is not None:
            os.environ["SLURM_CONF"] = before
        shutil.rmtree(folder)


def _free_ports() -> tuple[int, int]:
    """Two ports that nobody listens on now."""
    with socket.socket() as one, socket.socket() as another:
        one.bind(("127.0.0.1", 0))
        another.bind(("127.0.0.1", 0))
        return one.getsockname()[1], another.getsockname()[1]


def _wait_for_node(folder: Path) -> None:
    end = time.monotonic() + LONGEST_START_S
    while time.monotonic() < end:
        asked = ["sinfo", "--noheader", "--format=%T"]
        told = subprocess.run(asked, capture_output=True, text=True, check=False)
        if told.stdout.strip() == "idle":
            return
        time.sleep(0.1)
    logs = "\n".join(log.read_text() for log in sorted(folder.glob("*.log")))
    raise RuntimeError(f"no node of Slurm after {LONGEST_START_S} s:\n{logs}")
