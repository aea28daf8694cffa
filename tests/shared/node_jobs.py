"""A job over two hosts under watch: started on the first, and joined on the second."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from two_hosts import Host

Hosts = tuple[Host, Host]

TOKEN = "0123456789abcdef" * 4
PORT = 4711
LIMIT_S = 240.0
START_S = 120.0
LOST_S = 45.0  # a side waits 10, and then ends what it has

ENDLESS = """
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
while True:
    dist.all_reduce(torch.ones(4))
    time.sleep(0.05)
"""
"""A script whose ranks train without end."""


def wait_for_ranks(record: Path, ranks: int) -> None:
    """Wait until ranks of a job have come, and train.

    Args:
        record: The record folder of the head.
        ranks: How many.
    """
    end = time.monotonic() + START_S
    while len([*record.glob("rank-*.journal")]) < ranks and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(6.0)  # they import torch, and meet


def our(command: str) -> list[str]:
    """A command of ours."""
    return [sys.executable, "-m", "distdoctor", command]


def autopsy_of(record: Path) -> dict[str, Any]:
    """What is told of what lies in a folder."""
    command = [*our("autopsy"), str(record), "--format", "json"]
    done = subprocess.run(command, cwd=record.parent, capture_output=True, check=False)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def torchrun(hosts: Hosts, node: int, ranks: int, *script: str) -> list[str]:
    """What starts a script's ranks on one of the nodes."""
    meeting = ["--master-addr", hosts[0].address, "--master-port", "29511"]
    place = ["--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", str(ranks)]
    return [sys.executable, "-m", "torch.distributed.run", *place, *meeting, *script]


class CommandsCheck:
    """A check of one command on each host, started on the first, joined on the second.

    Args:
        hosts: On which they run.
        folder: For the report.
        commands: That of the first, and that of the second.
        options: Further ones of `distdoctor check`.
        boxed: Whether each side is the first process of a container.
        variables: Of both.
    """

    def __init__(
        self,
        hosts: Hosts,
        folder: Path,
        commands: tuple[Sequence[str], Sequence[str]],
        options: Sequence[str] = (),
        *,
        boxed: bool = False,
        **variables: str,
    ) -> None:
        self.report = folder / "report.json"
        address = f"{hosts[0].address}:{PORT}"
        variables["DISTDOCTOR_TOKEN"] = TOKEN
        report = ["--format", "json", "--output", str(self.report), "--budget", "200"]
        nodes = ["--nodes", "2", "--listen", address]
        join = [*our("join"), address, "--", *commands[1]]
        check = [*our("check"), *report, *options, *nodes, "--", *commands[0]]
        start = Host.start_boxed if boxed else Host.start
        self.joined = start(hosts[1], join, **variables)
        self.head = start(hosts[0], check, **variables)

    def outcome(self, limit_s: float = LIMIT_S) -> tuple[int, dict[str, Any], str]:
        """Exit status of the head, its report, and what was printed on both."""
        try:
            said, _ = self.head.communicate(timeout=limit_s)
            more, _ = self.joined.communicate(timeout=LOST_S)
        finally:
            self.close()
        report = json.loads(self.report.read_text()) if self.report.exists() else {}
        return self.head.returncode, report, f"{said}\n--- joined:\n{more}"

    def close(self) -> None:
        """End what is left of both sides."""
        for side in (self.head, self.joined):
            side.kill()
            side.wait()
            if side.stdout is not None:
                side.stdout.close()


class NodesCheck(CommandsCheck):
    """A check of a script whose ranks torchrun starts on both hosts."""

    def __init__(
        self,
        hosts: Hosts,
        folder: Path,
        *script: str,
        ranks: int,
        options: Sequence[str] = (),
        boxed: bool = False,
    ) -> None:
        half = ranks // 2
        commands = (
            torchrun(hosts, 0, ranks - half, *script),
            torchrun(hosts, 1, half, *script),
        )
        super().__init__(hosts, folder, commands, options, boxed=boxed)
