"""What torch can do on this machine, asked in a process of its own.

To import torch takes seconds, on a busy machine a minute, and a broken installation
may end the process: so this one does not.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from distdoctor.model.machine_condition import MachineCondition, MachineState

DEADLINE_S = 90.0
"""For torch to be imported and gloo to be tried; over 30 s were seen on a busy box."""

TESTED = ((2, 8), (2, 15))
"""First and last release of torch that the probes were tried with."""

_ASK = """
import importlib.metadata, importlib.util, json
facts = {}
for name in ("horovod",):
    if importlib.util.find_spec(name):
        try:
            facts[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            facts[name] = "installed"
import torch
import torch.distributed as dist
facts["torch"] = torch.__version__
facts["cuda"] = torch.version.cuda or ""
facts["rocm"] = torch.version.hip or ""
facts["distributed"] = dist.is_available()
if dist.is_available():
    facts["nccl"] = ""
    if dist.is_nccl_available():
        try:
            facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        except Exception as error:
            facts["nccl"] = "of an unknown release"
    facts["has_gloo"] = dist.is_gloo_available()
    if facts["has_gloo"]:
        try:
            store = dist.HashStore()
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)
            dist.all_reduce(torch.ones(1))
            facts["gloo"] = ""
        except Exception as error:
            facts["gloo"] = f"{type(error).__name__}: {error}".splitlines()[0]
try:
    facts["gpus"] = [
        torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())
    ]
except Exception as error:
    facts["gpu_error"] = f"{type(error).__name__}: {error}".splitlines()[0]
print("\\nFACTS" + json.dumps(facts), flush=True)
"""


def torch_conditions(deadline_s: float) -> Iterator[MachineCondition]:
    """torch, its backends, the GPUs it sees, and Horovod beside it."""
    facts, why = ask_torch(deadline_s)
    yield release(facts, why)
    if "torch" in facts:
        yield gloo(facts)
        yield nccl(facts)
        yield gpus(facts, driver=shutil.which("nvidia-smi") is not None)
        yield horovod(facts)


def ask_torch(deadline_s: float, program: str = _ASK) -> tuple[dict[str, Any], str]:
    """What torch says of itself, and, where it says nothing, why."""
    try:
        # -P: files of the folder we happen to be in are no part of torch.
        done = subprocess.run(
            [sys.executable, "-P", "-c", program],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {}, f"`import torch` was not done after {deadline_s:.0f} s"
    for line in done.stdout.splitlines():
        if line.startswith("FACTS"):
            return json.loads(line.removeprefix("FACTS")), ""
    said = done.stderr.strip().splitlines()
    return {}, said[-1] if said else f"Python left with {done.returncode}"


def release(facts: Mapping[str, Any], why: str) -> MachineCondition:
    """Which torch there is, and whether the probes know it."""
    if "torch" not in facts:
        return MachineCondition(
            "torch",
            MachineState.ABSENT,
            why,
            f"nothing can be checked with {sys.executable}",
            "install torch into the environment that distdoctor runs in",
            needed=True,
        )
    version = str(facts["torch"])
    built = "for the CPU alone"
    if facts["cuda"]:
        built = f"for CUDA {facts['cuda']}"
    elif facts["rocm"]:
        built = f"for ROCm {facts['rocm']}"
    found = f"{version}, built {built}"
    number = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if TESTED[0] <= number <= TESTED[1]:
        return MachineCondition("torch", MachineState.OK, found, needed=True)
    first, last = (".".join(map(str, tested)) for tested in TESTED)
    return MachineCondition(
        "torch",
        MachineState.LIMITS,
        found,
        f"distdoctor was tried with {first} to {last}: what it says may be wrong",
        f"use a release from {first} to {last}",
        needed=True,
    )


def gloo(facts: Mapping[str, Any]) -> MachineCondition:
    """Whether ranks can meet on the CPU; it was tried with one."""
    if not facts.get("has_gloo"):
        return MachineCondition(
            "gloo",
            MachineState.ABSENT,
            "this torch was built without it",
            "ranks cannot meet on the CPU",
            "install a torch with torch.distributed, such as those of pytorch.org",
            needed=True,
        )
    if failure := facts["gloo"]:
        return MachineCondition(
            "gloo",
            MachineState.ABSENT,
            failure,
            "ranks cannot meet on the CPU",
            "see the host name and the gloo interface below; GLOO_SOCKET_IFNAME=lo "
            "keeps it on this machine",
            needed=True,
        )
    return MachineCondition(
        "gloo", MachineState.OK, "a group of one rank met", needed=True
    )


def nccl(facts: Mapping[str, Any]) -> MachineCondition:
    """Whether torch has NCCL."""
    if facts.get("nccl"):
        return MachineCondition("NCCL", MachineState.OK, str(facts["nccl"]))
    return MachineCondition(
        "NCCL",
        MachineState.ABSENT,
        "this torch was built without it",
        "what only NCCL does cannot be seen here",
    )


def gpus(facts: Mapping[str, Any], *, driver: bool) -> MachineCondition:
    """The GPUs that torch can use.

    Args:
        facts: What torch said.
        driver: The machine has NVIDIA's tools, and so most likely a GPU.
    """
    if failure := facts.get("gpu_error"):
        return MachineCondition(
            "GPUs", MachineState.LIMITS, failure, "torch cannot use them"
        )
    seen = list(facts.get("gpus", ()))
    if seen:
        return MachineCondition(
            "GPUs", MachineState.OK, f"{len(seen)}: {', '.join(sorted(set(seen)))}"
        )
    found, cure = "torch sees none", ""
    if driver:
        found += ", though nvidia-smi is here"
        cure = "install a torch built for CUDA, if there is a GPU"
    return MachineCondition(
        "GPUs", MachineState.ABSENT, found, "ranks run on the CPU", cure
    )


def horovod(facts: Mapping[str, Any]) -> MachineCondition:
    """Whether Horovod is installed."""
    if version := facts.get("horovod"):
        return MachineCondition("horovod", MachineState.OK, str(version))
    means = "jobs that import it cannot be checked here"
    return MachineCondition("horovod", MachineState.ABSENT, "not installed", means)
