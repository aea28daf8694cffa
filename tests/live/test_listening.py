"""What listens while a job is checked: on the loopback interface, and nowhere else."""

import ipaddress
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import plugin_sessions as sessions
import psutil
import pytest
from command_box import DEADLINE_S, Box
from horovod_jobs import needs_horovod

MEETS = """
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.new_group([0, 1])
while True:
    dist.all_reduce(torch.ones(4))
    print("READY", flush=True)
    time.sleep(0.05)
"""

SPAWNS = """
import time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def work(rank):
    meeting = "tcp://127.0.0.1:29511"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    while True:
        dist.all_reduce(torch.ones(4))
        print("READY", flush=True)
        time.sleep(0.05)

if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""

HOROVOD = """
import time
import torch
import horovod.torch as hvd
hvd.init()
while True:
    hvd.allreduce(torch.ones(4), name="again")
    print("READY", flush=True)
    time.sleep(0.05)
"""


def listening(box: Box) -> Iterator[tuple[str, str]]:
    """Addresses at which processes of a box listen, with their programs."""
    for process in box.marked():
        with suppress(psutil.Error, OSError):
            for one in process.net_connections("inet"):
                if one.status == psutil.CONN_LISTEN:
                    yield str(one.laddr.ip), " ".join(process.cmdline())


def is_loopback(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def watched(process: subprocess.Popen[str], box: Box) -> list[tuple[str, str]]:
    """What listens once the job is ready."""
    assert process.stdout is not None
    for line in process.stdout:
        if "READY" in line:
            break
    found = list(listening(box))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE_S)
    return found


@pytest.mark.parametrize("program", [MEETS, SPAWNS], ids=["torchrun", "spawn"])
def test_stores_and_ranks_of_our_jobs_listen_on_loopback_alone(
    box: Box, program: str
) -> None:
    box.write(program)
    # The name of this machine leads to an address that others can reach, where it has
    # one: a store or a rank that takes it listens there.
    found = watched(box.start("check", "train.py", "-n", "2"), box)
    assert len(found) >= 3
    assert [one for one in found if not is_loopback(one[0])] == []


@needs_horovod
def test_horovodrun_and_its_ranks_listen_on_loopback_alone(box: Box) -> None:
    box.write(HOROVOD)
    found = watched(box.start("check", "train.py", "-n", "2"), box)
    assert found
    assert [one for one in found if not is_loopback(one[0])] == []


RANKED = """
import psutil, pytest, torch
import torch.distributed as dist

@pytest.mark.ranks(2)
def test_where_this_rank_listens(group):
    dist.all_reduce(torch.ones(1))
    sockets = psutil.Process().net_connections("inet")
    found = {one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN}
    assert found == {"127.0.0.1"}
"""


def test_ranks_of_tests_listen_on_loopback_alone(tmp_path: Path) -> None:
    session = sessions.run(tmp_path, RANKED)
    assert session.status == 0, session.output


def test_what_a_script_opens_itself_listens_where_it_wants(box: Box) -> None:
    box.write(
        "import socket, time\n"
        "server = socket.create_server(('', 0))\n"
        "while True:\n"
        "    print('READY', flush=True)\n"
        "    time.sleep(0.05)\n"
    )
    found = watched(box.start("check", "train.py", "--launcher", "python"), box)
    assert [address for address, _ in found] == ["0.0.0.0"]
